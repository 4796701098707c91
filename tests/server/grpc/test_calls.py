"""What a refused, broken or forbidden call gets; seen by an independent client, grpcio."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from interlace.core.errors import Reason
from interlace.proto.messages import HEALTH, ModelInferRequest, request_class, response_class
from interlace.server.administration.api import IndexEntry
from interlace.server.api_keys import ApiKeys
from interlace.server.errors import GRPC_STATUS, GrpcStatus
from interlace.server.grpc.headers import trailers
from interlace.server.limits import GrpcLimits
from tests.server.grpc.fakes import Main, client, streaming, unary
from tests.server.grpc.wirebench import INFER, request

Invoke = Callable[..., Any]
SERVER, HEALTH_PATH = "/inference.GRPCInferenceService", "/grpc.health.v1.Health"
_CHECK = HEALTH.FindMethodByName("Check")
HealthRequest, HealthResponse = request_class(_CHECK), response_class(_CHECK)


@pytest.fixture
def channel(echo: Main) -> Iterator[grpc.Channel]:
    with client(echo.port) as made:
        yield made


def raw(channel: grpc.Channel, path: str = INFER) -> Invoke:
    """A method that takes and gives bytes."""
    made: Invoke = channel.unary_unary(path, _registered_method=False)
    return made


def failure(invoke: Invoke, *args: Any, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        invoke(*args, timeout=20, **options)
    return caught.value


@pytest.mark.parametrize("reason", list(Reason))
def test_refusals_carry_status_text_and_time(channel: grpc.Channel, reason: Reason) -> None:
    error = failure(raw(channel), request(b"x", model=f"refuse-{reason.value}"))
    assert error.code().value[0] == int(GRPC_STATUS[reason])
    assert error.details() == f"refused: {reason.value} 100% é"
    assert dict(error.trailing_metadata())["retry-after-ms"] == "12"


def test_what_fails_after_it_was_accepted_is_internal(channel: grpc.Channel) -> None:
    assert failure(raw(channel), request(b"x", model="fail")).code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"\x0a\x7fshort", b"\x3a\x01"])
def test_malformed_messages_are_named(channel: grpc.Channel, payload: bytes) -> None:
    error = failure(raw(channel), payload)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "malformed ModelInferRequest" in error.details()


def test_unknown_methods_are_unimplemented(channel: grpc.Channel) -> None:
    for path in ("/inference.GRPCInferenceService/Nope", "/other.Service/ModelInfer"):
        error = failure(raw(channel, path), b"")
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED and path in error.details()


def test_a_unary_call_has_one_message(channel: grpc.Channel) -> None:
    streaming = channel.stream_unary(INFER, _registered_method=False)
    for messages in ([], [request(b"x"), request(b"y")]):
        error = failure(streaming, iter(messages))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_long_texts_are_cut_where_they_may_be() -> None:
    block = trailers(GrpcStatus.INTERNAL, "é" * 10_000)
    assert len(block) < 4300 and not block.rstrip().endswith(b"%")


def test_malformed_administration_is_the_callers_fault(channel: grpc.Channel) -> None:
    for payloads in ([b"\xff"], [], [b"", b""]):
        call = channel.stream_unary(f"{SERVER}/ServerReady", _registered_method=False)
        error = failure(call, iter(payloads))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_large_administration_goes_both_ways(echo: Main, channel: grpc.Channel) -> None:
    big = "x" * 700_000
    echo.control.entries = [IndexEntry("m", "1", "UNAVAILABLE", big)]
    index = raw(channel, f"{SERVER}/RepositoryIndex")
    assert big.encode() in index(b"", timeout=20)
    echo.control.entries = []
    ready = raw(channel, f"{SERVER}/ModelReady")
    assert ready(b"\x0a" + b"\xe0\xdc\x2a" + big.encode(), timeout=20) == b""


def test_health_is_asked_and_watched(echo: Main, channel: grpc.Channel) -> None:
    form = HealthRequest.SerializeToString, HealthResponse.FromString
    check = channel.unary_unary(f"{HEALTH_PATH}/Check", *form, _registered_method=False)
    watch = channel.unary_stream(f"{HEALTH_PATH}/Watch", *form, _registered_method=False)
    echo.control.is_ready = False
    assert check(HealthRequest(), timeout=20).status == 2
    states = watch(HealthRequest())
    assert next(states).status == 2
    echo.control.is_ready = True
    assert next(states).status == 1
    states.cancel()
    assert next(watch(HealthRequest(service="other"))).status == 3
    error = failure(check, HealthRequest(service="other"))
    assert error.code() is grpc.StatusCode.NOT_FOUND and "no service 'other'" in error.details()


def test_a_fault_of_ours_is_written_down_and_named(
    echo: Main, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    echo.control.entries = None  # type: ignore[assignment]
    error = failure(raw(channel, f"{SERVER}/RepositoryIndex"), b"")
    echo.control.entries = []
    assert error.code() is grpc.StatusCode.INTERNAL and "see its log" in error.details()
    assert "RepositoryIndex failed" in caplog.text and "TypeError" in caplog.text


def test_a_stream_that_stays_open_keeps_answering(channel: grpc.Channel) -> None:
    more = threading.Event()

    def messages() -> Iterator[bytes]:
        yield request(b"a", call_id="a")
        more.wait(10)
        yield request(b"b", call_id="b")

    answers = streaming(channel)(messages(), timeout=20)
    assert next(answers).infer_response.id == "a"
    more.set()
    assert next(answers).infer_response.id == "b"
    assert list(answers) == []


def test_interleaved_large_messages(channel: grpc.Channel) -> None:
    futures = [
        unary(channel).future(request(bytes([i]) * 400_000, call_id=str(i)), timeout=30)
        for i in range(12)
    ]
    for i, future in enumerate(futures):
        response = future.result()
        assert response.id == str(i) and response.raw_output_contents[0] == bytes([i]) * 400_000


def test_a_call_that_hangs_is_answered_once_and_its_memory_is_kept_until_it_ends() -> None:
    with Main(arena_bytes=1 << 20) as main:
        with client(main.port) as channel:
            for _ in range(20):  # many times the arena, were it not given back
                error = failure(raw(channel), request(bytes(400_000), model="hang"))
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                assert error.details() == "it hangs" and main.plane.busy
                main.settled()
            assert raw(channel)(request(b"x"), timeout=20)
        assert not main.plane.cancelled


# ------------------------------------------------------------------------ settings of their own


def test_the_key_opens_all_but_probes() -> None:
    keys = ApiKeys("s3cret")
    with Main(keys=keys) as main, client(main.port) as channel:
        live = raw(channel, "/inference.GRPCInferenceService/ServerLive")
        assert live(b"", timeout=20) == b"\x08\x01"
        ready = raw(channel, "/inference.GRPCInferenceService/ModelReady")
        assert ready(b"\x0a\x01m", timeout=20) == b"", "answers, as over HTTP"
        for metadata in ((), (("x-api-key", "wrong"),), (("authorization", "s3cret"),)):
            error = failure(raw(channel), request(b"x"), metadata=metadata)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        for name, value in (("x-api-key", "s3cret"), ("authorization", "Bearer s3cret")):
            assert raw(channel)(request(b"x"), timeout=20, metadata=((name, value),))


def test_changing_the_server_takes_the_admin_key() -> None:
    keys = ApiKeys("s3cret", "root")
    with Main(keys=keys) as main, client(main.port) as channel:
        user, admin = (("x-api-key", "s3cret"),), (("x-api-key", "root"),)
        for name in ("RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister"):
            call = raw(channel, f"/inference.GRPCInferenceService/{name}")
            error = failure(call, b"", metadata=user)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "admin key" in error.details()
            if name.startswith("Repository"):
                assert call(b"\x12\x01m", timeout=20, metadata=admin) == b""
        for metadata in (user, admin):
            assert raw(channel)(request(b"x"), timeout=20, metadata=metadata)


def test_sizes_are_bounded() -> None:
    limits = GrpcLimits(max_message_bytes=2_000_000)
    with Main(arena_bytes=1 << 20, limits=limits) as main, client(main.port) as channel:
        error = failure(raw(channel), bytes(2_000_001))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max (2000001 vs. 2000000)" in error.details()
        error = failure(raw(channel), request(bytes(1_500_000)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the server has 1048576 bytes for all" in error.details()
        assert raw(channel)(request(b"x"), timeout=20)


def test_a_connection_too_many_is_closed() -> None:
    limits = GrpcLimits(max_connections=2)
    with Main(limits=limits) as main:
        channels = [client(main.port) for _ in range(3)]
        for each in channels[:2]:
            assert raw(each)(request(b"x"), timeout=20)
        assert failure(raw(channels[2]), request(b"x")).code() is grpc.StatusCode.UNAVAILABLE
        channels[0].close()
        for each in channels:
            each.close()


def test_ids_are_bounded(channel: grpc.Channel) -> None:
    made = ModelInferRequest(id="i" * 5000).SerializeToString()
    assert failure(raw(channel), made).code() is grpc.StatusCode.INVALID_ARGUMENT
