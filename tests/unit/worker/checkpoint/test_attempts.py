"""checkpoint/attempts.py: an attempt loses its manifest before any other object."""

from __future__ import annotations

from worker.checkpoint.attempts import Attempt, objects_of, to_remove

ATTEMPT = Attempt(epoch=3, step=40)


def test_the_manifest_goes_first():
    names = [ATTEMPT.name(name) for name in ("a", "manifest.json", "z")]
    assert to_remove(ATTEMPT, names) == (
        ATTEMPT.manifest,
        names[0],
        names[2],
        ATTEMPT.manifest,
    )


def test_names_of_another_form_are_of_no_attempt():
    names = ["step-40.e3/a", "step-40/a", "step-x.e3/a", "other"]
    assert objects_of(names) == {ATTEMPT: ("step-40.e3/a",)}
