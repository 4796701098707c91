"""One request's tries: who was asked, how long ago it came, who is asked next."""

from __future__ import annotations

import asyncio
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.router.directory import NodeDirectory, NodeLinks
from interlace.server.spans import TraceFields

#: A request ends so long after its SLO, and later by the time that its body takes at this pace.
_MARGIN_MS: Final = 1_000.0
_BYTES_PER_MS: Final = 10_000


class Forwarded:
    """A request that is passed to one node after another, until one answers or time is up.

    ``model`` is "" for what any node can answer.
    """

    __slots__ = ("_directory", "_end_ms", "_spared", "_started_ms", "_timer", "_tried", "links",
                 "model", "refused_before", "sequence", "span", "trace")  # fmt: skip

    def __init__(self, directory: NodeDirectory, nbytes: int, trace: TraceFields) -> None:
        """The request has a body of ``nbytes``; ``trace`` names its caller's span."""
        self._directory = directory
        self.span = None if directory.spans is None else directory.spans.begin(trace)
        self.trace = trace if self.span is None else self.span.fields  #: what nodes get
        self._end_ms = nbytes / _BYTES_PER_MS  #: after its first try
        self._timer: asyncio.TimerHandle | None = None  #: from the first try on
        self._started_ms = directory.now_ms()
        self._tried: tuple[str, ...] = ()
        self._spared = False  #: a node was asked again, once for a request
        self.model = ""
        self.sequence = ""  #: to which it belongs: only the node with its state is asked
        self.links: NodeLinks | None = None  #: those to the node that is asked now
        self.refused_before = False  #: a node refused it, and ``pass_refusal`` can say how

    def send(self, links: NodeLinks, waited_ms: float) -> None:
        """Send it to a node; it came ``waited_ms`` ago, 0 if no node was asked before.

        Raises:
            ServeError: the node has as many requests as it takes.
        """
        raise NotImplementedError

    def withdraw(self) -> None:
        """The node that has it is to answer no more."""
        raise NotImplementedError

    def pass_refusal(self) -> None:
        """Answer as the last node did that refused it."""
        raise NotImplementedError

    def fail(self, error: ServeError) -> None:
        """Answer with an error."""
        raise NotImplementedError

    def ask_next(self, why: str = "") -> None:
        """Send it to the node that is predicted to answer first, of those not asked yet.

        If there is none it is answered: with ``why`` the last node did not, else with the last
        refusal.
        """
        try:
            waited_ms = 0.0 if self.links is None else self._directory.now_ms() - self._started_ms
            self.send(self._next(waited_ms), waited_ms)
        except ServeError as error:
            if self.refused_before and not why:
                self.pass_refusal()
                return
            detail = f"{why}; {error.detail}" if why else error.detail
            self.fail(ServeError(error.reason, detail, retry_after_ms=error.retry_after_ms))

    def unbounded(self) -> None:
        """It may take as long as it does from now on."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self, error: str = "") -> None:
        """The request has its answer, or wants none; why there is an ``error``, if there is."""
        self.unbounded()
        if self.span is not None:
            self.span.end(error)

    def waits(self) -> bool:
        """Whether it is left to its node, which is silent: none other is left, and time is."""
        assert self.links is not None, "a node was asked"
        directory = self._directory
        now_ms = directory.now_ms()
        waited_ms = now_ms - self._started_ms
        return directory.routes.waits(self.links.node, self.model, waited_ms, now_ms)

    def lose(self, why: str, asked_in_vain: bool) -> None:
        """The node did not answer; it may be asked again unless it was ``asked_in_vain``.

        Once a request: a node may have executed what it did not answer, whenever it closed.
        """
        links = self.links
        assert links is not None, "a node was asked"
        links.lost += 1
        if not (asked_in_vain or self._spared or self.sequence):
            self._spared = True
            self._tried = tuple([name for name in self._tried if name != links.node])
        self.ask_next(f"node {links.node!r} did not answer: {why}")

    def _next(self, waited_ms: float) -> NodeLinks:
        links = self._directory.choose(self.model, self._tried, waited_ms, self.sequence)
        self._tried += (links.node,)
        self.links = links
        links.sent += 1
        if self.span is not None:
            self.span.asked(self.model, links.node)
        routes = self._directory.routes
        routes.sent(links.node, self.model)
        if self._timer is None:
            # A node reports a batch that hangs at twice its SLO, at the latest.
            slo_ms = routes.slo_ms(links.node, self.model)
            self._end_ms += slo_ms + max(_MARGIN_MS, slo_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._end_ms / 1000.0, self._over)
        return links

    def _over(self) -> None:
        links = self.links
        assert links is not None, "a node was asked"
        links.lost += 1
        self.withdraw()
        self.fail(
            ServeError(
                Reason.DEADLINE,
                f"node {links.node!r} did not answer model '{self.model}' within "
                f"{self._end_ms:.0f} ms, its SLO and a margin: ask again, and look at that node",
            )
        )
