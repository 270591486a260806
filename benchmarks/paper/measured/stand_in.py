"""The stand-in for GPT-Neo-2.7B in jobs on emulated devices: as many blocks, and narrow.

The processor carries the stand-in, while each rank waits for the time that its part of GPT-Neo-2.7B
would take, `SLOWDOWN` times over.
Invariant: a job that names GPT-Neo-2.7B is planned as that; its ranks alone know of the stand-in.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from socket import socket
from typing import Any

from benchmarks.paper.cells import cell_of
from planner.cost.evaluate import RankTimes, rank_times
from planner.plans.plan import Plan
from worker.contract import Directive
from worker.control.channel import Channel
from worker.control.messages import Follow, ToProcess
from worker.engine.seam import StageBuild
from worker.rank import process

MODEL = "gpt-neo-2.7b"
BATCH = 32  # samples of a step; the paper's 128 would take a step of a minute here
SLOWDOWN = 4.0  # wall seconds in which a second of an emulated device passes
SEQUENCE_LENGTH = 8
STAND_IN = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


class StandInServices(process.GlooServices):
    """The services of a rank whose emulated device runs GPT-Neo-2.7B, slowed."""

    def emulated_times(self, build: StageBuild) -> RankTimes:
        """See `GlooServices`."""
        return slowed_times(build.plan)[build.seat.rank]


class StandInChannel(Channel):
    """The channel of a rank whose job names GPT-Neo-2.7B: the rank hears of the stand-in."""

    def receive(self, timeout_s: float | None) -> ToProcess | None:
        """See `Channel`."""
        message = super().receive(timeout_s)
        if isinstance(message, Follow):
            return message.model_copy(update={"directive": of_stand_in(message.directive)})
        return message


def of_stand_in(directive: Directive) -> Directive:
    """The same directive for the stand-in, in fp32 and with short samples."""
    training = directive.training.model_copy(
        update={
            "model": "stand-in",
            "shape": None,
            "config": STAND_IN,
            "sequence_length": SEQUENCE_LENGTH,
            "precision": "fp32",
            "loss_scale": None,
        }
    )
    return directive.model_copy(update={"training": training})


def slowed_times(plan: Plan) -> tuple[RankTimes, ...]:
    """The wall seconds that each rank of a plan takes for its part of GPT-Neo-2.7B."""
    question = cell_of(MODEL, "grow-19").question()
    workload = replace(question.workload, global_batch=BATCH)
    times = rank_times(plan, workload, process.nodes_of(plan), question.profile)
    return tuple(
        RankTimes(**{part: SLOWDOWN * seconds for part, seconds in asdict(one).items()})
        for one in times
    )


def rank_main(connection: socket, **arguments: Any) -> None:
    """A rank process of a job that names the stand-in, or GPT-Neo-2.7B."""
    process.main(connection, services_of=StandInServices, channel_of=StandInChannel, **arguments)
