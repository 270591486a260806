"""worker/weights/final_weights.py: the files of all ranks together are the model, each part
once, and the index says so."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
import torch
from safetensors import safe_open

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from tests.distributed.random_plans import tiled_plan
from tests.families import MIXTURES
from tests.unit.worker.changes import MODEL, SPEC, plan, shards_of, whole_state
from worker.device.device import CPU
from worker.weights.final_weights import INDEX, described, own_files
from worker.weights.parts import WeightParts

STATE = whole_state()


class Sums:
    """The ranks of a plan one after the other: the first round adds up, the second knows."""

    device = CPU

    def __init__(self, size):
        self.size = size
        self.total = torch.zeros(size, 5, dtype=torch.int64)
        self.knows = False

    def all_reduce_(self, tensor, op):
        assert op == "sum"
        if self.knows:
            tensor.copy_(self.total)
        else:
            self.total += tensor


def weights_of(seat):
    return {name: parts[0] for name, parts in shards_of(seat, STATE).items()}


def write(folder, trained):
    """What each rank of a plan wrote."""
    seats, found = RankMap.of(trained).seats, []
    ranks = Sums(len(seats))
    for ranks.knows in (False, True):
        found = [
            own_files(MODEL, seats, seat, weights_of(seat), described(MODEL, SPEC, 7), ranks)
            for seat in seats
        ]
    for files in found:
        for file in files or ():
            file.write(folder)
    return [files and [file.name for file in files] for files in found]


def put_together(folder, of_file):
    """The model by (file, tensor, dim, rows) of each part; NaN where nothing was written."""
    whole = {tensor.name: torch.full(tensor.shape, torch.nan) for tensor in model_tensors(MODEL)}
    for name, tensor, dim, (start, stop) in of_file:
        with safe_open(folder / name, framework="pt") as file:
            part = file.get_tensor(tensor)
        target = whole[tensor] if dim is None else whole[tensor].narrow(dim, start, stop - start)
        target.copy_(part)
    return whole


def by_metadata(folder):
    dims = {tensor.name: tensor.dim for tensor in model_tensors(MODEL)}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert set(file.metadata()) == set(file.keys())
            for tensor, rows in file.metadata().items():
                yield path.name, tensor, dims[tensor], tuple(map(int, rows.split(":")))


def by_index(folder):
    index = json.loads((folder / INDEX).read_text())
    for tensor, about in index["tensors"].items():
        for part in about["parts"]:
            yield part["file"], tensor, about["dim"], part["rows"]


@pytest.mark.parametrize("reader", [by_metadata, by_index])
@pytest.mark.parametrize("pipeline", ["1x2", "4x2", "2x1+1x1", "1x1+4x1"])
def test_a_reader_puts_the_model_together(tmp_path, pipeline, reader):
    folder = tmp_path / "new" / "folder"
    write(folder, plan(pipeline))
    whole = put_together(folder, reader(folder))
    assert all(torch.equal(found, STATE[name][0]) for name, found in whole.items())


def test_the_index_has_size_and_digest_of_every_file_and_the_shape_of_every_tensor(tmp_path):
    write(tmp_path, plan("2x1+1x1", "1x2"))
    index = json.loads((tmp_path / INDEX).read_text())
    assert (index["model"], index["step"]) == (MODEL.name, 7)
    assert (ModelShape.from_json(index["shape"]), index["config"]) == (MODEL, None)
    assert index["files"] == {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in tmp_path.glob("*.safetensors")
    }
    shapes = {tensor.name: list(tensor.shape) for tensor in model_tensors(MODEL)}
    assert {name: about["shape"] for name, about in index["tensors"].items()} == shapes
    assert {about["dtype"] for about in index["tensors"].values()} == {"float32"}


def test_every_rank_that_writes_writes_the_same_index(tmp_path):
    contents = set()
    for number, seats in enumerate(RankMap.of(plan("2x1+1x1")).seats):
        write(tmp_path / str(number), plan("2x1+1x1"))
        contents.add((tmp_path / str(number) / INDEX).read_bytes())
        assert seats.rank == number
    assert len(contents) == 1


def test_the_first_pipeline_alone_speaks_for_the_model(tmp_path):
    assert write(tmp_path, plan("2x1+1x1", "1x2")) == [
        ["weights-stage0-slot0.safetensors", INDEX],
        ["weights-stage0-slot1.safetensors", INDEX],
        ["weights-stage1-slot0.safetensors", INDEX],
        None,
    ]
    assert len(list(tmp_path.iterdir())) == 4, "and no draft is left"


def test_replicas_of_the_first_template_write_nothing(tmp_path):
    twice = FilledTemplate((Stage(gpu_type="demo-fast", tp=1, layers=2),), 1, (1, 1))
    spots = tuple(PlacedStage(0, replica, 0, "a", (replica,)) for replica in range(2))
    first, second = write(tmp_path, Plan((twice,), spots))
    assert first is not None
    assert second is None


@pytest.mark.parametrize("seed", range(12))
def test_experts_are_written_once_by_the_first_ranks_that_have_them_all(tmp_path, seed):
    model = MIXTURES["mixtral"]
    state = {
        tensor.name: torch.arange(tensor.numel, dtype=torch.float32).view(tensor.shape)
        for tensor in model_tensors(model)
    }
    seats = RankMap.of(tiled_plan(random.Random(seed), 4, model, 8)).seats
    ranks, found = Sums(len(seats)), []
    for ranks.knows in (False, True):
        found = []
        for seat in seats:
            whole = {name: (numbers,) * 3 for name, numbers in state.items()}
            weights = {name: parts[0] for name, parts in shards_of(seat, whole, model).items()}
            about = described(model, SPEC, 7)
            found.append(own_files(model, seats, seat, weights, about, ranks))
    for files in found:
        for file in files or ():
            file.write(tmp_path)
    names = [files[0].name for files in found if files]
    assert len(set(names)) == len(names)
    parts = WeightParts(tmp_path)
    parts.verify()
    for tensor in model_tensors(model):
        rows = tensor.shape[0] - tensor.padding if not tensor.experts else tensor.shape[0]
        box = tuple(slice(0, size) for size in (rows, *tensor.shape[1:]))
        assert torch.equal(parts.read(tensor, box), state[tensor.name][:rows])
        if tensor.experts:
            inner = tuple(slice(1, size) for size in tensor.shape)
            assert torch.equal(parts.read(tensor, inner), state[tensor.name][inner])
