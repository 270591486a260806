"""The live view: nodes x GPUs with the layers they hold, throughput, loss, and every stall by part.

Invariant: reads the recorder and the cluster, changes neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from heddle.cli.stalls import stall_line
from heddle.train.run import LocalRun
from heddle.train.screen.grid import Cell, cells, sparkline
from heddle_operator.state.epoch_record import EpochRecord
from planner.cost.evaluate import cost_of
from planner.wording import counted
from worker.contract import StepRecord

KEPT_LINES = 6


class LiveView:
    """Renders a run as it is now; rich asks for it four times a second."""

    def __init__(self, run: LocalRun, keys: str = "") -> None:
        self._run = run
        self._keys = keys
        self._log: list[str] = []

    def say(self, line: str) -> None:
        """Keep the last lines of what is going on."""
        self._log = [*self._log, line][-KEPT_LINES:]

    def __rich__(self) -> RenderableType:
        """The whole screen."""
        recorder = self._run.recorder
        title = f"Heddle  step {recorder.step}/{self._run.job.spec.steps}  {recorder.phase}"
        parts: list[RenderableType] = [Panel(self._nodes(), title=title, title_align="left")]
        parts.append(self._throughput())
        parts += [Text(line) for line in self._measured()]
        parts.append(self._loss())
        parts += [Text(line) for line in self._stalls()]
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._log]
        if self._keys:
            parts.append(Text(self._keys, style="bold"))
        return Group(*parts)

    def _lived(self) -> list[EpochRecord]:
        recorder = self._run.recorder
        return [record for record in recorder.epochs if recorder.steps_of(record.epoch)]

    def _nodes(self) -> RenderableType:
        lived = self._lived()
        plan = lived[-1].plan if lived else None
        before = lived[-2].plan if len(lived) > 1 else None
        nodes = tuple(self._run.cluster.nodes[name] for name in sorted(self._run.cluster.nodes))
        table = Table.grid(padding=(0, 2))
        found = cells(self._run.job.workload.model, nodes, plan, before)
        for node in nodes:
            row = [cell for cell in found if cell.node == node.name]
            state = " leaving" if node.leaving_at_s is not None else ""
            table.add_row(
                Text(node.name, style="bold"),
                Text(f"{node.gpu_type}{state}", style="yellow" if state else "cyan"),
                *(_cell_text(cell) for cell in row),
            )
        blocks = self._run.job.workload.model.layers
        legend = (
            f"E embedding, 1-{blocks} blocks, H head, 1/2 half of them; green: moved here; "
            "was: before"
        )
        idle = sorted({cell.node for cell in found if not cell.now})
        why = [Text(idle_reason(self._run, lived, idle), style="dim")] if idle else []
        return Group(table, *why, Text(legend, style="dim"))

    def _throughput(self) -> Text:
        lived = self._lived()
        if not lived:
            return Text(f"starting: {self._run.recorder.message}")
        run, record = self._run, lived[-1]
        workload = run.job.workload
        predicted = cost_of(record.plan, workload, record.composition, run.profile)
        step_s = run.recorder.step_s(record.epoch)
        measured = f"{workload.global_batch / step_s:.1f}" if step_s else "..."
        return Text(
            f"epoch {record.epoch} ({record.reason})  {measured} samples/s measured, "
            f"{predicted.throughput_samples_s:.1f} predicted  "
            f"{', '.join(map(str, record.plan.templates))}"
        )

    def _measured(self) -> list[str]:
        """Figures of the newest step beside its loss."""
        lived = self._lived()
        steps = self._run.recorder.steps_of(lived[-1].epoch) if lived else ()
        return [measured_line(steps[-1])] if steps and steps[-1].tokens else []

    def _loss(self) -> RenderableType:
        losses = self._run.recorder.losses()
        if not losses:
            return Text("")
        reference = self._run.reference_losses
        low, high = min(losses), max(losses)
        lines = [Text(f"loss {losses[-1]:5.2f} {sparkline(losses, 60, low, high)}", style="green")]
        held_out = self._run.recorder.evaluations
        if held_out:
            newest = held_out[max(held_out)]
            lines.append(Text(f"held-out loss {newest.loss:.3f} after step {newest.step}"))
        if reference:
            line = sparkline(reference[: len(losses)], 60, low, high)
            lines.append(Text(f"reference  {line}", style="magenta"))
        return Group(*lines)

    def _stalls(self) -> list[str]:
        recorder = self._run.recorder
        lines = []
        for record in self._lived()[1:]:
            stall = recorder.stall(record.epoch)
            if stall is not None:
                name = f"epoch {record.epoch} ({record.reason})"
                restart_s, kill_s = self._run.restart_s, recorder.from_kill_s(record.epoch)
                lines.append(stall_line(name, stall.stall_s, stall.parts, restart_s, kill_s))
        return lines + [
            f"{counted(refused.composition.gpus, 'GPU')}: {refused.reason}"
            for refused in recorder.refusals.values()
        ]


def idle_reason(run: LocalRun, lived: Sequence[EpochRecord], idle: Sequence[str]) -> str:
    """Why GPUs of these nodes train nothing."""
    recorder = run.recorder
    if not lived:
        return f"idle: no step is trained yet: {recorder.message}"
    planned = {node.name: node.gpus for node in lived[-1].composition.nodes}
    nodes = run.cluster.nodes
    if all(planned.get(name, 0) >= nodes[name].gpus for name in idle):
        return "idle: no plan that was found is faster with them"
    return f"idle: {recorder.message}"


def measured_line(step: StepRecord) -> str:
    """Tokens a second, MFU, where the time goes, memory; what is not known is left out."""
    words = [f"{step.tokens_per_s or 0:,.0f} tokens/s"]
    if step.mfu is not None:
        words.append(f"MFU {100 * step.mfu:.1f} %")
    parts = ("forward", "backward", "waiting", "sync")
    seconds = {part: getattr(step, f"{part}_s") for part in parts}
    told = [f"{part} {1000 * s:.0f}" for part, s in seconds.items() if s is not None]
    if told:
        words.append(f"ms {' '.join(told)}")
    if step.learning_rate is not None:
        words.append(f"rate {step.learning_rate:.2g}")
    if step.memory_bytes:
        words.append(f"{step.memory_bytes / 1e9:.2f} GB a rank")
    return "  ".join(words)


def _cell_text(cell: Cell) -> Text:
    if not cell.now:
        return Text("[idle]" if not cell.before else f"[idle, was {cell.before}]", style="dim")
    was = f" was {cell.before}" if cell.before and cell.before != cell.now else ""
    return Text(f"[{cell.now}{was}]", style="green" if cell.has_moved else "white")
