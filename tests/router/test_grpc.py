"""gRPC through a router, seen by an independent client: messages unchanged, one answer each."""

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from interlace.core.errors import Reason
from interlace.proto.messages import ModelInferRequest
from interlace.router.grpc.forwarding import _sequence
from interlace.server.errors import GRPC_STATUS
from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.infer_wire import addressee
from tests.router.stand import RouterStand
from tests.server.fakes import wait_until
from tests.server.grpc.fakes import Main, client, streaming, unary
from tests.server.grpc.wirebench import HELLO, INFER, data, head, message, request

MODELS = ("echo", "apart", "fail", "never", "slow-30", "hang", "only-b")


VERSION_3 = b"\x12\x013"  # asked for behind all else


class Two:
    """A router over two nodes that echo."""

    def __init__(self, lost_ms: float = 60_000.0) -> None:
        self.nodes = {"a": Main(), "b": Main()}
        self.router = RouterStand(
            dict.fromkeys(self.nodes, 1),
            {name: node.port for name, node in self.nodes.items()},
            lost_ms,
        )

    def heard(self, *refusing: str) -> None:
        """Both say that they serve all; a is the faster one."""
        for wait_ms, name in enumerate(self.nodes):
            self.router.heard(name, *MODELS, *refusing, wait_ms=5.0 + wait_ms)

    def calls(self, node: str) -> list[Any]:
        return self.nodes[node].plane.calls

    def settled(self) -> None:
        parts = self.router.parts
        wait_until(lambda: parts.calls.count == 0 and parts.calls.heap.used_bytes == 0)
        wait_until(lambda: self.router.do(lambda: parts.directory.links("a").in_flight) == 0)
        wait_until(lambda: parts.forwarder.budget.used_bytes == 0)
        for node in self.nodes.values():
            node.settled()

    def close(self) -> None:
        self.router.close()
        for node in self.nodes.values():
            node.close()


@pytest.fixture(scope="module")
def made() -> Iterator[Two]:
    two = Two()
    yield two
    two.close()


@pytest.fixture
def two(made: Two) -> Iterator[Two]:
    made.heard("final-unknown_model", *(f"refuse-{reason.value}" for reason in Reason))
    for node in made.nodes.values():
        node.plane.calls.clear()
    yield made
    made.settled()


@pytest.fixture
def channel(two: Two) -> Iterator[grpc.Channel]:
    with client(two.router.grpc_port) as found:
        yield found


def infer(channel: grpc.Channel, message: bytes, **options: Any) -> Any:
    return unary(channel)(message, timeout=options.pop("timeout", 20), **options)


def failure(channel: grpc.Channel, message: bytes, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, message, **options)
    return caught.value


@pytest.mark.parametrize("size", [0, 10, 15_990, 70_000, 3_000_000, 40_000_000])
def test_tensors_of_every_size_pass_both_ways(two: Two, channel: grpc.Channel, size: int) -> None:
    data = os.urandom(size)
    for number in range(2):
        answer = infer(channel, request(data, call_id=f"r{number}"))
        assert answer.id == f"r{number}"
        assert list(answer.raw_output_contents) == [data]
    assert len(two.calls("a")) == 2


def test_many_at_once_share_a_connection(two: Two, channel: grpc.Channel) -> None:
    call = unary(channel)
    asked = [call.future(request(b"%d" % i, call_id=str(i), model="slow-30")) for i in range(200)]
    for i, future in enumerate(asked):
        answer = future.result(20)
        assert (answer.id, answer.raw_output_contents[0]) == (str(i), b"%d" % i)


@pytest.mark.parametrize("reason", list(Reason))
def test_refusals_keep_status_text_and_time(
    two: Two, channel: grpc.Channel, reason: Reason
) -> None:
    message = request(b"x", model=f"refuse-{reason.value}") + VERSION_3
    error = failure(channel, message)
    assert error.code().value[0] == int(GRPC_STATUS[reason])
    assert error.details() == f"refused: {reason.value} 100% é"
    assert dict(error.trailing_metadata())["retry-after-ms"] == "12"
    elsewhere = GRPC_STATUS[reason].name in ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "NOT_FOUND")
    assert len(two.calls("b")) == (1 if elsewhere else 0)
    if elsewhere:
        assert two.calls("b")[0].elapsed_ms > 0.0 and two.calls("a")[0].elapsed_ms == 0.0


def test_what_the_model_itself_refuses_no_other_node_is_asked(
    two: Two, channel: grpc.Channel
) -> None:
    error = failure(channel, request(b"x", model="final-unknown_model"))
    assert (error.code().name, error.details()) == ("NOT_FOUND", "refused: unknown_model 100% é")
    assert not two.calls("b")


def test_a_model_that_its_node_has_just_unloaded_is_not_unknown(
    two: Two, channel: grpc.Channel
) -> None:
    for _ in range(2):
        error = failure(channel, request(b"x", model="refuse-unknown_model"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "no node that is left has it ready" in error.details()
        assert dict(error.trailing_metadata())["retry-after-ms"] == "60000"
    assert [len(two.calls(name)) for name in "ab"] == [2, 2]


@pytest.mark.parametrize(
    ("ambiguous", "said"),
    [
        (b"\x0a\x07nobody2", "twice"),
        (b"\x8a\x00\x07nobody2", "needless bytes"),
        (VERSION_3 + b"\x12\x019", "twice"),
        (b"\x12\x00" + VERSION_3, "twice"),
        (b"\xa0\x06\x00" * 5000, "more than 4096 fields"),
    ],
)
def test_a_request_that_parsers_read_differently_is_refused(
    two: Two, channel: grpc.Channel, ambiguous: bytes, said: str
) -> None:
    error = failure(channel, request(b"x") + ambiguous)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and said in error.details()
    assert not two.calls("a")
    assert infer(channel, request(b"x")).raw_output_contents[0] == b"x"


def test_what_only_a_silent_node_can_answer_waits_for_it(channel: grpc.Channel) -> None:
    two = Two(lost_ms=1_000.0)
    two.router.heard("a", "slow-1500", "slow-5000")
    with client(two.router.grpc_port) as own:
        call = unary(own)
        asked = {m: call.future(request(b"1", model=m)) for m in ("slow-1500", "slow-5000")}
        wait_until(lambda: len(two.calls("a")) == 2)

        def elsewhere() -> bool:
            two.router.heard("b", "slow-5000")
            two.router.do(two.router.parts.directory.look)
            return len(two.calls("b")) == 1

        wait_until(elsewhere)
        assert asked["slow-1500"].result(20).raw_output_contents[0] == b"1"
        assert two.calls("b")[0].model == "slow-5000"
        asked["slow-5000"].cancel()
        wait_until(lambda: all(node.plane.cancelled for node in two.nodes.values()))
    two.close()


def test_what_cannot_be_read_is_the_callers_fault(channel: grpc.Channel) -> None:
    for text in (b"\xff\xff\xff", b"\x0a\x7fshort"):
        error = failure(channel, text)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "malformed ModelInferRequest" in error.details()


def test_the_callers_deadline_goes_along(two: Two, channel: grpc.Channel) -> None:
    infer(channel, request(b"x"), timeout=3)
    (call,) = two.calls("a")
    assert 2_000 < call.budget_ms <= 3_100  # the client rounds up


def test_a_cancelled_call_is_cancelled_at_the_node(two: Two, channel: grpc.Channel) -> None:
    future = unary(channel).future(request(b"x", model="never"))
    wait_until(lambda: len(two.calls("a")) == 1)
    future.cancel()
    wait_until(lambda: len(two.nodes["a"].plane.cancelled) == 1)
    two.nodes["a"].plane.cancelled.clear()


def test_calls_that_are_reset_at_once_cost_a_node_nothing(two: Two, channel: grpc.Channel) -> None:
    sent = message(request(b"x", model="never"))
    calls = [
        head(number) + data(number, sent) + h2.rst_stream(number, h2.CANCEL)
        for number in range(1, 16_000, 2)
    ]
    with socket.create_connection(("127.0.0.1", two.router.grpc_port)) as flood:
        flood.sendall(HELLO + b"".join(calls))
        flood.shutdown(socket.SHUT_WR)
        flood.settimeout(20)
        while flood.recv(1 << 16):
            pass
        infer(channel, request(b"x"))
    assert len(two.calls("a")) < len(calls) / 10
    two.settled()
    two.nodes["a"].plane.cancelled.clear()


def test_streams_are_answered_request_by_request(two: Two, channel: grpc.Channel) -> None:
    sent = [request(b"%d" % i, call_id=str(i)) for i in range(20)]
    sent.insert(7, request(b"x", call_id="bad", model="refuse-bad_input"))
    found = {}
    for answer in streaming(channel)(iter(sent), timeout=20):
        found[answer.infer_response.id] = answer
    assert found.pop("bad").error_message == "refused: bad_input 100% é"
    assert {key: one.infer_response.raw_output_contents[0] for key, one in found.items()} == {
        str(i): b"%d" % i for i in range(20)
    }
    for one in found.values():
        assert one.infer_response.parameters["triton_final_response"].bool_param


def test_a_node_that_goes_away_is_replaced_and_comes_back() -> None:
    two = Two()
    two.heard()
    with client(two.router.grpc_port) as own:
        assert infer(own, request(b"1")).raw_output_contents[0] == b"1"
        two.nodes["a"].plane.holds = True
        waiting = unary(own).future(request(b"2"))
        wait_until(lambda: len(two.calls("a")) == 2)
        two.nodes["a"].do(two.nodes["a"].server.close)  # the connection breaks, nobody listens
        assert waiting.result(20).raw_output_contents[0] == b"2"
        two.heard()
        began_s = time.monotonic()
        assert infer(own, request(b"3")).raw_output_contents[0] == b"3"
        assert time.monotonic() - began_s < 2.0
        assert [len(two.calls(name)) for name in "ab"] == [2, 2]
    two.close()


@pytest.mark.parametrize("name", ["", "m", "x" * 300])
def test_the_model_is_found_wherever_it_stands(name: str) -> None:
    message = request(b"abc", call_id="7", model=name)
    assert addressee(message) == (name, "")
    id_first = b"\x1a\x017" + b"\x20\x05" + message + b"\x12\x013"
    assert addressee(id_first) == (name, "3")


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_never_sent_on_takes_no_memory(two: Two, times: int) -> None:
    sock = socket.create_connection(("127.0.0.1", two.router.grpc_port))
    whole = message(request(b"x" * 100_000)) * times
    parts = [data(1, whole[at : at + 16_000], end=False) for at in range(0, len(whole), 16_000)]
    sock.sendall(HELLO + head(1) + b"".join(parts))
    budget = two.router.parts.calls.heap
    if times == 1:
        wait_until(lambda: budget.used_bytes > 100_000)
    sock.sendall(h2.rst_stream(1, h2.CANCEL))
    wait_until(lambda: budget.used_bytes == 0)
    sock.close()


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_what_is_compressed_is_unpacked_on_the_way(two: Two, kind: grpc.Compression) -> None:
    with client(two.router.grpc_port, compression=kind) as own:
        value = b"x" * 3_000_000
        assert list(infer(own, request(value)).raw_output_contents) == [value]
        sent = [request(value[: i * 1000], call_id=str(i)) for i in range(20)]
        found = [one.infer_response.id for one in streaming(own)(iter(sent), timeout=20)]
        assert sorted(map(int, found)) == list(range(20))
        error = failure(own, request(bytes(65 << 20)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_message_that_unpacks_to_much_holds_up_nobody(two: Two, channel: grpc.Channel) -> None:
    bomb = request(bytes(60 << 20))
    address = f"127.0.0.1:{two.router.grpc_port}"
    with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as own:  # refuses 60 MB
        call = own.unary_unary(INFER, _registered_method=False)
        bombs = [call.future(bomb, timeout=60) for _ in range(4)]
        waits_s = []
        while not all(one.done() for one in bombs):
            began_s = time.monotonic()
            two.router.do(lambda: None)
            waits_s.append(time.monotonic() - began_s)
            time.sleep(0.002)
        assert max(waits_s) < 0.25
        for one in bombs:
            one.exception()
    infer(channel, request(b"x"))


@pytest.mark.parametrize(("kind", "value"), [("int64_param", 7), ("string_param", "7"), ("", "")])
def test_the_sequence_of_a_request_is_read(kind: str, value: int | str) -> None:
    message = ModelInferRequest(model_name="m", raw_input_contents=[b"bytes"])
    if kind:
        setattr(message.parameters["sequence_id"], kind, value)
    assert _sequence(memoryview(message.SerializeToString())) == str(value)
