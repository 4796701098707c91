"""The page over HTTP: the file itself, frames of now, and questions answered by commands."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.user_errors import InputError
from interlace.engine.snapshot import EngineSnapshot
from interlace.runtime.runtime import Observer
from interlace.server.api_keys import Access
from interlace.server.http.responses import EVENTS
from interlace.server.http.routes import AdminRequest, EventSource, HttpResponse, Route
from interlace.server.page.frames import PageTally
from interlace.shm.children import yield_cores

#: How long an answer may take, what it may hold, and how many questions may wait for it.
_ANSWER_S: Final = 60.0
_ANSWER_BYTES: Final = 64 << 20
_WAITING: Final = 4
_FRAMES: Final = 240
_ERROR_CHARS: Final = 4_000

#: How `interlace plan --draft` begins a plan that it tries, and where that goes.
_DRAFT: Final = b'{"trying":'
Draft = asyncio.Future[msgspec.Raw]
_WORD: Final = re.compile(r"^[A-Za-z0-9_.+/-]{1,64}$")

#: What follows `interlace plan` for these rates (requests/s) and SLOs (ms) by model. The folder is
#: for files that it writes; it is gone when the answer is there.
PlanWords = Callable[[Path, Mapping[str, tuple[float, float]]], Sequence[str]]


class PageAnswer(Struct, frozen=True):
    """The command that anybody can repeat, how it ended, and what it printed.

    ``scenario`` is the file that the command names, if it was made for it.
    """

    command: str
    status: int
    out: msgspec.Raw | str
    error: str
    scenario: str = ""


class Questions:
    """Answers questions with a ``PageAnswer`` as JSON.

    ``log`` is the file that is asked about, if any; ``planned`` says how to plan, if that can be
    asked. One command runs at a time, at low priority.
    """

    def __init__(self, log: Path | None, planned: PlanWords | None) -> None:
        self._log = log
        self._planned = planned
        self._one = asyncio.Semaphore(1)
        self._asked = 0
        self._numbers = count()
        self._trying: dict[int, asyncio.Task[bytes]] = {}  #: answers that follow a draft

    async def __call__(self, question: Mapping[str, Any]) -> bytes:
        """The answer to one question, or the draft of a plan and the number of its answer.

        Raises:
            ServeError: the question is none, or too many wait already.
        """
        if question.get("ask") == "tried":
            told = self._trying.pop(_whole(question, "number"), None)
            if told is None:
                raise bad_input("number: no such plan is tried: ask for it again")
            return await told
        if self._asked >= _WAITING:
            raise ServeError(Reason.OVERLOADED, "the page's questions wait already: ask again")
        self._asked += 1
        draft: Draft = asyncio.get_running_loop().create_future()
        answer = asyncio.ensure_future(self._in_turn(question, draft))
        await asyncio.wait((answer, draft), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        number = next(self._numbers)
        self._trying[number] = answer
        if len(self._trying) > _WAITING:  # nobody came for it
            self._trying.pop(next(iter(self._trying))).cancel()
        return msgspec.json.encode({"number": number, "draft": draft.result()})

    async def _in_turn(self, question: Mapping[str, Any], draft: Draft) -> bytes:
        try:
            async with self._one:
                return await self._answer(question, draft)
        finally:
            self._asked -= 1

    async def _answer(self, question: Mapping[str, Any], draft: Draft) -> bytes:
        match question.get("ask"):
            case "history":
                return await self._replay("--history", str(_FRAMES))
            case "why":
                return await self._replay("--request", str(_whole(question, "request")))
            case "what-if":
                return await self._replay("--json", *_changes(question))
            case "trace":
                return await self._trace(question)
            case "plan":
                return await self._plan(question, draft)
        raise bad_input(
            "the question: ask is missing; expected history, why, what-if, trace or plan"
        )

    async def _replay(self, *words: str) -> bytes:
        if self._log is None:
            raise bad_input("no log is kept: start with interlace serve --log FILE")
        return msgspec.json.encode(await _answered(["replay", str(self._log), *words]))

    async def _trace(self, question: Mapping[str, Any]) -> bytes:
        """The trace itself, of so many seconds until a time."""
        until_s, last_s = str(_whole(question, "until_s")), str(_whole(question, "last_s"))
        with TemporaryDirectory(prefix="interlace-page-") as folder:
            file = Path(folder) / "trace.json"
            words = ("--trace", str(file), "--last-s", last_s, "--until-s", until_s)
            told = await self._replay(*words)
            if not file.exists():
                raise bad_input(msgspec.json.decode(told, type=PageAnswer).error)
            if file.stat().st_size > _ANSWER_BYTES:
                raise ServeError(Reason.TOO_LARGE, "the trace is too long: ask for fewer seconds")
            return file.read_bytes()

    async def _plan(self, question: Mapping[str, Any], draft: Draft) -> bytes:
        if self._planned is None:
            raise bad_input("there is nothing to plan for here")
        asked = _asked_models(question)
        with TemporaryDirectory(prefix="interlace-page-") as folder:
            try:
                words = ["plan", *self._planned(Path(folder), asked), "--json"]
            except InputError as error:
                raise bad_input(str(error)) from None
            if kind := question.get("gpu"):
                words += ["--gpu", _word(kind, "gpu")]
            answer = await _answered(words, draft)
            scenario = Path(folder) / "scenario.toml"
            if scenario.exists():
                command = answer.command.replace(f"{folder}/", "")
                text = scenario.read_text()
                answer = msgspec.structs.replace(answer, command=command, scenario=text)
            return msgspec.json.encode(answer)


def _asked_models(question: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    try:
        models = msgspec.convert(question.get("models"), dict[str, tuple[float, float]])
    except msgspec.ValidationError as error:
        raise bad_input(f"models: {error}; expected NAME: [requests/s, SLO in ms]") from None
    if not models or len(models) > 1000:
        raise bad_input(f"models: found {len(models)}; expected 1 to 1000")
    for name, (rate_rps, slo_ms) in models.items():
        if not 0 <= rate_rps <= 1e9 or not 1e-3 <= slo_ms <= 1e9:
            raise bad_input(f"models: {name}: expected a rate from 0 and an SLO above 0")
    return models


def _changes(question: Mapping[str, Any]) -> list[str]:
    changes = question.get("changes")
    if not isinstance(changes, list) or not 1 <= len(changes) <= 6:
        raise bad_input("changes: expected a list of 1 to 6 such as gpus=-1")
    found: list[str] = []
    for change in changes:
        for part in str(change).split(","):
            _word(part.replace("=", "", 1), "changes")
        found += ["--what-if", str(change)]
    return found


def _word(value: object, key: str) -> str:
    """A value that is one word of a command, and never an option, a file or code."""
    text = str(value)
    if not _WORD.match(text) or text.startswith(("-", "/", ".")) or ":" in text:
        raise bad_input(f"{key}: found {text[:64]!r}; expected a name or a number")
    return text


def _whole(question: Mapping[str, Any], key: str) -> int:
    value = question.get(key)
    if not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise bad_input(f"{key}: expected a whole number")
    return value


async def _answered(words: Sequence[str], draft: Draft | None = None) -> PageAnswer:
    """Run a command of ours, which prints a line for the ``draft`` first if there is to be one."""
    more = () if draft is None else ("--draft",)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "interlace", *words, *more, limit=_ANSWER_BYTES,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    yield_cores(child.pid)
    try:
        async with asyncio.timeout(_ANSWER_S):
            out, error = await _both(child, draft)
        status = await child.wait()
    except TimeoutError:
        raise ServeError(Reason.DEADLINE, f"no answer within {_ANSWER_S:g} s") from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # planning has processes of its own
            await child.wait()
    told = error.decode(errors="replace")[-_ERROR_CHARS:]
    return PageAnswer("interlace " + shlex.join(words), status, _plain(out), told)


def _plain(out: bytes) -> msgspec.Raw | str:
    """What a command printed: as JSON where it is that, else as text."""
    try:
        msgspec.json.decode(out)
    except (msgspec.DecodeError, RecursionError):
        return out.decode(errors="replace")
    return msgspec.Raw(out)


async def _both(child: asyncio.subprocess.Process, draft: Draft | None) -> tuple[bytes, bytes]:
    assert child.stdout is not None and child.stderr is not None
    printed = _within(child.stdout) if draft is None else _after(draft, child.stdout)
    out, error = await asyncio.gather(printed, _within(child.stderr))
    return out, error


async def _after(draft: Draft, stream: asyncio.StreamReader) -> bytes:
    first = await stream.readline()
    if not first.startswith(_DRAFT):
        return first + await _within(stream)
    draft.set_result(msgspec.Raw(first[len(_DRAFT) : -len(b"}\n")]))
    return await _within(stream)


async def _within(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while part := await stream.read(1 << 16):
        found += part
        if len(found) > _ANSWER_BYTES:
            raise ServeError(Reason.TOO_LARGE, "the answer is too long: ask for less")
    return bytes(found)


#: No frame was wanted for so long: nobody watches any more.
_UNWATCHED_MS: Final = 10_000.0
#: Viewers share a frame that is not older; of many models theirs are renewed less often.
_FRAME_MS: Final = 200.0
_MS_A_MODEL: Final = 1.0

#: The answer to a question by its kind and fields, as JSON.
Ask = Callable[[Mapping[str, Any]], Awaitable[bytes]]
#: Has a runtime show its events to an observer; what is returned ends that.
Observe = Callable[[Observer], Callable[[], None]]

_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class LiveFrames:
    """Frames of a running engine. Its events are counted only while somebody watches."""

    _snapshot: Callable[[bool], EngineSnapshot]  #: asked with models, or for the accelerators alone
    _now_ms: Callable[[], float]
    _observe: Observe
    _tally: PageTally = field(default_factory=PageTally)
    _unobserve: Callable[[], None] | None = None
    _asked_ms: float = 0.0
    _frame: bytes = b""
    _models: int = 0
    _made_ms: float = -1e9
    _models_ms: float = -1e9

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
    about: Mapping[str, Any], latest: Callable[[], bytes] | None, ask: Ask, every_s: float = 0.25
) -> list[Route]:
    """The page at ``/``. ``about`` says what it is of.

    ``latest`` gives what it draws now, as JSON, if it is live; each open page gets it ``every_s``.
    """

    def page(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(page_html(), media="text/html; charset=utf-8", headers=_HEADERS)

    def told(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(_ENCODE(about))

    def frames(asked: AdminRequest) -> HttpResponse:
        assert latest is not None
        return HttpResponse(media=EVENTS, events=EventSource(latest, every_s))

    async def answer(asked: AdminRequest) -> HttpResponse:
        try:
            question = msgspec.json.decode(asked.body, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise bad_input(f"failed to parse the question: {error}") from error
        return HttpResponse(await ask(question))

    routes = [
        Route("/", respond={"GET": page}, access=Access.PROBE, title="The page"),
        Route("/page/about", respond={"GET": told}, title="What the page is of"),
        Route("/page/ask", respond={"POST": answer}, title="Answer a question by a command"),
    ]
    live = Route("/page/events", respond={"GET": frames}, title="What it draws now, as events")
    return [*routes, live] if latest is not None else routes


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
