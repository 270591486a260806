"""Jobs as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from heddle.cli.job_tables import page, table

JOB = {
    "metadata": {"name": "tiny", "namespace": "ml"},
    "spec": {"steps": 300},
    "status": {
        "phase": "Running",
        "message": "the plan is kept: no better one was found",
        "epoch": 3,
        "activeGPUs": 4,
        "usableGPUs": 6,
        "grantedGPUs": 5,
        "typeSpeeds": {"x": 0.5},
        "nodes": ["a", "b"],
        "plan": {"summary": "1 x [x tp1 x 6]", "reason": "join"},
        "progress": {"step": 17, "steps": 300, "loss": 5.25, "stepSeconds": 0.5},
        "holders": {"minNodes": 1, "singlePieces": 9},
        "lastReconfiguration": {
            "epoch": 3,
            "reason": "join",
            "stallSeconds": 0.25,
            "parts": {"build_s": 0.2, "drain_s": 0.05, "vote_s": 0.0001, "new_s": 0.01},
        },
        "conditions": [
            {"type": "Running", "status": "True", "reason": "Training", "message": "well"},
            {"type": "Failed", "status": "False", "reason": "Running", "message": ""},
        ],
    },
}
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
SAVED = {"step": 15, "savedAt": "2026-11-28T11:57:30Z", "bytes": 3_000_000, "seconds": 1.5}
BARE = {"metadata": {"name": "new"}}


def test_a_table_has_a_head_and_one_aligned_line_for_each_job():
    head, tiny, new = table([JOB, BARE], NOW)
    assert head.split() == [
        "NAMESPACE",
        "NAME",
        "PHASE",
        "EPOCH",
        "GPUS",
        "STEP",
        "LAST",
        "SAVE",
        "PLAN",
    ]
    assert tiny.split()[:6] == ["ml", "tiny", "Running", "3", "4", "17/300"]
    assert new.split() == ["default", "new", "-", "-", "-", "0/?", "-", "-"]
    assert {row.index(cell) for row, cell in ((head, "PHASE"), (tiny, "Running"))} == {
        head.index("PHASE")
    }


def test_a_page_counts_the_nodes_that_the_status_does_not_name():
    job = JOB | {"status": JOB["status"] | {"nodeCount": 900}}
    assert "  epoch 3 (join): 1 x [x tp1 x 6] on 4 GPUs of a, b and 898 more" in page(job)


def test_a_page_tells_everything_about_a_job():
    assert page(JOB) == [
        "ml/tiny: Running",
        "  the plan is kept: no better one was found",
        "  step 17 of 300, loss 5.25, 0.5 s a step",
        "  epoch 3 (join): 1 x [x tp1 x 6] on 4 GPUs of a, b",
        "  GPU type x computes at 0.5 of its profile's speed",
        "  6 GPUs are usable, its pods hold 5",
        "  every piece of the state is on at least 1 node, 9 pieces on one node only",
        "  last change: epoch 3 (join), stall 250 ms = drain 50 + build 200 + new 10",
        "  conditions:",
        "    Running True (Training): well",
        "    Failed False (Running)",
    ]


def test_a_job_that_no_operator_has_seen_says_so():
    assert page(BARE) == ["default/new: not seen by an operator yet"]


def test_what_the_newest_step_measured_is_one_line():
    told = {
        "step": 3, "steps": 9, "tokensPerSecond": 12345.6, "mfu": 0.3125, "learningRate": 3e-4,
        "gradientNorm": 1.5, "lossScale": 65536.0, "memoryBytes": 2_500_000_000,
    }  # fmt: skip
    plan = {"reason": "start", "summary": "1 x [..]", "predictedMemoryBytes": 2_000_000_000}
    status = {"phase": "Running", "progress": told, "plan": plan, "epoch": 1}
    status |= {"activeGPUs": 1, "nodes": ["n"]}
    job = {"metadata": {"name": "a"}, "status": status}
    assert (
        "  12,346 tokens/s, MFU 31.2 %, learning rate 0.0003, gradient norm 1.5, "
        "loss scale 65536, up to 2.50 GB a rank (2.00 GB predicted)"
    ) in page(job)


@pytest.mark.parametrize(
    ("saved_at", "age"),
    [
        ("2026-11-28T11:59:51Z", "9s"),
        ("2026-11-28T11:57:30Z", "2m"),
        ("2026-11-28T08:00:00Z", "4h"),
        ("2026-11-20T12:00:00Z", "8d"),
        ("2026-11-28T12:00:05Z", "0s"),  # another clock
    ],
)
def test_the_last_save_has_an_age(saved_at, age):
    saved = SAVED | {"savedAt": saved_at}
    _, row = table([JOB | {"status": JOB["status"] | {"checkpoint": saved}}], NOW)
    assert row.split()[6] == age


def test_a_page_tells_of_checkpoints_and_of_starts_from_them():
    best = {"bestStep": 10, "bestHeldOutLoss": 1.25}
    saved = SAVED | best | {"restoredEpoch": 2, "restoredStep": 10, "lostSteps": 3}
    lines = page(JOB | {"status": JOB["status"] | {"checkpoint": saved}})
    assert "  last checkpoint: step 15 at 2026-11-28T11:57:30Z, 3.0 MB in 1.5 s" in lines
    assert "  best checkpoint: step 10, held-out loss 1.25" in lines
    assert "  epoch 2 went on from the checkpoint of step 10; 3 steps lost so far" in lines
