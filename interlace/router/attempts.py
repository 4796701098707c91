"""One request's tries: who was asked, and how long ago it came."""

from __future__ import annotations

from interlace.core.errors import ServeError
from interlace.router.directory import NodeDirectory
from interlace.router.node_links import NodeLinks


class Attempts:
    """Asks the directory for one node after another."""

    __slots__ = ("_directory", "_model", "_spared", "_started_ms", "_tried", "links")

    def __init__(self, directory: NodeDirectory, model: str) -> None:
        """``model`` is "" for what any node can answer."""
        self._directory = directory
        self._model = model
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
        return links

    def waits(self) -> bool:
        """Whether it is left to its node, which is silent: none other is left, and time is."""
        assert self.links is not None, "a node was asked"
        return self._directory.waits(self.links.node, self._model, self.waited_ms)

    def lacks(self) -> None:
        """The node does not know the model that it said it answers."""
        assert self.links is not None, "a node was asked"
        self._directory.lacks(self.links.node, self._model)

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


def joined(why: str, error: ServeError) -> ServeError:
    """The refusal of a request whose last node did not answer (``why``), and no other can."""
    detail = f"{why}; {error.detail}" if why else error.detail
    return ServeError(error.reason, detail, retry_after_ms=error.retry_after_ms)
