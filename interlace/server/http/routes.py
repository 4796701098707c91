"""Paths to what answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from interlace.server.api_keys import Access
from interlace.server.http.responses import JSON
from interlace.server.limits import RouteKind


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """An administrative request: names that stand in its path, and its body."""

    names: tuple[str, ...]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Server-sent events without an end: ``latest`` makes one, at most every ``every_s``."""

    latest: Callable[[], bytes]
    every_s: float


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Body and headers of a response that is not an inference, or ``events`` for a body."""

    body: bytes = b""
    status: int = 200
    media: str = JSON
    headers: str = ""
    events: EventSource | None = None


#: Answers at once, or later; raises ``ServeError``.
Respond = Callable[[AdminRequest], HttpResponse | Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path. ``pattern`` has ``{field}`` where a name stands; ``access`` is the key it needs.

    ``respond`` holds the methods of an administrative route; the other kinds take POST.
    ``stream`` marks an inference route that answers as server-sent events. ``title`` and the form
    of a POST's JSON, ``body``, are for the description of routes (``openapi``).
    """

    pattern: str
    kind: RouteKind = RouteKind.ADMIN
    respond: Mapping[str, Respond] = field(default_factory=dict)
    access: Access = Access.USE
    stream: bool = False
    title: str = ""
    body: type | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        if self.kind in (RouteKind.INFER, RouteKind.GENERATE):
            return ("POST",)
        return (*self.respond, "HEAD") if "GET" in self.respond else tuple(self.respond)


SEGMENTS_MAX: Final = 16


class RouteTable:
    """Routes by path; no two may match the same one but by a literal against a placeholder."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
        for route in routes:
            pattern = tuple(route.pattern.split("/")[1:])
            self._by_length.setdefault(len(pattern), []).append((pattern, route))
        for same in self._by_length.values():
            same.sort(key=lambda entry: sum(map(is_field, entry[0])))

    def match(self, path: str) -> tuple[Route, tuple[str, ...]] | None:
        """The route of a path without its query, and the names that stand in it, decoded."""
        segments = path.split("/", SEGMENTS_MAX)[1:]
        for pattern, route in self._by_length.get(len(segments), ()):
            if _fits(pattern, segments):
                names = [s for p, s in zip(pattern, segments, strict=True) if is_field(p)]
                return route, tuple(unquote(name) for name in names)
        return None


def is_field(segment: str) -> bool:
    """Whether any name may stand there."""
    return segment.startswith("{")


def _fits(pattern: tuple[str, ...], segments: list[str]) -> bool:
    return all(
        bool(segment) if is_field(part) else part == segment
        for part, segment in zip(pattern, segments, strict=True)
    )
