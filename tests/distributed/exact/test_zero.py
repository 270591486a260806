"""ZeRO 1 changes who has the state, and no bit of it: by a step, a move, a checkpoint, a skip.

Each job runs without ZeRO, with it, with it under one of its two plans, and from a checkpoint that
the ranks of a plan with ZeRO saved and those of one without load.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from planner.model.tensors import model_tensors
from planner.plans.ranks import RankMap
from tests.distributed.exact.exactness import GPUS, Case, cases, trained
from tests.distributed.pods import place, template
from tests.families import MIXTURES
from tests.unit.worker.data.lines import prepared_lines
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.training_settings import LossScale

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # imports DeepSpeed, forks ranks
STEPS = 4
LASTING = 50  # steps of the jobs that must not drift apart, with an update after update
VARIANTS = {"without": (0, 0), "with": (1, 1), "mixed": (0, 1), "restored": (1, 0)}
LOSSES = {"without": (0, 0), "with": (1, 1), "mixed": (1, 0)}
COUNTED = {"without": (0, 0), "with": (1, 1)}
IN_SAMPLE = (("without", "with", "restored"), ("without", "mixed"))  # of each job of the sample
LOST = 1  # this GPU owns rows of the first template, which the second owns too
DENSE = (  # of four ranks; each trains eight samples, its replicas unequal ones
    ("1x4 2 2 1", "1x4 3"),
    ("2x4 5 3",),
    ("1x2+1x2 2 6",),
    ("1x4 1 2 3 2",),
)
TILED = (  # TP, EP, ETP, and micro-batches of each replica
    (1, 2, 1, (2, 1, 3, 2)),
    (2, 2, 1, (5, 3)),
    (1, 1, 2, (2, 2, 1, 3)),
    (2, 1, 2, (4, 4)),
    (1, 4, 1, (2, 2, 2, 2)),
)
SAMPLE, CAMPAIGN = 2, 9  # jobs of `make test`, and of `make test-system` besides
LIMIT_S = 600.0  # on a busy machine


def dense_plan(choose: random.Random):
    templates = []
    for text in choose.choice(DENSE):
        stages, *counts = text.split()
        templates.append(template(stages, 1, *map(int, counts)))
    return place(tuple(templates), [("a", gpu) for gpu in choose.sample(range(GPUS), GPUS)])


def tiled_plan(choose: random.Random):
    tp, ep, etp, counts = choose.choice(TILED)
    plain = template(f"{tp}x4", 1, *counts)
    stages = (replace(plain.stages[0], ep=ep, etp=etp),)
    spots = [("a", gpu) for gpu in choose.sample(range(GPUS), GPUS)]
    return place((replace(plain, stages=stages),), spots)


def jobs() -> list[Case]:
    """Dense models and mixtures in turn, in every precision; fp16 overflows at first."""
    found = []
    for index in range(SAMPLE + CAMPAIGN):
        kind, choose = ("dense", "mixtures")[index % 2], random.Random(f"zero/{index}")
        case = cases(3 + index, 1 + index % 3, STEPS, kind)[-1]
        precision = ("fp16", "fp32", "bf16")[index % 3]
        scale = LossScale(initial=2**20, window=20) if precision == "fp16" else None
        spec = case.spec.model_copy(
            update={"precision": precision, "loss_scale": scale, "on_non_finite": "Skip"}
        )
        plan = tiled_plan if kind == "mixtures" else dense_plan
        found.append(replace(case, spec=spec, plans=(plan(choose), plan(choose))))
    return found


def recovery() -> Case:
    """A job that loses an owner whose template is not the only one."""
    (case,) = cases(5, 1, STEPS, "dense")
    before = template("1x4", 1, 3, 2), template("2x4", 1, 3)
    after = template("1x4", 1, 3, 2), template("1x4", 1, 3)
    spots = [("a", gpu) for gpu in range(GPUS)]
    plans = place(before, spots), place(after, [spots[2], spots[0], spots[3]])
    spec = case.spec.model_copy(update={"precision": "bf16", "loss_scale": None})
    return replace(case, spec=spec, plans=plans)


def counted_bias() -> Case:
    """DeepSeek-V3, whose bias of experts all holders have; EP, and who owns what, change."""
    (*_, case) = cases(11, len(MIXTURES), STEPS, "mixtures")
    assert any(tensor.is_counted for tensor in model_tensors(case.model))
    spots = [("a", gpu) for gpu in range(GPUS)]
    plain = template("1x4", 1, 2, 1, 3, 2), template("2x4", 1, 5, 3)
    plans = tuple(
        place((replace(one, stages=(replace(one.stages[0], ep=2, etp=1),)),), spots)
        for one in plain
    )
    spec = case.spec.model_copy(update={"precision": "bf16", "loss_scale": None})
    return replace(case, spec=spec, plans=(plans[0], plans[1]))


def lasting() -> list[Case]:
    """A mixture in fp32, a dense model in bf16 and a mixture in fp16, of many steps."""
    found = jobs()[1:4]
    assert [case.spec.precision for case in found] == ["fp32", "bf16", "fp16"]
    spec = {"steps": LASTING}
    return [replace(case, spec=case.spec.model_copy(update=spec)) for case in found]


def parts() -> dict[str, list[tuple[Case, dict[str, tuple[int, int]], int | None]]]:
    """(job, its variants, the GPU that it loses) of each part of the tests."""
    few = [{name: VARIANTS[name] for name in names} for names in IN_SAMPLE]
    sample = zip(jobs()[:SAMPLE], few, [None] * SAMPLE, strict=True)
    return {
        "sample": [*sample, (counted_bias(), COUNTED, None), (recovery(), LOSSES, LOST)],
        "campaign": [(case, VARIANTS, None) for case in jobs()[SAMPLE:]],
        "lasting": [(case, COUNTED, None) for case in lasting()],
    }


def claims(gpu: int, store: Any) -> list[dict[str, Any]]:
    """Of each job, the rows of each variant on this GPU."""
    with engine_loaded():
        part, prefix = json.loads(os.environ["WANTED"])
        found, epoch = [], 1
        for case, variants, lost in parts()[part]:
            rows = {}
            for variant, (before, after) in variants.items():
                plans = case.plans[0].with_zero(before), case.plans[1].with_zero(after)
                job = replace(case, plans=plans, restored=int(variant == "restored"))
                rows[variant] = list(trained(gpu, store, epoch, job, job.on(prefix), lost))
                epoch += 2
            found.append(rows)
    return found


def ranks_find(folder: Any, part: str) -> list[list[dict[str, Any]]]:
    """By job of a part, what each GPU answered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VAULT", str(folder / "vault"))
        patch.setenv("WANTED", json.dumps([part, prepared_lines(folder)]))
        answers = run_ranks("tests.distributed.exact.test_zero:claims", GPUS, LIMIT_S)
    return [list(of_job) for of_job in zip(*answers, strict=True)]


def known(answers, variant):
    """{(step, what): its bits} of all ranks, of which all that have it agree."""
    found: dict[tuple[int, str], object] = {}
    for row in (row for answer in answers for row in answer[variant]):
        told = {"loss": row.get("loss"), "norm": row.get("norm"), "agreed": row.get("agreed")}
        bits = row["bits"] | told if "bits" in row else {}
        for what, value in bits.items():
            assert found.setdefault((row["step"], what), value) == value, (variant, what)
    return found


def claimed(case, answers):
    without = known(answers, "without")
    for variant in answers[0]:
        assert known(answers, variant) == without, variant
        for one, plain in zip(answers, [answer["without"] for answer in answers], strict=True):
            finals = [row["final"] for row in one[variant] if "final" in row]
            assert finals == [row["final"] for row in plain if "final" in row]
    assert any(what.startswith("state") for _, what in without)
    rows = [row for answer in answers for of in answer.values() for row in of if "bits" in row]
    for row in rows:
        assert row["spreads"] == (row["norm"] != "inf"), "a skipped step sends no weight"


def test_owners_train_move_save_load_and_recover_the_bits_of_a_job_without_zero(tmp_path):
    """Of a lost owner, survivors get rows that it updated alone from those of another template."""
    *sample, biased, recovered = ranks_find(tmp_path, "sample")
    for case, answers in zip(jobs(), sample, strict=False):
        claimed(case, answers)
    norms = {value for (_, what), value in known(sample[0], "with").items() if what == "norm"}
    assert "inf" in norms, "no step of the first job is skipped"
    assert norms != {"inf"}
    claimed(recovery(), recovered)
    claimed(counted_bias(), biased)
    bias = f"multiplied {counted_bias().model.layers}.router_bias/0/0"
    moved = {bits for (_, what), bits in known(biased, "with").items() if what == bias}
    assert len(moved) > 1, "the bias of experts stands still"
    assert {row["step"] for answer in recovered for row in answer["with"]} == {1, 3, 4}


@pytest.mark.system
def test_so_they_do_in_other_models_and_precisions(tmp_path):
    found = ranks_find(tmp_path, "campaign")
    for case, answers in zip(jobs()[SAMPLE:], found, strict=True):
        claimed(case, answers)


@pytest.mark.system
def test_fifty_steps_have_the_bits_of_fifty_without_zero(tmp_path):
    """The plan changes after half of them."""
    for case, answers in zip(lasting(), ranks_find(tmp_path, "lasting"), strict=True):
        claimed(case, answers)
        assert {row["step"] for row in answers[0]["with"]} == set(range(1, LASTING + 1))


def test_the_jobs_share_the_state_of_dense_and_expert_tensors_among_replicas():
    templates = [t for case in jobs() for plan in case.plans for t in plan.templates]
    assert any(one.replicas > 2 for one in templates)
    assert any(one.replicas > 1 and one.stages[0].tp > 1 for one in templates)
    seats = [s for case in jobs() for p in case.plans for s in RankMap.of(p.with_zero(1)).seats]
    assert any(seat.expert_owner[1] > 1 and seat.expert_block[1] > 1 for seat in seats)
    assert any(seat.expert_owner[1] == 1 and seat.owner[1] > 1 for seat in seats)
