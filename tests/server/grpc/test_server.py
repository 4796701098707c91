"""The gRPC server's life: busy ports, draining, the end, and what its calls may leave behind."""

import os
import socket
import time
from typing import Any

import grpc
import pytest

from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from interlace.server.errors import GrpcStatus
from interlace.server.grpc.frame_writer import FrameWriter
from interlace.server.grpc.headers import CallHead
from interlace.server.grpc.stream import GrpcStream
from interlace.server.limits import GrpcLimits, RefusalBucket
from tests.processes import memory_maps, open_files
from tests.server.fakes import wait_until
from tests.server.grpc.fakes import Main, client, unary
from tests.server.grpc.test_calls import failure, raw
from tests.server.grpc.wirebench import STREAM, request


def test_arenas_that_are_gone_are_unmapped(echo: Main) -> None:
    with client(echo.port) as channel:
        before = arenas_of(os.getpid())
        for size in range(1, 41):
            answer = raw(channel)(request(b"x" * size * 100, model="apart"), timeout=20)
            assert ModelInferResponse.FromString(answer).raw_output_contents == [b"x" * size * 100]
        echo.settled()
    assert arenas_of(os.getpid()) == before


def arenas_of(pid: int) -> tuple[int, int]:
    """Descriptors and mappings of arenas that a process has."""
    lists = open_files(pid), memory_maps(pid).splitlines()
    return tuple(sum("interlace-arena" in line for line in lines) for lines in lists)


def test_closing_cancels_what_runs() -> None:
    with Main() as main, client(main.port) as channel:
        stuck = raw(channel).future(request(b"x", model="never"))  # type: ignore[attr-defined]
        wait_until(lambda: bool(main.plane.calls))
        main.do(main.server.close)
        assert stuck.exception(20).code() is grpc.StatusCode.UNAVAILABLE
        main.settled()


def test_draining_answers_what_runs_and_takes_no_more() -> None:
    with Main() as main, client(main.port) as channel:
        running = raw(channel).future(request(b"abc", model="slow-300"))  # type: ignore[attr-defined]
        idle = channel.stream_stream(STREAM, _registered_method=False)(_until(running.done))
        wait_until(lambda: bool(main.plane.calls))
        main.wait(main.server.drain(10.0))
        answer = ModelInferResponse.FromString(running.result(10))
        assert answer.raw_output_contents == [b"abc"]
        assert idle.code() is grpc.StatusCode.UNAVAILABLE
        assert not main.plane.busy
        error = failure(raw(channel), request(b"x"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


def _until(done: Any) -> Any:
    while not done():
        time.sleep(0.01)
    return
    yield b""


def test_draining_gives_up_in_time() -> None:
    with Main() as main, client(main.port) as channel:
        stuck = raw(channel).future(request(b"x", model="never"))  # type: ignore[attr-defined]
        wait_until(lambda: bool(main.plane.calls))
        main.wait(main.server.drain(0.2))
        assert not stuck.done()
        main.do(main.server.close)
        assert stuck.exception(20) is not None


@pytest.mark.process
@pytest.mark.parametrize("compressed", [False, True])
def test_long_typed_contents_hold_up_nobody(echo: Main, compressed: bool) -> None:
    """3 million elements of no bytes take 0.6 s to read."""
    elements = [b"ab", *[b""] * 3_000_000]
    made = ModelInferRequest(model_name="echo", id="long")
    made.inputs.add(name="A", datatype="BYTES", shape=[len(elements)])
    made.inputs[0].contents.bytes_contents.extend(elements)
    how = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    with client(echo.port, compression=how) as channel:
        asked = unary(channel).future(made.SerializeToString(), timeout=60)
        waits_s = []
        while not asked.done():
            began_s = time.monotonic()
            echo.do(lambda: None)
            waits_s.append(time.monotonic() - began_s)
            time.sleep(0.002)
        assert asked.result().id == "long"
        (answer,) = asked.result().raw_output_contents
        assert answer == b"\2\0\0\0ab" + bytes(4) * 3_000_000
    assert max(waits_s) < 0.25
    echo.settled()


@pytest.mark.process
def test_long_typed_contents_are_judged_as_short_ones(echo: Main) -> None:
    made = ModelInferRequest(model_name="echo")
    made.inputs.add(name="A", datatype="INT8", shape=[100_000])
    made.inputs[0].contents.int_contents.extend([1] * 99_999 + [200])
    stayed = ModelInferRequest(model_name="echo")
    stayed.CopyFrom(made)
    stayed.raw_input_contents.append(b"x")
    stayed.inputs[0].contents.int_contents[-1] = 2
    with client(echo.port) as channel:
        error = failure(raw(channel), made.SerializeToString())
        assert "element 99999 is 200, which INT8 cannot hold" in (error.details() or "")
        error = failure(raw(channel), stayed.SerializeToString())
        assert "must not be specified when using raw_input_contents" in (error.details() or "")
    echo.settled()


@pytest.mark.process
def test_a_call_that_is_cancelled_while_its_head_is_read_leaves_nothing(echo: Main) -> None:
    made = ModelInferRequest(model_name="echo")
    made.inputs.add(name="A", datatype="BYTES", shape=[2_000_000])
    made.inputs[0].contents.bytes_contents.extend([b""] * 2_000_000)
    with client(echo.port) as channel:
        asked = [unary(channel).future(made.SerializeToString(), timeout=60) for _ in range(2)]
        # Both heads are there and one is being read, or it was, on a machine this busy.
        wait_until(lambda: echo.arena.used_bytes > 8_000_000 or any(one.done() for one in asked))
        for one in asked:
            one.cancel()
        echo.settled()


def test_a_connection_rests_after_refusals_where_there_are_too_many() -> None:
    with Main() as main:
        loop = main.server._loop
        main.do(lambda: setattr(loop, "_refusals", RefusalBucket(per_s=0.5, most_s=1.5)))
        with client(main.port) as refused, client(main.port) as other:
            failure(raw(refused), request(b"x", model="refuse-overloaded"))  # at once
            later = raw(refused).future(request(b"x"))  # type: ignore[attr-defined]
            raw(other)(request(b"x"), timeout=20)
            assert not later.done()
            later.result(20)
        main.settled()


def test_a_call_that_ends_well_without_a_message_is_no_refusal() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = FrameWriter(ours, 1 << 20, lambda: None)
        for number, status, refused in ((1, GrpcStatus.OK, 0), (3, GrpcStatus.UNAVAILABLE, 1)):
            stream = GrpcStream(number, CallHead(), 65_535, writer, {}, GrpcLimits())
            stream.fail(status, "")
            assert writer.refused == refused
