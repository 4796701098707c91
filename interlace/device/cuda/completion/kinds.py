"""The ways to learn that a batch has ended, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

from interlace.device.cuda.completion.base import Completions
from interlace.device.cuda.completion.flag_poller import poll_loop
from interlace.device.cuda.driver.api import Driver

CompletionKind = Literal["flags", "blocking"]
KINDS: Final[tuple[CompletionKind, ...]] = get_args(CompletionKind)


def default_kind(note: Callable[[str], None]) -> CompletionKind:
    """Flags where something compiles their poller, else blocking events; ``note`` hears why."""
    try:
        poll_loop()
    except OSError as error:
        note(f"ends of batches are waited for by threads, which costs latency: {error}")
        return "blocking"
    return "flags"


def completions(kind: CompletionKind, driver: Driver, lanes: int, rest_us: int = 0) -> Completions:
    """Completion of ``lanes`` lanes, numbered from 0; ``rest_us`` as ``FlagPoller`` has it.

    Raises:
        CudaError: the driver refused.
        OSError: ``flags`` where nothing compiles their loop.
    """
    match kind:
        case "flags":
            from interlace.device.cuda.completion.flag_poller import FlagPoller

            return FlagPoller(driver, lanes, rest_us)
        case "blocking":
            from interlace.device.cuda.completion.blocking_events import BlockingEvents

            return BlockingEvents(driver, lanes)
