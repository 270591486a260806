"""The committed answers of brute force, and how to write them again.

`python -m tests.oracle.answers` enumerates every instance, prints the old and the new seconds, and
rewrites `answers.json`; do so when the evaluator or an instance changes, and say why in the commit.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.oracle.brute_force import brute_force
from tests.oracle.instances import Instance, instances

ANSWERS = Path(__file__).with_name("answers.json")


def answer_of(instance: Instance) -> dict[str, Any]:
    """What brute force says, as plain data; `iteration_s` is null where no plan fits."""
    row: dict[str, Any] = {"name": instance.name, "instance": instance.digest}
    answer = brute_force(instance.request, instance.profile)
    if answer is None:
        return row | {"iteration_s": None}
    return row | {
        "iteration_s": answer.cost.iteration_s,
        "throughput_samples_s": answer.cost.throughput_samples_s,
        "holders_min": answer.holders,
        "digest": answer.plan.digest,
        "plan": answer.plan.to_json(),
    }


def committed() -> dict[str, dict[str, Any]]:
    """{name of the instance: its answer, with the seconds that its enumeration took}."""
    return {row["name"]: row for row in json.loads(ANSWERS.read_text())}


def main() -> None:
    """Enumerate all instances."""
    rows, old = [], committed()
    for instance in instances():
        started_s = time.process_time()
        row = answer_of(instance)
        rows.append(row | {"enumerated_s": round(time.process_time() - started_s, 2)})
        before = old.get(instance.name, {}).get("iteration_s")
        print(f"{instance.name}: {before} -> {row['iteration_s']} s", flush=True)
    lines = ",\n ".join(json.dumps(row) for row in rows)
    ANSWERS.write_text(f"[\n {lines}\n]\n")


if __name__ == "__main__":
    main()
