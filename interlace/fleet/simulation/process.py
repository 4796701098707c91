"""A process in virtual time: its clock, which may stop or end, and its asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from interlace.runtime.clock import Call, Clock

_Result = TypeVar("_Result")
_Args = TypeVarTuple("_Args")
#: The protocol of a client's connection, made when there is one.
MakeProtocol = Callable[[], asyncio.Protocol]
#: Opens a connection of a loop to a host, by name; raises ``OSError``.
Connect = Callable[
    ["SimLoop", str, MakeProtocol], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]
]


class SimLoop(asyncio.BaseEventLoop):
    """Makes callbacks and tasks calls of a ``Clock``; an exception ends the simulation."""

    def __init__(self, clock: Clock, connect: Connect) -> None:
        super().__init__()
        self._timer = clock
        self._connect = connect

    def run(self, call: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
        """Call something as a callback of this loop, now."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return call(*args)
        finally:
            asyncio._set_running_loop(outer)

    def time(self) -> float:
        return self._timer.now_ms() / 1000.0

    def call_soon(
        self, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._timer.call_soon(partial(_make, handle))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Args], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer.call_at(when * 1000.0, partial(_make, handle))
        return handle

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: MakeProtocol, host: str, port: int, **options: object
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self._connect(self, host, protocol_factory)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "exception" in context:
            raise context["exception"]

    def is_closed(self) -> bool:
        """Always: it holds nothing to close."""
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it where it is: it is skipped when it is due."""


def _make(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


async def _no_network(
    loop: SimLoop, host: str, make: MakeProtocol
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    raise OSError(f"this process calls no {host}")


class SimProcess:
    """A ``Clock`` whose calls wait while the process is stopped, and are dropped once it has ended.

    Calls are callbacks of ``loop``. Its time goes on meanwhile, as a machine's clock does.
    """

    def __init__(self, clock: Clock, connect: Connect = _no_network) -> None:
        self._clock = clock
        self.now_ms = clock.now_ms
        self.loop = SimLoop(self, connect)
        self._held: list[Call] = []
        self._stopped = False
        self._ended = False

    def call_at(self, at_ms: float, call: Call) -> None:
        self._clock.call_at(at_ms, lambda: self.do(call))

    def call_soon(self, call: Call) -> None:
        self._clock.call_soon(lambda: self.do(call))

    def do(self, call: Call) -> None:
        """Make a call now, or once the process goes on."""
        if self._ended:
            return
        if self._stopped:
            self._held.append(call)
        else:
            self.loop.run(call)

    def stop(self) -> None:
        """Make no call until ``go_on``."""
        self._stopped = True

    def go_on(self) -> None:
        """Make the calls that have waited, in order."""
        self._stopped = False
        held, self._held = self._held, []
        for call in held:
            self.call_soon(call)

    def end(self) -> None:
        """Make no call any more."""
        self._ended = True
        self._held = []
