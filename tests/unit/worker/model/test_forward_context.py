"""model/forward_context.py: what layers are told of a micro-batch."""

from __future__ import annotations

from worker.model.forward_context import CurrentContext, Documents, ForwardContext


def test_positions_begin_anew_with_each_document():
    found = Documents.of([(3, 1), (4,)])
    assert found.lengths == (3, 1, 4)
    assert found.positions.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]


def test_another_moment_holds_for_a_while():
    current, then = CurrentContext(), ForwardContext(seed=1, samples=range(3))
    with current.at(then):
        assert current.context == then
        assert current.drops
    assert current.context is None
    assert not current.drops


def test_an_evaluation_drops_nothing_and_has_documents():
    current, documents = CurrentContext(), Documents.of([(2, 2)])
    assert current.documents is None
    current.context = ForwardContext(seed=1, documents=documents)
    assert not current.drops
    assert current.documents is documents
