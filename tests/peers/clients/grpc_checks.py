"""Every call of ``tritonclient.grpc``, against the server whose address is the argument."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import runner
import tritonclient.grpc as client
import tritonclient.utils.shared_memory as shm
from tensors import FOUR, SLOW, given, pair, same
from tritonclient.utils import InferenceServerException

Outcome = tuple[Any, Any]


def connect(address: str, **how: Any) -> client.InferenceServerClient:
    return client.InferenceServerClient(address, **how)


def refused(call: Callable[[], Any], *words: str) -> None:
    """The call raises the client's own exception with these words in its status or text."""
    try:
        call()
    except InferenceServerException as error:
        assert all(word in f"{error.status()} {error}" for word in words), error
    else:
        raise AssertionError("it was not refused")


def collector() -> tuple[Callable[[Any, Any], None], Callable[[], Outcome]]:
    """A callback for results, and how to wait for the next."""
    got: queue.Queue[Outcome] = queue.Queue()
    return lambda result, error: got.put((result, error)), lambda: got.get(timeout=10)


def check_health(address: str) -> None:
    with connect(address) as c:
        assert c.is_server_live() and c.is_server_ready()
        assert c.is_model_ready("ident") and c.is_model_ready("ident", "1")
        assert not c.is_model_ready("nope") and not c.is_model_ready("ident", "9")


def check_metadata(address: str) -> None:
    with connect(address) as c:
        assert {"statistics"} <= set(c.get_server_metadata().extensions)
        model = c.get_model_metadata("ident", as_json=True)
        assert model["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": ["-1", "4"]}]
        config = c.get_model_config("ident").config
        assert config.max_batch_size == 8 and list(config.input[0].dims) == [4]
        refused(lambda: c.get_model_metadata("nope"), "NOT_FOUND", "unknown model: 'nope'")


def check_statistics(address: str) -> None:
    with connect(address) as c:
        before = c.get_inference_statistics("ident").model_stats[0]
        c.infer("ident", [given(client, np.repeat(FOUR, 3, 0), "FP32")])
        after = c.get_inference_statistics("ident", "1").model_stats[0]
        assert after.inference_count == before.inference_count + 3
        assert after.execution_count == before.execution_count + 1
        assert len(c.get_inference_statistics().model_stats) > 5


def check_repository(address: str) -> None:
    with connect(address) as c:
        states = {m.name: m.state for m in c.get_model_repository_index().models}
        assert states["ident"] == "READY"
        c.unload_model("spare")
        assert not c.is_model_ready("spare")
        c.load_model("spare")
        assert c.is_model_ready("spare")
        refused(lambda: c.load_model("nope"), "nope")


def check_settings(address: str) -> None:
    with connect(address) as c:
        assert list(c.get_trace_settings().settings["trace_level"].value) == ["OFF"]
        changed = c.update_trace_settings("ident", {"trace_rate": "1000"})
        assert list(changed.settings["trace_rate"].value) == ["1000"]
        assert c.get_log_settings().settings["log_info"].bool_param is True
        level = c.update_log_settings({"log_verbose_level": 0}).settings["log_verbose_level"]
        assert level.uint32_param == 0


def check_infer(address: str) -> None:
    with connect(address) as c:
        result = c.infer("ident", [given(client, FOUR, "FP32")], request_id="seven")
        same(result, FOUR)
        assert result.get_response().id == "seven"
        inputs, total, difference = pair(client)
        result = c.infer("pair", inputs, outputs=[client.InferRequestedOutput("OUTPUT1")])
        same(result, difference, "OUTPUT1")
        assert result.as_numpy("OUTPUT0") is None
        same(c.infer("pair", inputs), total)


def check_datatypes(address: str) -> None:
    half = np.array([[1.5, -2]], np.float16)
    brain = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    words = np.array([["", "a", "bäm"]], np.object_)
    with connect(address) as c:
        same(c.infer("half", [given(client, half, "FP16")]), half)
        same(c.infer("brain", [given(client, brain, "BF16")]), brain)
        got = c.infer("text", [given(client, words, "BYTES")]).as_numpy("OUTPUT0")
        assert [b.decode() for b in got.ravel()] == ["", "a", "bäm"], got


def check_large(address: str) -> None:
    wide = np.random.default_rng(1).standard_normal((1, 2_000_000)).astype(np.float32)
    with connect(address) as c:
        same(c.infer("any", [given(client, wide, "FP32")]), wide)


def check_compression(address: str) -> None:
    wide = np.zeros((1, 5000), np.float32)
    with connect(address) as c:
        for how in ("gzip", "deflate", None):
            same(c.infer("any", [given(client, wide, "FP32")], compression_algorithm=how), wide)


def check_classification(address: str) -> None:
    with connect(address) as c:
        outputs = [client.InferRequestedOutput("OUTPUT0", class_count=2)]
        result = c.infer("label", [given(client, FOUR, "FP32")], outputs=outputs)
        got = [b.decode() for b in result.as_numpy("OUTPUT0").ravel()]
        assert got == ["3.000000:3:four", "2.000000:2:three"], got


def check_parameters(address: str) -> None:
    with connect(address) as c:
        inputs = [given(client, FOUR, "FP32")]
        same(c.infer("ident", inputs, parameters={"mine": "x", "count": 3}), FOUR)
        same(c.infer("ident", inputs, priority=1, timeout=5_000_000), FOUR)
        same(c.infer("ident", inputs, headers={"x-mine": "1"}), FOUR)


def check_errors(address: str) -> None:
    with connect(address) as c:
        good = [given(client, FOUR, "FP32")]
        refused(lambda: c.infer("nope", good), "NOT_FOUND", "'nope'")
        refused(lambda: c.infer("ident", good, model_version="9"), "NOT_FOUND", "version 9")
        refused(lambda: c.infer("ident", []), "INVALID_ARGUMENT", "INPUT0")
        wide = [given(client, np.zeros((1, 5), np.float32), "FP32")]
        refused(lambda: c.infer("ident", wide), "INVALID_ARGUMENT", "INPUT0")
        many = [given(client, np.zeros((9, 4), np.float32), "FP32")]
        refused(lambda: c.infer("ident", many), "INVALID_ARGUMENT", "8")
        same(c.infer("ident", good), FOUR)


def check_async_infer(address: str) -> None:
    with connect(address) as c:
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


def check_async_cancel(address: str) -> None:
    with connect(address) as c:
        callback, wait = collector()
        call = c.async_infer("slow", [given(client, SLOW, "FP32")], callback)
        time.sleep(0.1)
        call.cancel()
        result, error = wait()
        assert result is None and "CANCELLED" in str(error.status()), error
        same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)


def check_client_timeout(address: str) -> None:
    with connect(address) as c:
        slow = [given(client, SLOW, "FP32")]
        refused(lambda: c.infer("slow", slow, client_timeout=0.2), "DEADLINE_EXCEEDED")
        assert c.is_server_ready(client_timeout=5)


def check_stream(address: str) -> None:
    with connect(address) as c:
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


def check_stream_error_keeps_the_stream(address: str) -> None:
    with connect(address) as c:
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


def check_stream_final_response(address: str) -> None:
    with connect(address) as c:
        callback, wait = collector()
        c.start_stream(callback)
        inputs = [given(client, FOUR, "FP32")]
        c.async_stream_infer("ident", inputs, enable_empty_final_response=True)
        result, error = wait()
        assert error is None, error
        assert result.get_response().parameters["triton_final_response"].bool_param is True
        c.stop_stream()


def check_stream_cancel(address: str) -> None:
    with connect(address) as c:
        callback, wait = collector()
        c.start_stream(callback)
        c.async_stream_infer("slow", [given(client, SLOW, "FP32")])
        time.sleep(0.1)
        c.stop_stream(cancel_requests=True)
        result, error = wait()
        assert result is None and "CANCELLED" in str(error.status()), error
        same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)


def check_system_shared_memory(address: str) -> None:
    region = shm.create_shared_memory_region("peers", "/interlace_peers_grpc", 32)
    try:
        with connect(address) as c:
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


def check_cuda_shared_memory(address: str) -> None:
    with connect(address) as c:
        c.unregister_cuda_shared_memory()
        assert len(c.get_cuda_shared_memory_status().regions) == 0
        refused(lambda: c.register_cuda_shared_memory("x", b"AAAA", 0, 64))


def check_keepalive(address: str) -> None:
    options = client.KeepAliveOptions(keepalive_time_ms=100, keepalive_timeout_ms=2000)
    with connect(address, keepalive_options=options) as c:
        same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)
        time.sleep(1.0)
        same(c.infer("ident", [given(client, FOUR, "FP32")]), FOUR)


if __name__ == "__main__":
    runner.run(globals())
