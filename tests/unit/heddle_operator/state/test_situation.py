"""Which epoch is live, which is pending, and who is lost."""

from __future__ import annotations

from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from tests.fakes.operator import running_on


def read(cluster):
    return situation(cluster.snapshot(), cluster.now, Settings())


def lost(cluster):
    return tuple((loss.reason, str(loss)) for loss in read(cluster).lost)


def test_an_adopted_epoch_is_pending_until_a_rank_holds_it():
    operator, cluster = running_on("a")
    cluster.add_node("b")
    operator.run(lambda decision: cluster.records.all[-1].epoch == 2)
    where = read(cluster)
    assert (where.live.epoch, where.pending.epoch) == (1, 2)
    operator.run(lambda decision: cluster.records.all[-1].outcome == "live")
    where = read(cluster)
    assert (where.live.epoch, where.pending) == (2, None)


def test_what_happened_to_a_rank_is_said():
    _, cluster = running_on("a", "b")
    assert lost(cluster) == ()
    cluster.kill_rank("tiny-a-0", 0)
    assert lost(cluster) == (("Exited", "rank 0 on a ended by signal 9"),)
    cluster.kill_node("a")
    cluster._halt_broken()
    assert lost(cluster) == (
        ("PodDied", "rank 0 on a died with the pod"),
        ("Halted", "rank 1 on b halted: broken"),
    )


def test_ranks_to_which_the_same_happened_are_told_together():
    _, cluster = running_on("a", "b", "c")
    cluster.kill_node("a")
    cluster._halt_broken()
    assert lost(cluster) == (
        ("PodDied", "rank 0 on a died with the pod"),
        ("Halted", "rank 1 on b and 1 more halted: broken"),
    )


def test_an_agent_is_in_doubt_until_the_peer_timeout_has_passed():
    _, cluster = running_on("a", "b")
    cluster.unreachable["tiny-a-0"] = cluster.now
    assert read(cluster).doubtful == ("tiny-a-0",)
    assert [holder.node for holder in read(cluster).holders] == ["b"]
    cluster.now += Settings().peer_timeout_s + 0.1
    assert read(cluster).doubtful == ()
    words = "rank 0 on a fell silent: no answer of the agent for 10 s"
    assert lost(cluster) == (("Silent", words),)
