"""While a template is refused no pod is made, and everything else is done."""

from __future__ import annotations

import asyncio

from heddle_operator.ports.held_pods import HeldPods
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import CreatePod, DeletePod
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import Observed
from tests.unit.heddle_operator.kube.around import NODES, PLAN


class Calls:
    """A cluster that remembers what it was told."""

    def __init__(self):
        self.done = []

    async def observe(self):
        record = EpochRecord(
            epoch=1, plan=PLAN, reason="start", composition=NODES, adopted_s=0.0, outcome="open"
        )
        return Observed(epochs=(record,))

    async def apply(self, action):
        self.done.append(action)


def test_pods_are_refused_in_words_and_the_rest_is_done():
    async def main():
        inner, trigger = Calls(), Trigger()
        held = HeldPods(inner, "the template is refused", trigger)
        assert (await held.observe()).template_problem == "the template is refused"
        delete = DeletePod("tiny-b-0", "it must go")
        await held.apply(CreatePod("tiny-a-0", "a", 0, 1))
        await held.apply(delete)
        assert inner.done == [delete]
        assert await trigger.wait(0)
        (refused,) = (await held.observe()).refusals
        assert (refused.name, refused.node) == ("tiny-a-0", "a")
        assert refused.message == "the template is refused"

    asyncio.run(main())
