"""What an administrator may set of the operator, with the reason of every default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and expectations of the decision loop.

    Attributes:
        unreachable_grace_s: an agent that does not answer for so long counts as lost, unless its
            pod ended before.
        pod_timeout_s: a pod must be ready so long after it was created (image pull, imports).
        pod_problem_s: a pod that cannot start (its image is not there, it fits nowhere, a quota is
            exceeded) is waited for so long; the old plan trains on meanwhile.
        refusal_pause_s: a pod that the cluster refused to create is tried again after so long.
        prepare_timeout_s: all members must be prepared so long after the epoch was sealed.
        halt_timeout_s: ranks of a broken world halt by themselves; longer than the two
            10-s time-outs that one may wait out in a row, for the vote and to form a world.
        end_timeout_s: pods must end so long after the job has, or they are deleted.
        epochs_kept: newest epoch records that stay although nothing needs them any more.
        expected_change_s: time to the next change of the cluster, until the job has seen
            `changes_known` of its own.
        changes_known: from so many changes on, their mean distance is used.
        expected_stall_s: stall of a change, until one was measured.
        backoff_limit_s: aborted epochs are tried again after 1, 2, 4 ... s, at most this.
        plan_seed: of the search.
        plan_evaluations: the search stops after so many plans; None: after the job's
            `budgetSeconds`.
        report_wait_s: how long an agent may hold a report back while nothing changes.  With the
            time that an answer may take and the grace, it is no more than the ranks' own time-out:
            when they halt for a node that fell silent, that node is known to be lost.
    """

    unreachable_grace_s: float = 2.0
    pod_timeout_s: float = 600.0
    pod_problem_s: float = 60.0
    refusal_pause_s: float = 5.0
    prepare_timeout_s: float = 60.0
    halt_timeout_s: float = 25.0
    end_timeout_s: float = 60.0
    epochs_kept: int = 20
    expected_change_s: float = 600.0
    changes_known: int = 3
    expected_stall_s: float = 1.0
    backoff_limit_s: float = 60.0
    plan_seed: int = 0
    plan_evaluations: int | None = None
    report_wait_s: float = 3.0
