"""model/moment.py: what layers are told of a micro-batch."""

from __future__ import annotations

from worker.model.moment import Documents, Moment, Now


def test_positions_begin_anew_with_each_document():
    found = Documents.of([(3, 1), (4,)])
    assert found.lengths == (3, 1, 4)
    assert found.positions.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]


def test_another_moment_holds_for_a_while():
    now, then = Now(), Moment(1, range(3))
    with now.at(then):
        assert now.moment == then
        assert now.drops
    assert now.moment is None
    assert not now.drops


def test_an_evaluation_drops_nothing_and_has_documents():
    now, documents = Now(), Documents.of([(2, 2)])
    assert now.documents is None
    now.moment = Moment(1, None, documents)
    assert not now.drops
    assert now.documents is documents
