"""Messages by hand against the protobuf library, whole and in pieces."""

import time
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.proto.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from interlace.server.grpc.infer_decoder import DecodedInfer, InferSink, UnreadInfer
from interlace.server.grpc.infer_head import read_head, typed_bytes
from interlace.server.grpc.infer_wire import (
    FINAL_RESPONSE,
    addressee,
    response,
    scan,
    stream_error,
    stream_response,
    varint,
)
from interlace.server.limits import GrpcLimits
from interlace.shm.blocks import ArenaBlocks
from tests.server.grpc.wirebench import Wire, request

values = st.lists(st.binary(max_size=300), max_size=5)


@st.composite
def requests(draw: st.DrawFn) -> Any:
    made = ModelInferRequest(model_name=draw(st.text(max_size=5)), id=draw(st.text(max_size=5)))
    for i, value in enumerate(draw(values)):
        made.inputs.add(name=f"IN{i}", datatype="UINT8", shape=[len(value)])
        made.raw_input_contents.append(value)
    if draw(st.booleans()):
        made.parameters["priority"].uint64_param = draw(st.integers(0, 2**64 - 1))
    return made


@given(requests())
def test_scan_agrees_with_protobuf(made: Any) -> None:
    encoded = made.SerializeToString()
    head, call_id, raws = scan(encoded)
    assert call_id == made.id
    found = [encoded[at : at + size] for at, size in zip(raws[::2], raws[1::2], strict=True)]
    assert found == list(made.raw_input_contents)
    made.ClearField("id")
    made.ClearField("raw_input_contents")
    assert ModelInferRequest.FromString(head) == made


def test_scan_keeps_fields_it_does_not_know() -> None:
    unknown = b"\xa0\x06\x96\x01" + b"\xad\x06abcd" + b"\xb1\x0612345678" + b"\xba\x06\x03xyz"
    head, call_id, raws = scan(unknown + b"\x1a\x02id" + b"\x3a\x03raw")
    assert (head, call_id, len(raws)) == (unknown, "id", 2)


@given(st.binary(max_size=60))
def test_scan_of_anything_ends(junk: bytes) -> None:
    try:
        head, _, _ = scan(junk)
        read_head(head)
    except ServeError as error:
        assert error.reason is Reason.BAD_INPUT


pieces = st.sampled_from(
    [b"\x0a\x01m", b"\x0a\x00", b"\x8a\x00\x01n", b"\x12\x017", b"\x92\x80\x00\x018",
     b"\x8a\x80\x80\x80\x10\x01o", b"\x0a\x81\x00p", b"\x08\x05", b"\x20\x0a", b"\x3a\x02\x0a\x00",
     b"\x1a\x01i", b"\x0d\x0a\x01xy", b"\xa0\x06\x96\x01"]
)  # fmt: skip


@given(st.lists(pieces | st.binary(max_size=3), max_size=8))
def test_who_is_addressed_is_read_as_protobuf_reads_it_or_refused(parts: list[bytes]) -> None:
    message = b"".join(parts)
    try:
        found = addressee(message)
        read = ModelInferRequest.FromString(message)
    except (ServeError, DecodeError):
        return
    assert found == (read.model_name, read.model_version)


def fail_on_error(result: DecodedInfer | UnreadInfer | ServeError) -> None:
    assert not isinstance(result, ServeError), result


def sent(wire: Wire, encoded: bytes, *sizes: int) -> DecodedInfer | UnreadInfer | ServeError:
    """The one answer to a message that comes in pieces of these sizes, over and over."""
    got: list[DecodedInfer | UnreadInfer | ServeError] = []
    sink, at = InferSink(wire.decoder, len(encoded), got.append), 0
    for size in cycle(sizes or (len(encoded),)):
        if at >= len(encoded):
            break
        sink.feed(memoryview(encoded)[at : at + size])
        at += size
    sink.finish()
    (found,) = got
    return found


def tensors_of(wire: Wire, decoded: DecodedInfer) -> list[bytes]:
    spans = [tensor.span for tensor in decoded.inputs]
    return [bytes(wire.arena.view(span.offset, span.nbytes)) for span in spans]


@settings(max_examples=60, deadline=None)
@given(requests(), st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_pieces_come_to_the_same_as_the_whole(made: Any, cuts: list[int]) -> None:
    encoded = made.SerializeToString()
    with Wire() as wire:
        pieces = sent(wire, encoded, *cuts)
        assert isinstance(pieces, DecodedInfer)
        whole = wire.decoder.whole(memoryview(encoded))
        assert isinstance(whole, DecodedInfer)
        for decoded in (pieces, whole):
            assert decoded.id == made.id
            found = tensors_of(wire, decoded)
            assert found == list(made.raw_input_contents)
            decoded.blocks.free()
        assert pieces.request is whole.request


@given(st.binary(max_size=200), st.integers(1, 9))
def test_pieces_of_anything_end(junk: bytes, size: int) -> None:
    with Wire(arena_bytes=1 << 16) as wire:
        result = sent(wire, junk, size)
        if isinstance(result, DecodedInfer):
            result.blocks.free()


def test_an_abandoned_message_leaves_nothing() -> None:
    encoded = request(bytes(5000), bytes(5000))
    with Wire() as wire:
        sink = InferSink(wire.decoder, len(encoded), lambda decoded: None)
        sink.feed(memoryview(encoded)[:7000])
        assert wire.arena.used_bytes > 0
        sink.abandon()


def test_tensors_that_are_only_announced_take_no_memory_from_others() -> None:
    tensors = [np.random.default_rng(seed).bytes(90_000) for seed in range(2)]
    announced, honest = request(bytes(180_000)), request(*tensors)
    with Wire(arena_bytes=2 << 20) as wire:
        waiting = [InferSink(wire.decoder, len(announced), fail_on_error) for _ in range(40)]
        for sink in waiting:
            sink.feed(memoryview(announced)[:2000])
        assert wire.arena.used_bytes <= wire.arena.size_bytes * 3 // 4
        got: list[DecodedInfer | UnreadInfer | ServeError] = []
        sink, at = InferSink(wire.decoder, len(honest), got.append), 0
        while at < len(honest):  # as a connection does: into place where there is one
            landing = sink.landing()
            if landing is None:
                size = 1000
                sink.feed(memoryview(honest)[at : at + size])
            else:
                size = min(3000, len(landing))
                landing[:size] = honest[at : at + size]
                sink.landed(size)
            at += size
        sink.finish()
        (decoded,) = got
        assert isinstance(decoded, DecodedInfer)
        assert tensors_of(wire, decoded) == tensors
        decoded.blocks.free()
        for sink in waiting:
            sink.abandon()


def test_a_tensor_that_finds_no_room_as_it_comes_is_refused() -> None:
    encoded = request(bytes(250_000))
    with Wire(arena_bytes=1 << 20) as wire:
        got: list[DecodedInfer | UnreadInfer | ServeError] = []
        others = ArenaBlocks(wire.arena)
        others.alloc(400_000)
        sink = InferSink(wire.decoder, len(encoded), got.append)
        sink.feed(memoryview(encoded)[:2000])
        for size in (200_000, 100_000, 50_000, 25_000):
            others.alloc(size)
        while (landing := sink.landing()) is not None:
            sink.landed(len(landing))
        sink.feed(memoryview(encoded)[100_000:])
        sink.finish()
        (error,) = got
        assert isinstance(error, ServeError) and error.reason is Reason.OVERLOADED
        others.free()


def test_a_full_arena_refuses_and_swallows_the_rest() -> None:
    encoded = request(bytes(3000), bytes(60_000))
    with Wire(arena_bytes=1 << 16) as wire:
        error = sent(wire, encoded)
        assert isinstance(error, ServeError) and error.reason is Reason.TOO_LARGE
        assert wire.arena.used_bytes == 0


def test_fields_are_bounded() -> None:
    """Each costs the event loop a microsecond: a message of 1 MB took 0.2 s."""
    flood = request(b"x") + b"\x78\x00" * 500_000
    with Wire() as wire:
        began_s = time.process_time()
        error = sent(wire, flood, 1 << 16)
        with pytest.raises(ServeError, match="more than 4096 fields"):
            wire.decoder.whole(memoryview(flood))
        assert time.process_time() - began_s < 0.1
        assert isinstance(error, ServeError) and "more than 4096 fields" in error.detail


def test_heads_are_bounded() -> None:
    made = ModelInferRequest(model_name="m" * 5000)
    encoded = made.SerializeToString()
    with Wire(GrpcLimits(max_heads_bytes=1000)) as wire:
        error = sent(wire, encoded)
        assert isinstance(error, ServeError) and error.reason is Reason.TOO_LARGE


@given(values, st.text(max_size=8))
def test_responses_agree_with_protobuf(outputs: list[bytes], call_id: str) -> None:
    head = ModelInferResponse(model_name="m", model_version="1")
    for i, value in enumerate(outputs):
        head.outputs.add(name=f"O{i}", datatype="UINT8", shape=[len(value)])
    expected = ModelInferResponse.FromString(head.SerializeToString())
    expected.id = call_id
    expected.raw_output_contents.extend(outputs)
    parts, nbytes = response(head.SerializeToString(), call_id, outputs)
    assert nbytes == sum(map(len, parts))
    assert ModelInferResponse.FromString(b"".join(parts)) == expected
    wrapped, size = stream_response(parts, nbytes)
    assert size == sum(map(len, wrapped))
    assert ModelStreamInferResponse.FromString(b"".join(wrapped)).infer_response == expected


def test_the_final_flag_and_errors_of_a_stream() -> None:
    flagged = ModelInferResponse.FromString(FINAL_RESPONSE)
    assert flagged.parameters["triton_final_response"].bool_param is True
    error = ModelStreamInferResponse.FromString(stream_error("why é", "7"))
    assert (error.error_message, error.infer_response.id) == ("why é", "7")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**64 - 1])
def test_varint(number: int) -> None:
    made = ModelInferRequest()
    made.parameters["p"].uint64_param = number
    assert made.SerializeToString().endswith(varint(number))


# ------------------------------------------------------------------------------- typed contents


def contents(field: str, elements: list[Any]) -> Any:
    made = ModelInferRequest()
    getattr(made.inputs.add().contents, field).extend(elements)
    return made.inputs[0].contents


@pytest.mark.parametrize(
    ("datatype", "field", "elements", "kind"),
    [
        ("BOOL", "bool_contents", [True, False], "?"),
        ("INT8", "int_contents", [-128, 127], "<i1"),
        ("INT16", "int_contents", [-5], "<i2"),
        ("INT32", "int_contents", [-(2**31)], "<i4"),
        ("INT64", "int64_contents", [-(2**63)], "<i8"),
        ("UINT8", "uint_contents", [255], "<u1"),
        ("UINT16", "uint_contents", [65535], "<u2"),
        ("UINT32", "uint_contents", [2**32 - 1], "<u4"),
        ("UINT64", "uint64_contents", [2**64 - 1], "<u8"),
        ("FP32", "fp32_contents", [1.5, -2.0], "<f4"),
        ("FP64", "fp64_contents", [0.1], "<f8"),
    ],
)
def test_typed_contents(datatype: str, field: str, elements: list[Any], kind: str) -> None:
    found = typed_bytes("x", datatype, contents(field, elements))
    assert found == np.array(elements, kind).tobytes()


def test_typed_bytes_get_their_lengths() -> None:
    found = typed_bytes("x", "BYTES", contents("bytes_contents", [b"ab", b""]))
    assert found == b"\x02\0\0\0ab\0\0\0\0"


@pytest.mark.parametrize(
    ("datatype", "field", "elements", "text"),
    [
        ("INT8", "int_contents", [1, 200], "element 1 is 200, which INT8 cannot hold"),
        ("UINT16", "uint_contents", [70_000], "70000"),
        ("FP32", "int_contents", [1], "belongs in contents.fp32_contents, not in int_contents"),
        ("FP16", "fp32_contents", [1.0], "use raw_input_contents"),
        ("NOPE", "fp32_contents", [1.0], "use raw_input_contents"),
    ],
)
def test_wrong_contents_are_named(
    datatype: str, field: str, elements: list[Any], text: str
) -> None:
    with pytest.raises(ServeError, match=text) as caught:
        typed_bytes("x", datatype, contents(field, elements))
    assert caught.value.reason is Reason.BAD_INPUT and "'x'" in str(caught.value)


# ----------------------------------------------------------------------------------------- heads


def broken(change: str) -> Any:
    made = ModelInferRequest.FromString(request(b"ab", b"cd"))
    match change:
        case "count":
            del made.raw_input_contents[1]
        case "both":
            made.inputs[0].contents.uint_contents.append(1)
        case "some":
            del made.raw_input_contents[:]
            made.inputs[0].contents.uint_contents.append(1)
        case "classes":
            made.outputs.add(name="O").parameters["classification"].int64_param = -1
        case "empty":
            made.parameters["p"].SetInParent()
        case "region":
            made.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return made


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("count", "expected 2 raw_input_contents for 2 inputs of model 'echo', got 1"),
        ("both", "has no contents, and others have|must not be specified"),
        ("some", "input 'IN1' has no contents"),
        ("classes", "classification must be at least 0"),
        ("empty", "parameter 'p' has no value"),
        ("region", "without shared_memory_byte_size"),
    ],
)
def test_wrong_heads_are_named(change: str, text: str) -> None:
    encoded = broken(change).SerializeToString()
    with Wire() as wire, pytest.raises(ServeError, match=text) as caught:
        wire.decoder.whole(memoryview(encoded))
    assert caught.value.reason is Reason.BAD_INPUT


def test_typed_requests_reach_the_arena() -> None:
    made = ModelInferRequest(model_name="echo")
    made.inputs.add(name="A", datatype="INT16", shape=[2]).contents.int_contents.extend([1, -1])
    made.inputs.add(name="B", datatype="FP32", shape=[1]).contents.fp32_contents.append(2.0)
    with Wire() as wire:
        decoded = wire.decoder.whole(memoryview(made.SerializeToString()))
        assert isinstance(decoded, DecodedInfer)
        found = tensors_of(wire, decoded)
        assert found == [b"\1\0\xff\xff", np.float32(2.0).tobytes()]
        decoded.blocks.free()


def test_heads_that_repeat_are_parsed_once() -> None:
    with Wire() as wire:
        encoded = memoryview(request(b"ab"))
        first = wire.decoder.whole(encoded)
        again = wire.decoder.whole(encoded)
        longer = wire.decoder.whole(memoryview(request(b"abc")))
        assert isinstance(first, DecodedInfer) and isinstance(again, DecodedInfer)
        assert isinstance(longer, DecodedInfer)
        assert first.request is again.request and longer.request is not first.request
        for decoded in (first, again, longer):
            decoded.blocks.free()
        for i in range(5000):
            one = wire.decoder.whole(memoryview(request(b"x", model=str(i))))
            one.blocks.free()
        assert len(wire.decoder._heads._known) < 5000
