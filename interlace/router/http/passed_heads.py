"""Heads of requests and responses, as they are passed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from interlace.server.cache import GenerationalCache

#: Heads remembered of requests to one node and of its replies, and the largest worth that.
_SENT_KEPT: Final = 64
_HEADS_KEPT: Final = 1024
_KEPT_BYTES: Final = 2048
#: What holds between two neighbours alone (RFC 9110, 7.6.1), and what the router says itself.
_NOT_PASSED: Final = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect host "
    b"content-length interlace-elapsed-ms".split()
)


@dataclass(frozen=True, slots=True)
class _PassedHead:
    """A head in front of a body of ``length`` bytes: its lines, and all of it."""

    length: int
    lines: bytes
    whole: bytes


class PassedHeads:
    """Heads of requests as one node gets them: all but what concerns this connection alone."""

    def __init__(self, host: bytes) -> None:
        self._host = host
        self._known: GenerationalCache[bytes, _PassedHead] = GenerationalCache(_SENT_KEPT)

    def head(self, raw: bytes, length: int, waited_ms: float) -> bytes:
        """A head that was received, in front of a body of ``length`` bytes.

        ``waited_ms`` is told to the node where the request has been elsewhere before: the time
        since its arrival counts.
        """
        found = self._known.get(raw)
        if found is None or found.length != length:
            lines = _lines(raw, self._host, length)
            found = _PassedHead(length, lines, lines + b"\r\n")
            if len(raw) <= _KEPT_BYTES:
                self._known.put(raw, found)
        if waited_ms:
            return b"%bInterlace-Elapsed-Ms: %.3f\r\n\r\n" % (found.lines, waited_ms)
        return found.whole


def _lines(raw: bytes, host: bytes, length: int) -> bytes:
    """The request line and the others that are passed on, each with its line end."""
    first, *lines = raw.rstrip(b"\r\n").split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].lower() not in _NOT_PASSED]
    own = b"Host: " + host, b"Content-Length: %d" % length
    start = first.replace(b" HTTP/1.0", b" HTTP/1.1")
    return b"".join([line + b"\r\n" for line in (start, *own, *kept)])


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The head of a node's response. ``start`` is what is passed on, ``closes`` its last word."""

    status: int
    length: int
    closes: bool
    start: bytes


class ReplyHeads:
    """Heads of one node's responses, remembered by their bytes."""

    def __init__(self, node: str) -> None:
        self._by = b"Interlace-Node: " + node.encode("latin-1", "replace") + b"\r\n"
        self._known: GenerationalCache[bytes, ReplyHead] = GenerationalCache(_HEADS_KEPT)

    def read(self, raw: bytes) -> ReplyHead:
        """The meaning of a head, given with its closing empty line.

        Raises:
            ValueError: it is no head of a response of known length.
        """
        found = self._known.get(raw)
        if found is None:
            found = self._understand(raw)
            if len(raw) <= _KEPT_BYTES:
                self._known.put(raw, found)
        return found

    def _understand(self, raw: bytes) -> ReplyHead:
        first, *lines = raw[:-4].split(b"\r\n")
        if not first.startswith(b"HTTP/1.1 ") or not first[9:12].isdigit():
            raise ValueError(f"no head of an HTTP response: {raw[:64]!r}")
        length, closes = -1, False
        kept = [first, self._by[:-2]]
        for line in lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"connection":
                closes = value.strip().lower() == b"close"
                continue
            if name == b"content-length":
                length = int(value)
            kept.append(line)
        if length < 0:
            raise ValueError("a response without Content-Length")
        return ReplyHead(int(first[9:12]), length, closes, b"\r\n".join(kept) + b"\r\n\r\n")
