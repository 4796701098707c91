"""Damaged traffic: only faults of the peer, nothing kept, nothing raised that has no name."""

import random
import struct
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.server.grpc import http2_frames as h2
from interlace.server.limits import GrpcLimits
from tests.server.grpc.wirebench import HELLO, STREAM, Wire, data, head, message, request

SMALL = GrpcLimits(max_streams=8, max_heads_bytes=4096, max_heap_bytes=8192)
LIVE = "/inference.GRPCInferenceService/ServerLive"


def session() -> bytes:
    """Some of everything."""
    body = message(request(b"abc", bytes(3000), call_id="x"))
    packed = message(zlib.compress(request(b"abc")), compressed=1)
    parts = [
        HELLO,
        h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HIHI", 4, 3000, 5, 20_000)),
        head(1) + data(1, body[:50], end=False) + data(1, body[50:]),
        h2.frame(h2.PING, 0, 0, bytes(8)) + h2.window_update(0, 5000),
        head(3, STREAM) + data(3, body + body[:9], end=False),
        head(5, extra={"grpc-encoding": "deflate", "grpc-timeout": "5S"}) + data(5, packed),
        data(3, body[9:], end=False) + h2.window_update(3, 9000),
        head(7, LIVE) + data(7, message(b"")),
        h2.frame(h2.DATA, h2.PADDED, 3, b"\x04" + body + bytes(4)),
        h2.rst_stream(5, 8) + head(9) + data(9, body) + data(3, b""),
    ]
    return b"".join(parts)


SESSION = session()


def play(traffic: bytes, rng: random.Random) -> None:
    with Wire(SMALL, arena_bytes=1 << 16) as wire:
        at = 0
        while at < len(traffic) and wire.fault is None:
            size = rng.choice((1, 7, 60, 900, 20_000))
            try:
                wire.send(traffic[at : at + size])
            except BrokenPipeError:
                break
            at += size
            wire.frames()


def test_the_session_itself_is_sound() -> None:
    with Wire(SMALL, arena_bytes=1 << 16) as wire:
        wire.send(SESSION)
        assert wire.fault is None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_sessions(seed: int) -> None:
    rng = random.Random(seed)
    traffic = bytearray(SESSION)
    for _ in range(rng.choice((0, 1, 1, 2, 5, 30))):
        at = rng.randrange(len(traffic))
        match rng.randrange(4):
            case 0:
                traffic[at] = rng.randrange(256)
            case 1:
                traffic[at] ^= 1 << rng.randrange(8)
            case 2:
                del traffic[at : at + rng.choice((1, 9, 100))]
            case _:
                traffic[at:at] = rng.randbytes(rng.choice((1, 9, 100)))
    play(bytes(traffic), rng)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40)
        ),
        max_size=25,
    )
)
def test_any_frames_in_any_order(frames: list[tuple[int, int, int, bytes]]) -> None:
    traffic = HELLO + head(1) + head(3, STREAM)
    traffic += b"".join(h2.frame(*each) for each in frames)
    play(traffic, random.Random(1))
