"""The page over HTTP: the file itself, frames of now, and questions to commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from interlace.core.errors import bad_input
from interlace.engine.snapshot import EngineSnapshot
from interlace.runtime.runtime import Observer
from interlace.server.api_keys import Access
from interlace.server.http.routes import AdminRequest, HttpResponse, Route
from interlace.server.page.frames import PageTally

#: Nobody has asked for a frame for so long: nobody watches any more.
_UNWATCHED_MS: Final = 10_000.0
#: Viewers share a frame that is not older; of many models theirs are renewed less often.
_FRAME_MS: Final = 200.0
_MS_A_MODEL: Final = 1.0

#: The answer to a question by its kind and fields, as JSON.
Ask = Callable[[Mapping[str, Any]], Awaitable[bytes]]
#: Has a runtime show its events to an observer; what is returned ends that.
Observe = Callable[[Observer], Callable[[], None]]

_ENCODE: Final = msgspec.json.Encoder().encode


class LiveFrames:
    """Frames of a running engine. Its events are counted only while somebody asks for frames."""

    def __init__(
        self,
        snapshot: Callable[[bool], EngineSnapshot],
        now_ms: Callable[[], float],
        observe: Observe,
    ) -> None:
        """``snapshot`` is asked with models, or for the accelerators alone."""
        self._snapshot = snapshot
        self._now_ms = now_ms
        self._observe = observe
        self._tally = PageTally()
        self._unobserve: Callable[[], None] | None = None
        self._asked_ms = 0.0
        self._frame = b""
        self._models = 0
        self._made_ms = self._models_ms = -1e9

    def latest(self) -> bytes:
        """A frame of now, as JSON."""
        now_ms = self._now_ms()
        self._asked_ms = now_ms
        if self._unobserve is None:
            self._tally = PageTally()
            self._unobserve = self._observe(self._count)
            self._models_ms = -1e9
        if now_ms - self._made_ms >= _FRAME_MS:
            models = now_ms - self._models_ms >= self._models * _MS_A_MODEL
            engine = self._snapshot(models)
            self._frame = _ENCODE(self._tally.frame(engine, now_ms, models))
            self._made_ms = now_ms
            if models:
                self._models, self._models_ms = len(engine.models), now_ms
        return self._frame

    def _count(self, now_ms: float, event: Any, commands: Any) -> None:
        if now_ms - self._asked_ms > _UNWATCHED_MS and self._unobserve is not None:
            self._unobserve()
            self._unobserve = None
            return
        self._tally(now_ms, event, commands)


def page_routes(
    about: Mapping[str, Any], latest: Callable[[], bytes] | None, ask: Ask
) -> list[Route]:
    """The page at ``/``. ``about`` says what it is of; ``latest`` gives frames, of what is live."""

    def page(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(page_html(), media="text/html; charset=utf-8", headers=_HEADERS)

    def told(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(_ENCODE(about))

    def frame(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(latest() if latest is not None else b"null")

    async def answer(asked: AdminRequest) -> HttpResponse:
        try:
            question = msgspec.json.decode(asked.body, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise bad_input(f"failed to parse the question: {error}") from error
        return HttpResponse(await ask(question))

    return [
        Route("/", respond={"GET": page}, access=Access.PROBE),
        Route("/page/about", respond={"GET": told}),
        Route("/page/now", respond={"GET": frame}),
        Route("/page/ask", respond={"POST": answer}),
    ]


#: Nothing from elsewhere is loaded, and no other page may hold this one in a frame.
_HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
)


@cache
def page_html() -> bytes:
    """The page in one file: ours, with uPlot in it."""
    folder = files("interlace.server.page")
    text = (folder / "page.html").read_text()
    script = (folder / "page.js").read_text()
    vendored = folder / "uplot"
    licence = (vendored / "LICENSE").read_text()
    parts = {
        "/*uplot.css*/": (vendored / "uPlot.min.css").read_text(),
        "/*uplot.js*/": f"/* uPlot\n{licence}*/\n{(vendored / 'uPlot.iife.min.js').read_text()}",
        "/*page.css*/": (folder / "page.css").read_text(),
        "/*page.js*/": script,
    }
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text.encode()
