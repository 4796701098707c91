"""Progress of a sweep on the terminal: a bar with an estimate, or a line a model in a log."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from interlace.profiling.progress import SweepStep


class ProfilingProgress:
    """A context manager; its value takes each ``SweepStep``. The bar appears with the first."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._model = ""
        self._bar = Progress(
            TextColumn("{task.description:<40}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("measuring", total=None, left="", visible=False)

    def __enter__(self) -> ProfilingProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, step: SweepStep) -> None:
        if not self._console.is_terminal:
            self._line(step)
            return
        self._bar.update(
            self._task,
            description=f"measuring {step.model}: batch {step.batch} at {step.share_pct} %",
            completed=step.done,
            total=step.total,
            left=f"about {step.left_s:.0f} s left",
            visible=True,
        )

    def _line(self, step: SweepStep) -> None:
        if step.model != self._model:
            self._model = step.model
            done = f"{step.done} of {step.total} points done, about {step.left_s:.0f} s left"
            self._console.print(f"measuring {step.model} ({done})")
