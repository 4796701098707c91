"""Progress of long work: a bar on a terminal, a line at times in a log."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from interlace.profiling.sweep import TELL_S, SweepStep


class ProgressBar:
    """A context manager. The bar appears with the first update and is gone at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = self._model = ""
        self._told_s = 0.0
        self._bar = Progress(
            TextColumn("{task.description:<40}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, visible=False)

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away; a second call does nothing."""
        if self._console.is_terminal:
            self._bar.stop()

    def update(self, text: str, done: float, total: float, line: str = "") -> None:
        """What is done now, and how much of it all. In a log ``line`` stands once, if given."""
        if self._console.is_terminal:
            self._bar.update(
                self._task, description=text, completed=done, total=total, visible=True
            )
        elif line and line != self._last_line:
            self._last_line = line
            self._console.print(line)

    def sweep_step(self, step: SweepStep) -> None:
        """A point of a model's sweep is about to be measured; in a log, a line at times."""
        share = f"batch {step.batch} at {step.share_pct} %"
        done = f"{step.done} of {step.total} points done, about {step.left_s:.0f} s left"
        now_s = time.monotonic()
        told = step.model == self._model and now_s - self._told_s < TELL_S
        line = "" if told else f"measuring {step.model} ({done})"
        self._model = step.model
        if line:
            self._told_s = now_s
        self.update(f"measuring {step.model}: {share}", step.done, step.total, line)
