"""worker/engine/final_weights.py: the files of all ranks together are the model, each part once."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from planner.model.tensors import model_tensors
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, plan, shards_of, whole_state
from worker.engine.final_weights import write_weights

STATE = whole_state()


def write(folder, trained):
    return [
        write_weights(str(folder), MODEL, seat, shards_of(seat, STATE))
        for seat in RankMap.of(trained).seats
    ]


@pytest.mark.parametrize("pipeline", ["1x2", "4x2", "2x1+1x1", "1x1+4x1"])
def test_a_reader_puts_the_model_together_by_the_rows_in_the_metadata(tmp_path, pipeline):
    whole = {tensor.name: torch.full(tensor.shape, torch.nan) for tensor in model_tensors(MODEL)}
    dims = {tensor.name: tensor.dim for tensor in model_tensors(MODEL)}
    for path in write(tmp_path / "new" / "folder", plan(pipeline)):
        with safe_open(path, framework="pt") as file:
            assert set(file.metadata()) == set(file.keys())
            for name, rows in file.metadata().items():
                start, stop = map(int, rows.split(":"))
                part = file.get_tensor(name)
                if dims[name] is None:
                    assert (start, stop) == (0, 1)
                    whole[name].copy_(part)
                else:
                    whole[name].narrow(dims[name], start, stop - start).copy_(part)
    assert all(torch.equal(found, STATE[name][0]) for name, found in whole.items())


def test_the_first_pipeline_alone_speaks_for_the_model(tmp_path):
    paths = write(tmp_path, plan("2x1+1x1", "1x2"))
    assert [path and path.name for path in paths] == [
        "weights-stage0-slot0.safetensors",
        "weights-stage0-slot1.safetensors",
        "weights-stage1-slot0.safetensors",
        None,
    ]
    assert len(list(tmp_path.iterdir())) == 3


def test_replicas_of_the_first_template_write_nothing(tmp_path):
    twice = FilledTemplate((Stage("demo-fast", 1, 2),), 1, (1, 1))
    spots = tuple(PlacedStage(0, replica, 0, "a", (replica,)) for replica in range(2))
    first, second = write(tmp_path, Plan((twice,), spots))
    assert first is not None
    assert second is None
