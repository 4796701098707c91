"""How far a simulation has come: a bar on a terminal, a line a run in a log."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class SimulationProgress:
    """A context manager; ``begin`` names a run, calling it tells the part that is done."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console, self._runs, self._number = console, runs, 0
        self._bar = Progress(
            TextColumn("{task.description:<36}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("simulating", total=float(runs))

    def __enter__(self) -> SimulationProgress:
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

    def begin(self, name: str) -> None:
        """The next run is this one."""
        self._number += 1
        if self._console.is_terminal:
            self._bar.update(self._task, description=name, completed=float(self._number - 1))
        elif self._runs > 1:
            self._console.print(f"{self._number} of {self._runs}: {name}")

    def __call__(self, part: float) -> None:
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._number - 1 + part)
