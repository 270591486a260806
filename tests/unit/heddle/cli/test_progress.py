"""heddle/cli/progress.py: without a terminal, a long command says now and then how far it is."""

from __future__ import annotations

from heddle.cli.progress import SAY_EVERY_S, bytes_bar


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_line_comes_only_after_its_time(capsys):
    clock = Clock()
    with bytes_bar(clock) as bar:
        task = bar.add_task("step-3.e1", total=40_000_000)
        for _ in range(4):
            bar.advance(task, 10_000_000)
            clock.now_s += SAY_EVERY_S / 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["step-3.e1: 30,000,000 of 40,000,000 bytes, 3.0 MB/s"]


def test_a_short_command_says_nothing(capsys):
    with bytes_bar(Clock()) as bar:
        bar.advance(bar.add_task("step-3.e1"), 5)
    assert capsys.readouterr() == ("", "")
