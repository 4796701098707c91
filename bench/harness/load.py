"""What benchmarks have beside the load generator: gRPC calls, Poisson streams, and figures."""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from interlace.load.connections import (
    BROKEN,
    CHUNK,
    RECEIVED,
    Call,
    ClientConnection,
    EncodedCall,
)
from interlace.load.open_loop import (
    Arrival,
    ArrivalProcess,
    CallSample,
    LoadRun,
    OpenLoop,
    lags_s,
    merged,
    percentile,
    send_times,
)
from interlace.server.grpc import http2_frames as h2

#: Lateness of the generator above this part of a measured 99th percentile spoils that.
LAG_OF_P99_MAX: Final = 0.25
_WARM_S: Final = 0.3
_CONNECTIONS: Final = 256
#: A frame's size beyond which sending it apart costs less than a copy.
_LARGE: Final = 1 << 16


class GrpcCall(Call):
    """A unary gRPC call."""

    def encoded(self) -> EncodedCall:
        message = h2.PREFIX.pack(0, len(self.body)) + self.body
        pairs = {
            ":method": "POST", ":scheme": "http", ":path": self.path, ":authority": self.host,
            "te": "trailers", "content-type": "application/grpc", "user-agent": "load",
            **self.headers,
        }  # fmt: skip
        block = b"".join(h2.literal(name, value) for name, value in pairs.items())
        return EncodedCall(Http2, self.port, message, block, self.host, self.tls)


#: Statuses of a call without a message: refused or failed, and a stream that was reset.
FAILED, RESET = 500, 503


class Http2(ClientConnection):
    """One stream at a time; a reply with a message counts as 200."""

    __slots__ = ("configured", "got", "input", "left", "max_frame", "pending", "received",
                 "stream", "window", "window_first", "window_stream")  # fmt: skip

    def greet(self) -> None:
        self.stream, self.window = -1, h2.DEFAULT_WINDOW
        self.window_first, self.window_stream = h2.DEFAULT_WINDOW, 0
        self.max_frame = h2.DEFAULT_FRAME
        self.input, self.left, self.got, self.received = b"", 0, 0, 0
        self.configured = False
        self.pending: memoryview | None = None
        # The server may send as much as it likes; the grant is renewed long before it is used up.
        pairs = h2.INITIAL_WINDOW_SIZE, h2.MAX_WINDOW, h2.MAX_FRAME_SIZE, 1 << 22
        settings = h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HIHI", *pairs))
        grant = h2.window_update(0, h2.MAX_WINDOW - h2.DEFAULT_WINDOW)
        self.sock.sendall(h2.PREFACE + settings + grant)

    @property
    def greeted(self) -> bool:
        return self.configured

    def start(self, call: EncodedCall) -> None:
        self.stream += 2
        self.busy, self.got = True, 0
        self.window_stream = self.window_first
        self.pending = memoryview(call.payload)
        self._send(h2.frame(h2.HEADERS, h2.END_HEADERS, self.stream, call.head))

    def _send(self, opening: bytes = b"") -> None:
        """Send as many DATA frames as both windows allow; large ones are not copied."""
        out: list[bytes | memoryview] = [opening]
        left = self.pending
        while left is not None:
            size = min(len(left), self.max_frame, self.window, self.window_stream)
            if size <= 0:
                break
            last = size == len(left)
            flags = h2.END_STREAM if last else 0
            head = h2.HEAD.pack(size >> 8, size & 0xFF, h2.DATA, flags, self.stream)
            out.append(head)
            if size > _LARGE:
                self.write(b"".join(out))
                self.write(left[:size])
                out.clear()
            else:
                out.append(left[:size])
            self.window -= size
            self.window_stream -= size
            left = None if last else left[size:]
        self.pending = left
        if any(out):
            self.write(b"".join(out))

    def readable(self) -> int | None:
        try:
            count = self.sock.recv_into(RECEIVED)
        except BlockingIOError:
            return None
        except OSError:
            return BROKEN
        if not count:
            return BROKEN
        data = RECEIVED[self._data_in(count) : count]
        buffer, at = memoryview(self.input + bytes(data)) if self.input else data, 0
        status: int | None = None
        while len(buffer) - at >= 9:
            high, low, kind, flags, stream = h2.HEAD.unpack_from(buffer, at)
            size = high << 8 | low
            at += 9
            if kind == h2.DATA:
                self.left = size
                at += self._data_in(len(buffer) - at)
            elif len(buffer) - at < size:
                at -= 9
                break
            else:
                payload = bytes(buffer[at : at + size])
                ended = self._frame(kind, flags, stream & h2.MAX_WINDOW, payload)
                status = status if ended is None else ended
                at += size
        self.input = bytes(buffer[at:])
        return self._settle(status)

    def _data_in(self, count: int) -> int:
        """How many of the next bytes belong to the DATA frame that is being read."""
        count = min(self.left, count)
        self.left -= count
        self.got += count
        self.received += count
        return count

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> int | None:
        """Handle a frame without data; the status if it ends the call."""
        if kind == h2.HEADERS and flags & h2.END_STREAM and stream == self.stream:
            return 200 if self.got else FAILED
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self._settings(payload)
        elif kind == h2.PING and not flags & h2.ACK:
            self.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.WINDOW_UPDATE:
            self._window(stream, h2.word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW)
        elif kind == h2.RST_STREAM and stream == self.stream:
            return RESET
        elif kind == h2.GOAWAY:
            return BROKEN
        return None

    def _settings(self, payload: bytes) -> None:
        self.configured = True
        for key, value in h2.read_settings(payload):
            if key == h2.INITIAL_WINDOW_SIZE:
                self.window_stream += value - self.window_first
                self.window_first = value
            elif key == h2.MAX_FRAME_SIZE:
                self.max_frame = min(value, CHUNK)
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _window(self, stream: int, size: int) -> None:
        if stream == 0:
            self.window += size
        elif stream == self.stream:
            self.window_stream += size

    def _settle(self, status: int | None) -> int | None:
        if self.received > 1 << 29:
            self.write(h2.window_update(0, self.received))
            self.received = 0
        if status is not None:
            self.busy = False
        elif self.pending is not None:
            self._send()
        return status


def poisson(rates_rps: Sequence[float], seconds: float, seed: int) -> list[Arrival]:
    """Independent Poisson streams merged, one a rate; the tag is the rate's position."""
    process = ArrivalProcess.POISSON
    streams = enumerate(rates_rps)
    return list(merged([send_times(process, r, seconds, seed * 1009 + tag) for tag, r in streams]))


def open_loop(call: EncodedCall, rate_rps: float, seconds: float, seed: int = 1) -> LoadRun:
    """Poisson arrivals of one call for so many seconds; up to 2 s more for answers.

    All connections are open before, and what is sent in the first 0.3 s is left out: a generator
    that still opens some is late by itself.
    """
    arrivals = poisson([rate_rps], _WARM_S + seconds, seed)
    run = OpenLoop([call], arrivals, _CONNECTIONS, _CONNECTIONS).run(2.0)
    samples = [one for one in run.samples if one.due_s >= _WARM_S]
    return LoadRun(samples, run.seconds - _WARM_S, run.busy)


def ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1e3, 3)


def figures(run: LoadRun, keep: Callable[[CallSample], bool] = lambda _: True) -> dict[str, Any]:
    """Counts by status, answered requests per second, latency of the good ones in ms.

    ``lag_p99_ms`` is the generator's own lateness; ``None`` in a closed loop, where nothing is due.
    """
    kept = [sample for sample in run.samples if keep(sample)]
    good = [sample.latency_s for sample in kept if sample.status == 200]
    return {
        "calls": len(kept),
        "ok": len(good),
        "statuses": {str(k): v for k, v in sorted(Counter(s.status for s in kept).items())},
        "seconds": round(run.seconds, 3),
        "rps": round(len(good) / run.seconds, 1),
        "p50_ms": ms(percentile(good, 50)),
        "p99_ms": ms(percentile(good, 99)),
        "max_ms": ms(max(good, default=None)),
        "lag_p99_ms": ms(percentile(lags_s(kept), 99)),
        "client_busy": round(run.busy, 3),
    }


def lagged(found: Mapping[str, Any]) -> bool:
    """Whether the 99th percentile in such ``figures`` is in good part the generator's own lag."""
    lag_ms, p99_ms = found["lag_p99_ms"], found["p99_ms"]
    return lag_ms is not None and p99_ms is not None and lag_ms > LAG_OF_P99_MAX * p99_ms


def goodput_rps(samples: Sequence[CallSample], slo_ms: float, seconds: float) -> float:
    """Replies within the SLO, counted from when each call was due, per second offered."""
    return sum(s.status == 200 and s.latency_s * 1e3 <= slo_ms for s in samples) / seconds
