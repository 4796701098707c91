"""Every call of ``tritonclient.http``, against the server whose address is the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import runner
import tritonclient.http as client
import tritonclient.utils.shared_memory as shm
from tensors import FOUR, SLOW, given, pair, same
from tritonclient.utils import InferenceServerException


def connect(address: str, **how: Any) -> client.InferenceServerClient:
    return client.InferenceServerClient(address, **how)


def refused(call: Callable[[], Any], *words: str) -> None:
    """The call raises the client's own exception with these words."""
    try:
        call()
    except InferenceServerException as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("it was not refused")


def check_health(address: str) -> None:
    with connect(address) as c:
        assert c.is_server_live() and c.is_server_ready()
        assert c.is_model_ready("ident") and c.is_model_ready("ident", "1")
        assert not c.is_model_ready("nope") and not c.is_model_ready("ident", "9")


def check_metadata(address: str) -> None:
    with connect(address) as c:
        assert {"statistics", "binary_tensor_data"} <= set(c.get_server_metadata()["extensions"])
        model = c.get_model_metadata("ident")
        assert model["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}]
        assert model["versions"] == ["1"]
        config = c.get_model_config("ident")
        assert config["max_batch_size"] == 8 and config["input"][0]["dims"] == [4]
        refused(lambda: c.get_model_metadata("nope"), "404", "unknown model: 'nope'")


def check_statistics(address: str) -> None:
    with connect(address) as c:
        before = c.get_inference_statistics("ident")["model_stats"][0]
        c.infer("ident", [given(client, np.repeat(FOUR, 3, 0), "FP32")])
        after = c.get_inference_statistics("ident", "1")["model_stats"][0]
        assert after["inference_count"] == before["inference_count"] + 3
        assert after["execution_count"] == before["execution_count"] + 1
        assert after["inference_stats"]["success"]["count"] > 0
        assert len(c.get_inference_statistics()["model_stats"]) > 5


def check_repository(address: str) -> None:
    with connect(address) as c:
        assert {"name": "ident", "version": "1", "state": "READY"} in c.get_model_repository_index()
        c.unload_model("spare", unload_dependents=True)
        assert not c.is_model_ready("spare")
        c.load_model("spare")
        assert c.is_model_ready("spare")
        refused(lambda: c.load_model("nope"), "nope")


def check_load_with_config(address: str) -> None:
    with connect(address) as c:
        c.load_model("spare", config='{"max_batch_size": 2}')
        assert c.get_model_config("spare")["max_batch_size"] == 2
        c.load_model("spare", config='{"max_batch_size": 8}')


def check_settings(address: str) -> None:
    with connect(address) as c:
        assert c.get_trace_settings()["trace_level"] == ["OFF"]
        assert "trace_rate" in c.update_trace_settings("ident", {"trace_rate": "1000"})
        assert c.get_log_settings()["log_info"] is True
        assert c.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0


def check_infer(address: str) -> None:
    with connect(address) as c:
        result = c.infer("ident", [given(client, FOUR, "FP32")], request_id="seven")
        same(result, FOUR)
        answer = result.get_response()
        assert answer["id"] == "seven" and answer["model_name"] == "ident"
        same(c.infer("ident", [given(client, FOUR, "FP32")], model_version="1"), FOUR)


def check_infer_json(address: str) -> None:
    with connect(address) as c:
        inputs = [given(client, FOUR, "FP32", binary_data=False)]
        outputs = [client.InferRequestedOutput("OUTPUT0", binary_data=False)]
        same(c.infer("ident", inputs, outputs=outputs), FOUR)
        mixed = [client.InferRequestedOutput("OUTPUT0", binary_data=True)]
        same(c.infer("ident", inputs, outputs=mixed), FOUR)


def check_two_inputs_and_outputs(address: str) -> None:
    with connect(address) as c:
        inputs, total, difference = pair(client)
        result = c.infer("pair", inputs)
        same(result, total)
        same(result, difference, "OUTPUT1")
        outputs = [client.InferRequestedOutput(name) for name in ("OUTPUT1", "OUTPUT0")]
        result = c.infer("pair", inputs, outputs=outputs)
        same(result, total)


def check_datatypes(address: str) -> None:
    half = np.array([[1.5, -2]], np.float16)
    brain = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    words = np.array([["", "a", "bäm"]], np.object_)
    with connect(address) as c:
        same(c.infer("half", [given(client, half, "FP16")]), half)
        same(c.infer("brain", [given(client, brain, "BF16")]), brain)
        got = c.infer("text", [given(client, words, "BYTES")]).as_numpy("OUTPUT0")
        assert [b.decode() for b in got.ravel()] == ["", "a", "bäm"], got
        outputs = [client.InferRequestedOutput("OUTPUT0", binary_data=False)]
        inputs = [given(client, words, "BYTES", binary_data=False)]
        got = c.infer("text", inputs, outputs=outputs).as_numpy("OUTPUT0")
        assert list(got.ravel()) == ["", "a", "bäm"], got


def check_shapes(address: str) -> None:
    with connect(address) as c:
        many = np.arange(32, dtype=np.float32).reshape(8, 4)
        same(c.infer("ident", [given(client, many, "FP32")]), many)
        flat = np.arange(3, dtype=np.float32)
        same(c.infer("plain", [given(client, flat, "FP32")]), flat)
        wide = np.arange(2000, dtype=np.float32).reshape(2, 1000)
        same(c.infer("any", [given(client, wide, "FP32")]), wide)


def check_compression(address: str) -> None:
    wide = np.zeros((1, 5000), np.float32)
    with connect(address) as c:
        for request in ("gzip", "deflate", None):
            for response in ("gzip", "deflate", None):
                result = c.infer(
                    "any",
                    [given(client, wide, "FP32")],
                    request_compression_algorithm=request,
                    response_compression_algorithm=response,
                )
                same(result, wide)


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
        same(c.infer("ident", inputs, headers={"x-mine": "1"}, query_params={"a": "b"}), FOUR)


def check_bodies_built_apart(address: str) -> None:
    import urllib.request

    body, size = client.InferenceServerClient.generate_request_body([given(client, FOUR, "FP32")])
    headers = {"Inference-Header-Content-Length": str(size)} if size else {}
    url = f"http://{address}/v2/models/ident/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
        head = reply.headers.get("Inference-Header-Content-Length")
        result = client.InferenceServerClient.parse_response_body(
            reply.read(), header_length=int(head)
        )
    same(result, FOUR)


def check_async_infer(address: str) -> None:
    with connect(address, concurrency=4) as c:
        inputs = [given(client, FOUR, "FP32")]
        waiting = [c.async_infer("ident", inputs, request_id=str(i)) for i in range(12)]
        for number, one in enumerate(waiting):
            result = one.get_result()
            same(result, FOUR)
            assert result.get_response()["id"] == str(number)


def check_errors(address: str) -> None:
    with connect(address) as c:
        good = [given(client, FOUR, "FP32")]
        refused(lambda: c.infer("nope", good), "404", "'nope'")
        refused(lambda: c.infer("ident", good, model_version="9"), "404", "version 9")
        refused(lambda: c.infer("ident", []), "400", "INPUT0")
        wide = np.zeros((1, 5), np.float32)
        refused(lambda: c.infer("ident", [given(client, wide, "FP32")]), "400", "INPUT0")
        wanted = [client.InferRequestedOutput("NOPE")]
        refused(lambda: c.infer("ident", good, outputs=wanted), "400", "NOPE")
        many = np.zeros((9, 4), np.float32)
        refused(lambda: c.infer("ident", [given(client, many, "FP32")]), "400", "8")
        same(c.infer("ident", good), FOUR)


def check_network_timeout(address: str) -> None:
    with connect(address, network_timeout=0.2) as c:
        try:
            c.infer("slow", [given(client, SLOW, "FP32")])
        except Exception as error:
            assert "timed out" in str(error).lower(), error
        else:
            raise AssertionError("the client did not give up")
    check_infer(address)


def check_system_shared_memory(address: str) -> None:
    region = shm.create_shared_memory_region("peers", "/interlace_peers_http", 32)
    try:
        with connect(address) as c:
            c.unregister_system_shared_memory()
            assert c.get_system_shared_memory_status() == []
            c.register_system_shared_memory("peers", "/interlace_peers_http", 32)
            assert c.get_system_shared_memory_status("peers")[0]["byte_size"] == 32
            shm.set_shared_memory_region(region, [FOUR])
            sent = client.InferInput("INPUT0", [1, 4], "FP32")
            sent.set_shared_memory("peers", 16)
            wanted = client.InferRequestedOutput("OUTPUT0", binary_data=True)
            wanted.set_shared_memory("peers", 16, 16)
            result = c.infer("ident", [sent], outputs=[wanted])
            assert result.get_output("OUTPUT0")["shape"] == [1, 4]
            assert (shm.get_contents_as_numpy(region, np.float32, [1, 4], 16) == FOUR).all()
            c.unregister_system_shared_memory("peers")
            refused(lambda: c.infer("ident", [sent]), "peers")
    finally:
        shm.destroy_shared_memory_region(region)


def check_cuda_shared_memory(address: str) -> None:
    with connect(address) as c:
        c.unregister_cuda_shared_memory()
        assert c.get_cuda_shared_memory_status() == []
        refused(lambda: c.register_cuda_shared_memory("x", b"AAAA", 0, 64))


if __name__ == "__main__":
    runner.run(globals())
