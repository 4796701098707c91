"""The Python file of a model, executed as a module of its own."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import ModuleType


def execute_file(source: Path, name: str) -> ModuleType:
    """Run a ``model.py`` as the module ``name``, which is kept in ``sys.modules``."""
    # A package, so that model.py may import files beside it: ``from . import blocks``.
    module = ModuleType(name)
    module.__file__ = str(source)
    module.__path__ = [str(source.parent)]
    module.__package__ = name
    sys.modules[name] = module
    exec(compile(source.read_bytes(), str(source), "exec"), module.__dict__)
    return module


def place_of(error: BaseException, folder: Path) -> str:
    """The last line of the model's own files that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(f"{folder}/")]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


@contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """Interrupt a wait for threads that never end; workers open and close models in the main one.

    Raises:
        TimeoutError: the time is over.
    """

    waits = True

    def end(*_: object) -> None:
        if waits:
            raise TimeoutError(f"it did not end within {seconds:g} s")

    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again: code may pass over the first
    try:
        try:
            yield
        finally:
            waits = False  # a signal that comes here is raised here, and never where nobody waits
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
