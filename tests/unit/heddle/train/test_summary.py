"""heddle/train/summary.py: the last words tell what the result holds."""

from __future__ import annotations

from heddle.train.summary import summary

EPOCH = {
    "reason": "start",
    "reconfiguration": None,
    "step_s": 0.5,
    "predicted_step_s": 0.4,
    "predicted_memory_bytes": 40_000_000,
    "measured": {"tokens_per_s": 5120.0, "mfu": 0.25, "memory_bytes": 600_000_000},
}
RESULT = {
    "losses": [5.5, 3.25],
    "held_out": [{"step": 0, "loss": 5.6}, {"step": 2, "loss": 3.5}],
    "epochs": [EPOCH, {**EPOCH, "reason": "join", "reconfiguration": {}}],
    "emulated": False,
    "output": "/out",
    "parts": None,
    "checkpoint": None,
    "phase": "Complete",
    "begun_from_step": None,
    "goes_on_from": None,
    "failed_save": None,
}  # fmt: skip


def test_what_was_trained_how_fast_and_where_the_weights_are():
    trained, pace, weights = summary({**RESULT, "epochs": [EPOCH]})
    assert "trained 2 steps and changed its plan 0 times" in trained
    assert "the loss went from 5.500 to 3.250" in trained
    assert "held-out part it went from 5.600 (step 0) to 3.500 (step 2)" in trained
    assert "0.500 s in the median (0.400 s predicted)" in pace
    assert "5,120 tokens/s at an MFU of 25.0 %" in pace
    assert "up to 600 MB, Python and torch with it; the plan foresaw 40 MB" in pace
    assert weights == "The weights are in /out."


NOTHING = {**RESULT, "losses": [], "held_out": [], "epochs": [], "output": None, "phase": "Running"}
SAVED = {"folder": "/out/checkpoints/tiny", "step": 24}


def test_a_run_that_trained_nothing_claims_nothing():
    assert summary(NOTHING) == (
        "This run trained no step.",
        "No weights are saved, and no checkpoint: the same command begins anew with --fresh.",
    )


def test_a_checkpoint_of_all_steps_leaves_none_to_train_and_its_weights_are_named():
    ended = {"phase": "Complete", "output": "/out", "begun_from_step": 24, "goes_on_from": SAVED}
    assert summary({**NOTHING, **ended}) == (
        "No step was left to train: the run went on from the checkpoint of step 24.",
        "The weights are in /out.",
    )


def test_a_run_that_ended_without_a_save_names_the_checkpoint_before_it():
    ended = {"phase": "Suspending", "output": None, "begun_from_step": 24, "goes_on_from": SAVED}
    for result in (RESULT, NOTHING):
        *_, last = summary({**result, **ended})
        assert last == (
            "No weights are saved. The same command goes on from the checkpoint of step 24 in "
            "/out/checkpoints/tiny."
        )
    assert "trained 2 steps after step 24 and changed" in summary({**RESULT, **ended})[0]


def test_a_newest_save_that_failed_is_said_at_the_end():
    failed = {"step": 20, "error": "/saves/tiny: not a directory"}
    *_, lost, weights = summary({**RESULT, "failed_save": failed})
    assert lost == "The checkpoint of step 20 is not saved: /saves/tiny: not a directory."
    assert weights == "The weights are in /out."


def test_an_emulated_step_is_called_emulated_and_no_weights_are_named_that_are_not_there():
    found = summary({**RESULT, "epochs": [EPOCH], "emulated": True, "output": None})
    assert "(0.400 s emulated)" in found[1]
    assert found[2].startswith("No weights are saved")


def test_whole_parts_are_named_with_the_command_that_makes_a_model_of_them():
    *_, kept = summary({**RESULT, "epochs": [EPOCH], "output": None, "parts": "/out/parts"})
    assert kept.startswith("The weights are saved in parts: `heddle weights export /out FOLDER`")


def test_commands_that_are_shown_quote_a_path_with_a_blank():
    parts = {**RESULT, "epochs": [EPOCH], "output": None, "parts": "/my out/parts"}
    assert "`heddle weights export '/my out' FOLDER`" in summary(parts)[-1]
    saved = {"folder": "/my out/tiny", "step": 9, "bytes": 3_000_000, "seconds": 1.5}
    ended = {**RESULT, "output": None, "phase": "Suspended", "checkpoint": saved}
    assert "`heddle checkpoint export '/my out/tiny' FOLDER`" in summary(ended)[-1]


def test_a_run_that_was_suspended_says_where_its_state_is():
    saved = {"folder": "/out/checkpoints/tiny", "step": 9, "bytes": 3_000_000, "seconds": 1.5}
    *_, kept = summary({**RESULT, "output": None, "phase": "Suspended", "checkpoint": saved})
    assert "after step 9 is in /out/checkpoints/tiny (3.0 MB in 1.5 s, 2 MB/s)" in kept
    assert "`heddle checkpoint export /out/checkpoints/tiny FOLDER`" in kept


def test_a_last_plan_of_few_steps_has_no_median_and_the_sentence_begins_as_one():
    _, pace, _ = summary({**RESULT, "epochs": [{**EPOCH, "step_s": None}]})
    assert pace.startswith("It trained 5,120 tokens/s")
