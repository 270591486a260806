"""worker/engine/feed.py: every stage of a pipeline is told the same of each micro-batch."""

from __future__ import annotations

import pytest

from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import plan
from tests.unit.worker.data.texts import of, write_pair
from worker.contract import TrainingSpec
from worker.data.dataset import Dataset
from worker.data.held_out import HeldOut
from worker.engine.feed import Feed
from worker.engine.seam import Progress
from worker.model.forward_context import Documents
from worker.training_settings import IGNORED

PLAN = plan("1x1+1x1", "1x2")
BATCH = 2


@pytest.fixture
def feeds(tmp_path):
    """(dataset, the feed of each rank of a job with or without document masks)."""
    texts = [[document % 97 + 1] * (document % 5 + 2) for document in range(60)]
    prefix = write_pair(tmp_path / "text", texts)

    def made(document_mask):
        spec = TrainingSpec(
            model="tiny-llama",
            data=of(prefix, split=(5, 5, 0), document_mask=document_mask),
            global_batch=BATCH,
            sequence_length=8,
            seed=7,
            steps=9,
        )
        dataset = Dataset(spec.data, 8)
        held_out = HeldOut.of(spec.data, 8, 256, 5)
        seats = RankMap.of(PLAN).seats
        return dataset, [Feed(dataset, held_out, spec, seat.pipeline) for seat in seats]

    return made


def test_the_contexts_of_a_step_are_its_samples_and_their_documents(feeds):
    dataset, of_ranks = feeds(True)
    contexts = [list(feed.contexts_of_step(Progress(step=3))) for feed in of_ranks]
    told = {sample for own in contexts for context in own for sample in context.samples}
    assert told == set(range(3 * BATCH, 4 * BATCH))
    for own in contexts:
        for context in own:
            expected = Documents.of([dataset.documents(7, sample) for sample in context.samples])
            assert context.documents.lengths == expected.lengths
            assert context.documents.positions.tolist() == expected.positions.tolist()


def test_an_evaluation_has_documents_and_drops_nothing(feeds):
    _, of_ranks = feeds(True)
    for feed in of_ranks:
        contexts = list(feed.contexts_of_evaluation())
        assert len(contexts) == len(feed.of_evaluation())
        assert all(context.samples is None and context.documents for context in contexts)
    (row,) = next(of_ranks[0].held_out.documents(range(1), 1))
    assert next(of_ranks[0].contexts_of_evaluation()).documents.lengths == row


def test_without_a_mask_a_row_is_one_document(feeds):
    _, of_ranks = feeds(False)
    assert all(context.documents is None for context in of_ranks[0].contexts_of_step(Progress()))
    assert all(context.documents is None for context in of_ranks[0].contexts_of_evaluation())


@pytest.mark.parametrize("is_tiled", [True, False])
def test_replicas_in_lock_step_have_equally_many_rounds_also_in_an_evaluation(feeds, is_tiled):
    dataset, (first, *_) = feeds(True)
    stage = Stage(gpu_type="demo-fast", tp=1, layers=2, ep=2 if is_tiled else 1, etp=1)
    template = FilledTemplate((stage,), 1, (3, 1))
    spots = tuple(PlacedStage(0, replica, 0, "a", (replica,)) for replica in range(2))
    spec = first._spec.model_copy(update={"global_batch": 4})
    own, rounds, evaluated = [], [], []
    for pipeline in RankMap.of(Plan((template,), spots)).pipelines:
        feed = Feed(dataset, first.held_out, spec, pipeline)
        contexts, batches = list(feed.contexts_of_step(Progress())), list(feed.of_step(0))
        assert len(contexts) == len(batches)
        for context, (tokens, (labels, weight)) in zip(contexts, batches, strict=True):
            if context.is_empty:
                assert (context.sample_weight, weight.item(), tokens.any().item()) == (0, 0, False)
                assert (labels == IGNORED).all()
        own.append(sum(not context.is_empty for context in contexts))
        rounds.append(len(contexts))
        evaluations = list(feed.contexts_of_evaluation())
        assert len(evaluations) == len(feed.of_evaluation())
        evaluated.append(len(evaluations))
        feed.close()
    assert own == [3, 1]
    assert rounds == ([3, 3] if is_tiled else [3, 1])
    assert evaluated == ([3, 3] if is_tiled else [3, 2])
