"""HTTP/2 as RFC 9113 has it: frames, windows, heads, faults, and floods."""

import gc
import struct

import hpack
import pytest

from interlace.server.grpc import http2_frames as h2
from interlace.server.limits import GrpcLimits
from tests.server.grpc.wirebench import (
    HELLO,
    INFER,
    STREAM,
    Wire,
    data,
    head,
    head_block,
    message,
    outputs,
    request,
)

LONG = {f"h{i}": "z" * 100 for i in range(120)}
CALL = head(1) + data(1, message(request(b"abc")))


def test_every_cut_of_the_bytes_reads_the_same() -> None:
    whole = HELLO + head(1) + data(1, message(request(b"abc", b"x" * 300, call_id="i")))
    for cut in range(1, len(whole)):
        with Wire() as wire:
            wire.send(whole[:cut])
            wire.send(whole[cut:])
            answer, _ = wire.answers(wire.frames(), 1)
            assert outputs(answer) == ("i", [b"abc", b"x" * 300])


def test_byte_by_byte() -> None:
    with Wire() as wire:
        for byte in HELLO + CALL:
            wire.send(bytes((byte,)))
        answer, _ = wire.answers(wire.frames(), 1)
        assert outputs(answer) == ("", [b"abc"])


def test_a_message_in_many_padded_frames() -> None:
    big = bytes(range(256)) * 700
    body = message(request(big))
    with Wire() as wire:
        wire.send(HELLO + head(1))
        for at in range(0, len(body), 10_000):
            piece = body[at : at + 10_000]
            padded = bytes((7,)) + piece + b"\0" * 7
            end = h2.END_STREAM if at + 10_000 >= len(body) else 0
            wire.send(h2.frame(h2.DATA, h2.PADDED | end, 1, padded))
        answer, _ = wire.answers(wire.frames(), 1)
        assert len(answer) > 65_535 - 5  # as much as our window has room for
        wire.send(h2.window_update(0, 1 << 20) + h2.window_update(1, 1 << 20))
        rest, _ = wire.answers(wire.frames(), 1)
        assert outputs(answer + rest) == ("", [big])


def test_large_frames_land_in_place() -> None:
    big = bytes(range(256)) * 4000
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)))
        wire.send(h2.window_update(0, 1 << 30))
        body = message(request(big, b"tail"))
        wire.send(head(1) + data(1, body[:1_000_000], end=False) + data(1, body[1_000_000:]))
        answer, _ = wire.answers(wire.frames(), 1)
        assert outputs(answer) == ("", [big, b"tail"])


def test_answers_wait_for_the_window_and_take_turns() -> None:
    big = bytes(100_000)
    with Wire() as wire:
        wire.send(HELLO)
        for stream in (1, 3):
            wire.send(head(stream) + data(stream, message(request(big))))
        got = {1: b"", 3: b""}
        for _ in range(60):
            for frame in wire.frames():
                if frame.kind == h2.DATA:
                    got[frame.stream] += frame.payload
            if len(got[1]) > 60_000 and len(got[1]) > len(got[3]) > 20_000:
                break  # the second did not wait for the end of the first
            for stream in (0, 1, 3):
                wire.send(h2.window_update(stream, 9_000))
        else:
            raise AssertionError({k: len(v) for k, v in got.items()})
        for stream in (0, 1, 3):
            wire.send(h2.window_update(stream, 1 << 20))
        for frame in wire.frames():
            if frame.kind == h2.DATA:
                got[frame.stream] += frame.payload
        assert outputs(got[1])[1] == outputs(got[3])[1] == [big]


def test_a_smaller_initial_window_takes_back_what_was_granted() -> None:
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        wire.send(CALL)
        assert not [each for each in wire.frames() if each.kind == h2.DATA]
        wire.send(h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1000)))
        answer, _ = wire.answers(wire.frames(), 1)
        assert outputs(answer) == ("", [b"abc"])


@pytest.mark.parametrize("model", ["echo", "held"])
def test_calls_leave_nothing_to_the_garbage_collector(model: str) -> None:
    with Wire() as wire:
        wire.send(HELLO + CALL)
        wire.plane.hold = model == "held"
        wire.frames()
        gc.collect()
        gc.disable()
        try:
            for number in range(3, 203, 2):
                wire.send(head(number) + data(number, message(request(b"abc"))))
                if wire.plane.hold:
                    wire.send(h2.rst_stream(number, h2.CANCEL))
                wire.frames()
            assert gc.collect() < 20, "every call left objects that know each other"
        finally:
            gc.enable()


def test_heads_in_pieces_with_priority_and_padding() -> None:
    block = head_block()
    first = bytes((3,)) + b"\0\0\0\0\x10" + block[:20] + b"\0" * 3
    flags = h2.PADDED | h2.PRIORITISED
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.HEADERS, flags, 1, first))
        wire.send(h2.frame(h2.CONTINUATION, 0, 1, block[20:30]))
        wire.send(h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[30:]))
        wire.send(data(1, message(request(b"abc"))))
        answer, _ = wire.answers(wire.frames(), 1)
        assert outputs(answer) == ("", [b"abc"])


def test_compressed_heads_keep_their_meaning_while_the_table_moves() -> None:
    encoder = hpack.Encoder()
    with Wire() as wire:
        wire.send(HELLO)
        for i in range(40):
            fields = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", INFER),
                (":authority", "test"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("x-changing", str(i // 3)),  # new entries push the others down the table
            ]
            number = 2 * i + 1
            block = encoder.encode(fields)
            wire.send(h2.frame(h2.HEADERS, h2.END_HEADERS, number, block))
            wire.send(data(number, message(request(b"abc", call_id=str(i)))))
            answer, _ = wire.answers(wire.frames(), number)
            assert outputs(answer) == (str(i), [b"abc"])


def test_unknown_frames_and_late_frames_are_ignored() -> None:
    with Wire() as wire:
        wire.send(HELLO + h2.frame(0xBE, 0xFF, 5, b"whatever") + CALL)
        wire.send(h2.window_update(1, 10) + h2.rst_stream(1, 8) + data(1, b"late"))
        wire.send(h2.frame(h2.PRIORITY, 0, 1, bytes(5)))
        assert wire.fault is None
        assert outputs(wire.answers(wire.frames(), 1)[0]) == ("", [b"abc"])


def test_a_reset_stream_is_cancelled_and_its_memory_comes_back() -> None:
    with Wire() as wire:
        wire.plane.hold = True
        wire.send(HELLO + CALL + head(3) + data(3, message(request(bytes(500)))[:400], end=False))
        assert wire.arena.used_bytes > 0
        wire.send(h2.rst_stream(1, h2.CANCEL) + h2.rst_stream(3, h2.CANCEL))
        assert wire.plane.cancelled == [1]
        assert wire.arena.used_bytes == 0


def test_after_goaway_running_calls_are_finished() -> None:
    with Wire() as wire:
        wire.send(HELLO + head(1))
        wire.connection.drain()
        wire.send(data(1, message(request(b"abc"))) + head(3))
        frames = wire.frames()
        assert outputs(wire.answers(frames, 1)[0]) == ("", [b"abc"])
        assert [each.kind for each in frames if each.stream == 3] == [h2.RST_STREAM]
        assert h2.GOAWAY in [each.kind for each in frames]
        assert wire.connection.done


@pytest.mark.parametrize(
    ("code", "bytes_in"),
    [
        (h2.PROTOCOL_ERROR, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        (h2.PROTOCOL_ERROR, h2.PREFACE + h2.frame(h2.PING, 0, 0, bytes(8))),
        (h2.PROTOCOL_ERROR, HELLO + data(1, b"")),
        (h2.PROTOCOL_ERROR, HELLO + data(0, b"x")),
        (h2.PROTOCOL_ERROR, HELLO + head(2)),
        (h2.PROTOCOL_ERROR, HELLO + head(1) + head(1)),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.HEADERS, 0, 1, b"") + data(1, b"")),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.CONTINUATION, 4, 1, b"")),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.PUSH_PROMISE, 4, 1, bytes(4))),
        (h2.PROTOCOL_ERROR, HELLO + h2.rst_stream(1, 0)),
        (h2.PROTOCOL_ERROR, HELLO + h2.window_update(5, 1)),
        (h2.PROTOCOL_ERROR, HELLO + head(1) + h2.frame(h2.DATA, h2.PADDED, 1, b"\x09abc")),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.PING, 0, 1, bytes(8))),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.SETTINGS, 0, 1)),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.SETTINGS, 0, 0, b"\0\x05\0\0\0\x01")),
        (h2.PROTOCOL_ERROR, HELLO + h2.frame(h2.SETTINGS, 0, 0, b"\0\x02\0\0\0\x02")),
        (h2.FRAME_SIZE_ERROR, HELLO + h2.frame(h2.SETTINGS, 0, 0, b"\0\x05\0")),
        (h2.FRAME_SIZE_ERROR, HELLO + h2.frame(h2.SETTINGS, h2.ACK, 0, bytes(6))),
        (h2.FRAME_SIZE_ERROR, HELLO + h2.frame(h2.PING, 0, 0, b"short")),
        (h2.FRAME_SIZE_ERROR, HELLO + h2.frame(h2.WINDOW_UPDATE, 0, 0, b"abc")),
        (h2.FRAME_SIZE_ERROR, HELLO + head(1) + b"\x20\0\0\0\0\0\0\0\x01"),
        (h2.FLOW_CONTROL_ERROR, HELLO + h2.window_update(0, 0)),
        (h2.FLOW_CONTROL_ERROR, HELLO + h2.window_update(0, h2.MAX_WINDOW)),
        (h2.FLOW_CONTROL_ERROR, HELLO + h2.frame(h2.SETTINGS, 0, 0, b"\0\x04\x80\0\0\0")),
        (h2.STREAM_CLOSED, HELLO + CALL + data(1, b"x")),
        (h2.COMPRESSION_ERROR, HELLO + h2.frame(h2.HEADERS, 4, 1, b"\xff\xff\xff\xff")),
        (h2.COMPRESSION_ERROR, HELLO + h2.frame(h2.HEADERS, 4, 1, b"\x20" * 3 + head_block())),
        (h2.COMPRESSION_ERROR, HELLO + h2.frame(h2.HEADERS, 4, 1, b"\x3f\x81\x01" * 3)),
        (h2.ENHANCE_YOUR_CALM, HELLO + h2.frame(h2.HEADERS, 4, 1, bytes(20_000))),
        (h2.ENHANCE_YOUR_CALM, HELLO + head(1, INFER, LONG)),
    ],
)  # fmt: skip
def test_a_peer_at_fault_is_told_and_cut_off(code: int, bytes_in: bytes) -> None:
    with Wire() as wire:
        wire.plane.hold = True
        wire.send(bytes_in)
        assert wire.fault is not None and wire.fault.code == code, wire.fault
        last = wire.frames()[-1]
        assert last.kind == h2.GOAWAY
        assert struct.unpack_from(">II", last.payload)[1] == code


def test_a_malformed_head_resets_its_stream_alone() -> None:
    bad = hpack.Encoder().encode([(":method", "POST"), ("x", "y"), (":path", INFER)])
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, bad))
        wire.send(head(3) + data(3, message(request(b"abc"))))
        frames = wire.frames()
        assert (h2.RST_STREAM, 1) in [(each.kind, each.stream) for each in frames]
        assert outputs(wire.answers(frames, 3)[0]) == ("", [b"abc"])


def flood(wire: Wire, piece: bytes, times: int) -> None:
    for _ in range(times):
        wire.send(piece * 200)
        wire.frames()
        if wire.fault is not None:
            return


@pytest.mark.parametrize(
    "piece",
    [
        h2.frame(h2.PING, 0, 0, bytes(8)),
        h2.frame(h2.SETTINGS, 0, 0),
        h2.frame(h2.PRIORITY, 0, 1, bytes(5)),
        h2.frame(0xBE, 0, 0),
        data(1, b"", end=False),
        h2.window_update(0, 1),
        h2.window_update(1, 1),
    ],
)
def test_floods_are_stopped(piece: bytes) -> None:
    with Wire(GrpcLimits(control_per_s=200.0)) as wire:
        wire.send(HELLO + head(1, STREAM))
        flood(wire, piece, 40)
        assert wire.fault is not None and wire.fault.code == h2.ENHANCE_YOUR_CALM


def test_what_honest_clients_do_is_no_flood() -> None:
    with Wire(GrpcLimits(control_per_s=1.0)) as wire:
        wire.send(HELLO + head(1, STREAM))
        for number in range(3, 203, 2):
            wire.send(head(number) + data(number, message(request(b"x")), end=False))
            wire.send(data(number, b""))  # the end in a frame of its own
            wire.send(data(1, message(request(b"y")), end=False))
            wire.send(h2.window_update(0, 100) + h2.window_update(1, 100))
            wire.frames()
        assert wire.fault is None


def test_rapid_resets_are_stopped() -> None:
    limits = GrpcLimits(resets_per_s=100.0)
    with Wire(limits) as wire:
        wire.send(HELLO)
        number = 1
        while wire.fault is None and number < 4000:
            wire.send(head(number) + h2.rst_stream(number, h2.CANCEL))
            number += 2
        assert wire.fault is not None and wire.fault.code == h2.ENHANCE_YOUR_CALM
        assert number < 1000


def test_streams_beyond_the_limit_are_refused_and_come_again() -> None:
    with Wire(GrpcLimits(max_streams=2)) as wire:
        wire.plane.hold = True
        wire.send(HELLO)
        for number in (1, 3, 5):
            wire.send(head(number) + data(number, message(request(b"abc"))))
        refused = [each for each in wire.frames() if each.kind == h2.RST_STREAM]
        assert [(each.stream, each.payload[-1]) for each in refused] == [(5, h2.REFUSED_STREAM)]


def test_an_endless_header_block_is_cut_off() -> None:
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.HEADERS, 0, 1, b""))
        flood(wire, h2.frame(h2.CONTINUATION, 0, 1, b"\x00" * 100), 10)
        assert wire.fault is not None and wire.fault.code == h2.ENHANCE_YOUR_CALM


@pytest.mark.sources  # a method is replaced
def test_who_reads_nothing_is_read_no_more() -> None:
    with Wire(GrpcLimits(max_backlog_bytes=100_000, max_streams=10_000)) as wire:
        wire.send(HELLO + h2.window_update(0, 1 << 30))
        wire.connection.writer.flush = lambda: None  # type: ignore[method-assign]
        for number in range(1, 401, 2):
            wire.send(head(number) + data(number, message(request(bytes(10_000)))))
            if wire.connection.writer.congested:  # the loop then waits for room only
                break
        assert 100_000 <= wire.connection.writer.backlog_bytes < 120_000


def test_stalled_streams_and_connections_are_cut_off() -> None:
    with Wire(GrpcLimits(stall_timeout_ms=3000.0)) as wire:
        wire.send(HELLO + head(1) + data(1, message(request(b"abc"))[:9], end=False))
        wire.send(head(3, STREAM))
        wire.send(h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        wire.send(head(5) + data(5, message(request(b"abc"))))
        for _ in range(5):
            assert wire.connection.look(1000.0)
            wire.turn()
        frames = wire.frames()
        _, fields = wire.answers(frames, 1)
        assert fields["grpc-status"] == "4"
        assert (h2.RST_STREAM, 5) in [(each.kind, each.stream) for each in frames]
        assert list(wire.connection.streams) == [3]  # an idle stream may stay


def test_what_a_client_leaves_unread_is_counted() -> None:
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1000)))
        wire.send(head(1, STREAM))
        for _ in range(50):
            wire.send(data(1, message(request(bytes(400))), end=False))
        assert wire.connection.look(1000.0)
        assert 18_000 < wire.connection.kept_bytes < 25_000
        wire.send(h2.window_update(1, 1 << 20))
        assert wire.connection.look(1000.0)
        assert wire.connection.kept_bytes == 0


def test_asking_more_does_not_hide_a_stall() -> None:
    with Wire(GrpcLimits(stall_timeout_ms=3000.0)) as wire:
        wire.send(HELLO + h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1000)))
        wire.send(head(1, STREAM))
        for _ in range(6):
            wire.send(data(1, message(request(bytes(4000))), end=False))
            assert wire.connection.look(1000.0)
            wire.turn()
        assert not wire.connection.streams
