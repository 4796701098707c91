"""One request's tries: who was asked, and how long ago it came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.router.directory import NodeDirectory, NodeLinks

#: A request ends so long after its SLO, and later by the time that its body takes at this pace.
_MARGIN_MS: Final = 1_000.0
_BYTES_PER_MS: Final = 10_000


class Attempts:
    """Asks the directory for one node after another, until the request's time is over."""

    __slots__ = ("_directory", "_end_ms", "_late", "_model", "_spared", "_started_ms", "_timer",
                 "_tried", "links")  # fmt: skip

    def __init__(
        self,
        directory: NodeDirectory,
        model: str,
        nbytes: int,
        late: Callable[[ServeError], None],
    ) -> None:
        """``model`` is "" for what any node can answer; the request has a body of ``nbytes``.

        ``late`` is called once when no node has answered in time, unless ``end`` was called.
        """
        self._directory = directory
        self._model = model
        self._late = late
        self._end_ms = nbytes / _BYTES_PER_MS  #: after its first try
        self._timer: asyncio.TimerHandle | None = None  #: from the first try on
        self._started_ms = directory.now_ms()
        self._tried: tuple[str, ...] = ()
        self._spared = False  #: a node was asked again, once for a request
        self.links: NodeLinks | None = None  #: those to the node that is asked now

    @property
    def waited_ms(self) -> float:
        """How long ago the request came; 0 until a node was asked."""
        return 0.0 if self.links is None else self._directory.now_ms() - self._started_ms

    def next(self) -> NodeLinks:
        """Those to the node to ask now.

        Raises:
            ServeError: there is none, and why.
        """
        links = self._directory.choose(self._model, self._tried, self.waited_ms)
        self._tried += (links.node,)
        self.links = links
        links.sent += 1
        self._directory.sent(links.node, self._model)
        if self._timer is None:
            # A node reports a batch that hangs at twice its SLO, at the latest.
            slo_ms = self._directory.slo_ms(links.node, self._model)
            self._end_ms += slo_ms + max(_MARGIN_MS, slo_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._end_ms / 1000.0, self._over)
        return links

    def end(self) -> None:
        """The request has its answer, or wants none."""
        if self._timer is not None:
            self._timer.cancel()

    def waits(self) -> bool:
        """Whether it is left to its node, which is silent: none other is left, and time is."""
        assert self.links is not None, "a node was asked"
        return self._directory.waits(self.links.node, self._model, self.waited_ms)

    def lost(self, why: str, asked_in_vain: bool) -> str:
        """The node did not answer; it may be asked again unless it was ``asked_in_vain``.

        Once a request: a node may have executed what it did not answer, whenever it closed.
        Returns what the caller is told if nobody else can be asked.
        """
        links = self.links
        assert links is not None, "a node was asked"
        links.lost += 1
        if not (asked_in_vain or self._spared):
            self._spared = True
            self._tried = tuple([name for name in self._tried if name != links.node])
        return f"node {links.node!r} did not answer: {why}"

    def _over(self) -> None:
        links = self.links
        assert links is not None, "a node was asked"
        links.lost += 1
        self._late(
            ServeError(
                Reason.DEADLINE,
                f"node {links.node!r} did not answer model '{self._model}' within "
                f"{self._end_ms:.0f} ms, its SLO and a margin: ask again, and look at that node",
            )
        )


def joined(why: str, error: ServeError) -> ServeError:
    """The refusal of a request whose last node did not answer (``why``), and no other can."""
    detail = f"{why}; {error.detail}" if why else error.detail
    return ServeError(error.reason, detail, retry_after_ms=error.retry_after_ms)
