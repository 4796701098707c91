"""Heads of requests to a node and of its responses, and the end of a response in chunks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.server.errors import HttpError
from interlace.server.http.bodies import ChunkedBody
from interlace.server.http.request_head import CHUNKED
from interlace.server.limits import GenerationalCache, HeapBudget
from interlace.server.spans import TraceFields

#: Heads remembered of requests to one node and of its replies, and the largest worth that.
_SENT_KEPT: Final = 64
_HEADS_KEPT: Final = 1024
_KEPT_BYTES: Final = 2048
#: What holds between two neighbours alone (RFC 9110, 7.6.1), and what the router says itself.
_NOT_PASSED: Final = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect host "
    b"content-length interlace-elapsed-ms interlace-node".split()
)
_TRACE: Final = (b"traceparent", b"tracestate")
#: Status lines and fields of responses (RFC 9112, 4 and 5). Nothing else is passed on: a bare CR or
#: LF, a NUL or a folded line ends a field for one parser and not for another.
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_LENGTH: Final = re.compile(rb"\d{1,15}")
#: No bound of such a body: it is not held.
_ENDLESS: Final = 1 << 62
_WITHOUT_BODY: Final = frozenset((204, 205, 304))


@dataclass(frozen=True, slots=True)
class _PassedHead:
    """A head in front of a body of ``length`` bytes: its lines, and all of it."""

    length: int
    lines: bytes
    whole: bytes


class RequestHeads:
    """Heads of requests as one node gets them: all but what concerns this connection alone."""

    def __init__(self, host: bytes) -> None:
        self._host = host
        self._known: GenerationalCache[bytes, _PassedHead] = GenerationalCache(_SENT_KEPT)

    def head(
        self, raw: bytes, length: int, waited_ms: float, trace: TraceFields | None = None
    ) -> bytes:
        """A received head as this node gets it, in front of a body of ``length`` bytes.

        ``waited_ms`` is the time since the arrival of a request that was at another node before;
        the node receives it, and counts it. Else it is 0. ``trace`` stands for the caller's own
        fields of its trace, which are passed on if it is ``None``: for all requests, or for none.
        """
        found = self._known.get(raw)
        if found is None or found.length != length:
            lines = _lines(raw, self._host, length, () if trace is None else _TRACE)
            found = _PassedHead(length, lines, lines + b"\r\n")
            if len(raw) <= _KEPT_BYTES:
                self._known.put(raw, found)
        if not waited_ms and not trace:
            return found.whole
        own = [f"{name}: {value}\r\n" for name, value in trace or ()]
        if waited_ms:
            own.append(f"Interlace-Elapsed-Ms: {waited_ms:.3f}\r\n")
        return b"%b%b\r\n" % (found.lines, "".join(own).encode("latin-1"))


def _lines(raw: bytes, host: bytes, length: int, dropped: Collection[bytes]) -> bytes:
    """The request line and the others that are passed on, each with its line end."""
    first, *lines = raw.rstrip(b"\r\n").split(b"\r\n")
    own = b"Host: " + host, b"Content-Length: %d" % length
    start = first.replace(b" HTTP/1.0", b" HTTP/1.1")
    return b"".join([line + b"\r\n" for line in (start, *own, *_passed(lines, dropped))])


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The head of a node's response. ``start`` is what is passed on, ``closes`` its last word.

    ``length`` is that of its body, or ``CHUNKED``. It is ``final`` if another node would answer the
    same.
    """

    status: int
    length: int
    closes: bool
    start: bytes
    final: bool


class ReplyHeads:
    """Heads of one node's responses, remembered by their bytes."""

    def __init__(self, node: str) -> None:
        self._by = b"Interlace-Node: " + node.encode()
        self._known: GenerationalCache[bytes, ReplyHead] = GenerationalCache(_HEADS_KEPT)

    def read(self, raw: bytes) -> ReplyHead:
        """The meaning of a head, given with its closing empty line.

        Raises:
            ValueError: it is no head of a response that can be passed on.
        """
        found = self._known.get(raw)
        if found is None:
            found = self._understand(raw)
            if len(raw) <= _KEPT_BYTES:
                self._known.put(raw, found)
        return found

    def _understand(self, raw: bytes) -> ReplyHead:
        first, *lines = raw[:-4].split(b"\r\n")
        start = _STATUS_LINE.fullmatch(first)
        if start is None or int(start[1]) in _WITHOUT_BODY:
            raise ValueError(f"no head of an HTTP response with a body: {raw[:64]!r}")
        for line in lines:
            if not _FIELD.fullmatch(line):
                raise ValueError(f"a malformed header field: {line[:64]!r}")
        lengths, codings = (_values(lines, n) for n in (b"content-length", b"transfer-encoding"))
        if codings == [b"chunked"] and not lengths:
            length, size = b"Transfer-Encoding: chunked", CHUNKED
        elif codings:
            raise ValueError("a response with Transfer-Encoding")
        elif len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
            raise ValueError(f"{len(lengths)} Content-Length, or one that is no number")
        else:
            length, size = b"Content-Length: " + lengths[0], int(lengths[0])
        closes = b"close" in _options(lines)
        head = b"\r\n".join([first, self._by, length, *_passed(lines)]) + b"\r\n\r\n"
        final = bool(_values(lines, b"interlace-final"))
        return ReplyHead(int(start[1]), size, closes, head, final)


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].lower()


def _values(lines: Sequence[bytes], name: bytes) -> list[bytes]:
    """Return the values of all header fields of that name."""
    return [line.partition(b":")[2].strip(b" \t") for line in lines if _name(line) == name]


def _options(lines: Sequence[bytes]) -> frozenset[bytes]:
    """Return what ``Connection`` names, in small letters."""
    named = b",".join(_values(lines, b"connection")).lower().split(b",")
    return frozenset([one.strip(b" \t") for one in named])


def _passed(lines: Sequence[bytes], besides: Collection[bytes] = ()) -> list[bytes]:
    """Return the header fields that are not for this connection alone, nor ``besides``."""
    dropped = _NOT_PASSED.union(_options(lines), besides)
    return [line for line in lines if _name(line) not in dropped]


class ChunkedEnd(ChunkedBody):
    """Finds the end of a body in chunks, which comes in pieces of any size; it keeps none."""

    def __init__(self) -> None:
        super().__init__(_ENDLESS, HeapBudget(0))

    def feed(self, data: bytes) -> bool:
        """Whether the body ends with this piece.

        Raises:
            HttpError: it is malformed, or goes on behind its end.
        """
        if self.take(data, 0, len(data)) < len(data):
            raise HttpError(400, "more than its last chunk")
        return self.done

    def _keep(self, piece: memoryview) -> None:
        """It is passed on."""
