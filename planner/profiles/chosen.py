"""The profile that a job is planned by: that of somebody's own folder, else the one of Heddle.

Invariant: a profile of a folder is used for exactly what it speaks of; for any other length,
precision or wire the job is planned by Heddle's, and told so.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from planner.errors import UnprofiledConfiguration
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile, load_profile


class Chosen(NamedTuple):
    """A profile, and a sentence if the folder's own was left aside; "" otherwise."""

    profile: Profile
    note: str = ""


@lru_cache(maxsize=32)
def choose_profile(workload: Workload, folder: Path | None = None) -> Chosen:
    """The profile of a workload; files are read once in a process.

    Args:
        workload: that is planned.
        folder: of somebody's own profiles, one folder a model; None: there are none.

    Raises:
        UnprofiledConfiguration: a file of the folder cannot be read.
    """
    if folder is None or not (folder / workload.model.name).is_dir():
        return Chosen(find_profile(workload))
    own = find_profile(workload, folder)
    try:
        own.require(workload)
    except UnprofiledConfiguration as error:
        return Chosen(find_profile(workload), f"{error}; Heddle's own profile is used")
    return Chosen(own)


def check_profiles(folder: Path) -> None:
    """Read all profiles of a folder.

    Raises:
        UnprofiledConfiguration: it holds none, or one of them cannot be read.
    """
    try:
        # Names of the system, such as those of a mounted ConfigMap, start with a dot.
        models = [p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]
    except OSError as error:
        raise UnprofiledConfiguration(
            f"the folder of profiles {folder} cannot be read: {error.strerror}", code="Unreadable"
        ) from None
    if not models:
        raise UnprofiledConfiguration(
            f"the folder of profiles {folder} holds none; it needs one folder for each model",
            code="Missing",
        )
    for model in sorted(models):
        load_profile(model, folder)
