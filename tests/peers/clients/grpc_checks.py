"""Calls of ``tritonclient.grpc`` alone, or with answers of its own; also of its aio client."""

import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as client
import tritonclient.utils.shared_memory as shm

from .tensors import FOUR, SLOW, given, refused, same

Outcome = tuple[Any, Any]


def collector() -> tuple[Callable[[Any, Any], None], Callable[[], Outcome]]:
    """A callback for results, and how to wait for the next."""
    got: queue.Queue[Outcome] = queue.Queue()
    return lambda result, error: got.put((result, error)), lambda: got.get(timeout=10)


def check_metadata(c: Any) -> None:
    assert {"statistics"} <= set(c.get_server_metadata().extensions)
    model = c.get_model_metadata("ident", as_json=True)
    assert model["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": ["-1", "4"]}]
    config = c.get_model_config("ident").config
    assert config.max_batch_size == 8 and list(config.input[0].dims) == [4]


def check_statistics(c: Any) -> None:
    before = c.get_inference_statistics("ident").model_stats[0]
    c.infer("ident", [given(client, np.repeat(FOUR, 3, 0), "FP32")])
    after = c.get_inference_statistics("ident", "1").model_stats[0]
    assert after.inference_count == before.inference_count + 3
    assert after.execution_count == before.execution_count + 1
    assert len(c.get_inference_statistics().model_stats) > 5


def check_repository(c: Any) -> None:
    states = {m.name: m.state for m in c.get_model_repository_index().models}
    assert states["ident"] == "READY"


def check_settings(c: Any) -> None:
    assert list(c.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    changed = c.update_trace_settings("ident", {"trace_rate": "1000"})
    assert list(changed.settings["trace_rate"].value) == ["1000"]
    assert c.get_log_settings().settings["log_info"].bool_param is True
    level = c.update_log_settings({"log_verbose_level": 0}).settings["log_verbose_level"]
    assert level.uint32_param == 0


def check_infer(c: Any) -> None:
    result = c.infer("ident", [given(client, FOUR, "FP32")], request_id="seven")
    same(result, FOUR)
    assert result.get_response().id == "seven"


def check_compression(c: Any) -> None:
    wide = np.zeros((1, 5000), np.float32)
    for how in ("gzip", "deflate", None):
        same(c.infer("any", [given(client, wide, "FP32")], compression_algorithm=how), wide)


def check_async_infer(c: Any) -> None:
    callback, wait = collector()
    for number in range(12):
        c.async_infer("ident", [given(client, FOUR, "FP32")], callback, request_id=str(number))
    seen = set()
    for _ in range(12):
        result, error = wait()
        assert error is None, error
        same(result, FOUR)
        seen.add(result.get_response().id)
    assert seen == {str(number) for number in range(12)}


def check_async_cancel(c: Any) -> None:
    callback, wait = collector()
    call = c.async_infer("slow", [given(client, SLOW, "FP32")], callback)
    time.sleep(0.1)
    call.cancel()
    result, error = wait()
    assert result is None and "CANCELLED" in str(error.status()), error
    same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)


def check_client_timeout(c: Any) -> None:
    slow = [given(client, SLOW, "FP32")]
    refused(lambda: c.infer("slow", slow, client_timeout=0.2), "DEADLINE_EXCEEDED")
    assert c.is_server_ready(client_timeout=5)


def check_stream(c: Any) -> None:
    callback, wait = collector()
    c.start_stream(callback)
    for number in range(8):
        c.async_stream_infer("ident", [given(client, FOUR, "FP32")], request_id=str(number))
    seen = []
    for _ in range(8):
        result, error = wait()
        assert error is None, error
        same(result, FOUR)
        seen.append(result.get_response().id)
    c.stop_stream()
    assert sorted(seen) == [str(number) for number in range(8)], seen


def check_stream_error_keeps_the_stream(c: Any) -> None:
    callback, wait = collector()
    c.start_stream(callback)
    c.async_stream_infer("nope", [given(client, FOUR, "FP32")])
    result, error = wait()
    assert result is None and "nope" in str(error), error
    c.async_stream_infer("ident", [given(client, FOUR, "FP32")])
    result, error = wait()
    assert error is None, error
    same(result, FOUR)
    c.stop_stream()


def check_stream_final_response(c: Any) -> None:
    callback, wait = collector()
    c.start_stream(callback)
    inputs = [given(client, FOUR, "FP32")]
    c.async_stream_infer("ident", inputs, enable_empty_final_response=True)
    result, error = wait()
    assert error is None, error
    assert result.get_response().parameters["triton_final_response"].bool_param is True
    c.stop_stream()


def check_stream_cancel(c: Any) -> None:
    callback, wait = collector()
    c.start_stream(callback)
    c.async_stream_infer("slow", [given(client, SLOW, "FP32")])
    time.sleep(0.1)
    c.stop_stream(cancel_requests=True)
    result, error = wait()
    assert result is None and "CANCELLED" in str(error.status()), error
    same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)


def check_system_shared_memory(c: Any) -> None:
    region = shm.create_shared_memory_region("peers", "/interlace_peers_grpc", 32)
    try:
        c.unregister_system_shared_memory()
        c.register_system_shared_memory("peers", "/interlace_peers_grpc", 32)
        assert c.get_system_shared_memory_status("peers").regions["peers"].byte_size == 32
        shm.set_shared_memory_region(region, [FOUR])
        sent = client.InferInput("INPUT0", [1, 4], "FP32")
        sent.set_shared_memory("peers", 16)
        wanted = client.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("peers", 16, 16)
        result = c.infer("ident", [sent], outputs=[wanted])
        assert list(result.get_output("OUTPUT0").shape) == [1, 4]
        assert (shm.get_contents_as_numpy(region, np.float32, [1, 4], 16) == FOUR).all()
        c.unregister_system_shared_memory("peers")
        refused(lambda: c.infer("ident", [sent]), "peers")
    finally:
        shm.destroy_shared_memory_region(region)


def check_keepalive(address: str) -> None:
    options = client.KeepAliveOptions(keepalive_time_ms=100, keepalive_timeout_ms=2000)
    with client.InferenceServerClient(address, keepalive_options=options) as c:
        same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)
        time.sleep(1.0)
        same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)
