"""What an administrator may set of the operator, with the reason of every default."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heddle_operator.apis.heddlejob import HeddleJob


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and expectations of the decision loop.

    Attributes:
        peer_timeout_s: a member that is silent for so long is lost: an agent that does not answer,
            a rank that sends no heartbeat.  Of the job: `spec.elastic.peerTimeoutSeconds`.
        kill_s: an agent kills a rank without heartbeats within this; else its pod is deleted.
        progress_timeout_s: an epoch whose ranks all send heartbeats, but of which none makes
            progress, is halted after so long, or after `progress_steps` predicted steps.
        prepare_timeout_s: a rank that prepares an epoch sends heartbeats, but may make no progress
            for so long: an engine is built in one piece, and the old plan trains on meanwhile.
        pod_timeout_s: a pod must be ready so long after it was created (image pull, imports).
        pod_problem_s: a pod that cannot start (its image is not there, it fits nowhere, the API
            server refuses it) is waited for so long; the old plan trains on meanwhile.
        late_s: a pod without a problem that is not ready after so long (its image is pulled) holds
            up no other node that could join; it joins later.
        start_late_s: the same while nothing trains yet.
        refusal_pause_s: a pod that the cluster refused to create is tried again after so long.
        halt_timeout_s: a rank that was told to halt, and beats, does so within this or some of its
            steps; later it is given up if nobody needs its state.
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
        report_wait_s: how long an agent may hold a report back while nothing changes; at most a
            quarter of the peer time-out, so that one lost answer is no silence.
    """

    peer_timeout_s: float = 10.0
    kill_s: float = 2.0
    progress_timeout_s: float = 60.0
    progress_steps: int = 20
    prepare_timeout_s: float = 300.0
    pod_timeout_s: float = 600.0
    pod_problem_s: float = 10.0
    late_s: float = 8.0
    start_late_s: float = 30.0
    refusal_pause_s: float = 5.0
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

    def of_job(self, job: HeddleJob) -> Settings:
        """The settings with what the job sets itself."""
        return replace(self, peer_timeout_s=job.spec.elastic.peer_timeout_seconds)
