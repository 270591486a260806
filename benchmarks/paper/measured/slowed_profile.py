"""A profile in which everything takes so many times as long, to plan for slowed devices.

All times grow alike, so an operator finds the plans that it would find at full speed.
Invariant: bytes and counts stay as they are, and so do sentences.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from planner.profiles.profile import LINKS_FILE, PROFILES

_BY_TYPE = ("inside_node", "nics", "rings")  # tables of the links by GPU type


def slowed_files(model: str, gpu_types: Collection[str], times: float) -> dict[str, str]:
    """{file name: text} of a model's folder with some of its GPU types."""
    folder = PROFILES / model
    names = [*(f"{gpu_type}.json" for gpu_type in sorted(gpu_types)), LINKS_FILE]
    texts = {}
    for name in names:
        data = json.loads((folder / name).read_text(encoding="utf-8"))
        for table in _BY_TYPE if name == LINKS_FILE else ():
            data[table] = {key: row for key, row in data[table].items() if key in gpu_types}
        data["provenance"] = {"hardware": f"{data['provenance']['hardware']}; {times:g} times over"}
        texts[name] = json.dumps(_slowed(data, times))
    return texts


def write_slowed(folder: Path, model: str, gpu_types: Collection[str], times: float) -> None:
    """Write the files of `slowed_files` into a folder that is there."""
    for name, text in slowed_files(model, gpu_types, times).items():
        (folder / name).write_text(text, encoding="utf-8")


def _slowed(data: Any, times: float, key: str = "") -> Any:
    if isinstance(data, dict):
        return {name: _slowed(value, times, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_slowed(value, times, key) for value in data]
    if key.endswith("bytes_per_s"):
        return data / times
    return data * times if key.endswith("_s") or "_s_per_" in key else data
