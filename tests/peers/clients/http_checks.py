"""Calls of ``tritonclient.http`` alone, or with answers of its own; also of its aio client."""

import urllib.request
from typing import Any

import numpy as np
import tritonclient.http as client
import tritonclient.utils.shared_memory as shm

from .tensors import FOUR, SLOW, given, refused, same


def check_metadata(c: Any) -> None:
    assert {"statistics", "binary_tensor_data"} <= set(c.get_server_metadata()["extensions"])
    model = c.get_model_metadata("ident")
    assert model["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}]
    assert model["versions"] == ["1"]
    config = c.get_model_config("ident")
    assert config["max_batch_size"] == 8 and config["input"][0]["dims"] == [4]


def check_statistics(c: Any) -> None:
    before = c.get_inference_statistics("ident")["model_stats"][0]
    c.infer("ident", [given(client, np.repeat(FOUR, 3, 0), "FP32")])
    after = c.get_inference_statistics("ident", "1")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 3
    assert after["execution_count"] == before["execution_count"] + 1
    assert after["inference_stats"]["success"]["count"] > 0
    assert len(c.get_inference_statistics()["model_stats"]) > 5


def check_repository(c: Any) -> None:
    assert {"name": "ident", "version": "1", "state": "READY"} in c.get_model_repository_index()


def check_load_with_config(c: Any) -> None:
    c.load_model("spare", config='{"max_batch_size": 2}')
    assert c.get_model_config("spare")["max_batch_size"] == 2
    c.load_model("spare", config='{"max_batch_size": 8}')


def check_settings(c: Any) -> None:
    assert c.get_trace_settings()["trace_level"] == ["OFF"]
    assert "trace_rate" in c.update_trace_settings("ident", {"trace_rate": "1000"})
    assert c.get_log_settings()["log_info"] is True
    assert c.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0


def check_infer(c: Any) -> None:
    result = c.infer("ident", [given(client, FOUR, "FP32")], "1", request_id="seven",
                     query_params={"a": "b"})  # fmt: skip
    same(result, FOUR)
    answer = result.get_response()
    assert answer["id"] == "seven" and answer["model_name"] == "ident"


def check_infer_json(c: Any) -> None:
    inputs = [given(client, FOUR, "FP32", binary_data=False)]
    outputs = [client.InferRequestedOutput("OUTPUT0", binary_data=False)]
    same(c.infer("ident", inputs, outputs=outputs), FOUR)
    mixed = [client.InferRequestedOutput("OUTPUT0", binary_data=True)]
    same(c.infer("ident", inputs, outputs=mixed), FOUR)
    words = np.array([["", "a", "bäm"]], np.object_)
    inputs = [given(client, words, "BYTES", binary_data=False)]
    got = c.infer("text", inputs, outputs=outputs).as_numpy("OUTPUT0")
    assert list(got.ravel()) == ["", "a", "bäm"], got


def check_compression(c: Any) -> None:
    wide = np.zeros((1, 5000), np.float32)
    inputs = [given(client, wide, "FP32")]
    for request in ("gzip", "deflate", None):
        for response in ("gzip", "deflate", None):
            how = {
                "request_compression_algorithm": request,
                "response_compression_algorithm": response,
            }
            same(c.infer("any", inputs, **how), wide)


def check_bodies_built_apart(address: str) -> None:
    body, size = client.InferenceServerClient.generate_request_body([given(client, FOUR, "FP32")])
    headers = {"Inference-Header-Content-Length": str(size)} if size else {}
    url = f"http://{address}/v2/models/ident/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
        head = int(reply.headers.get("Inference-Header-Content-Length"))
        parse = client.InferenceServerClient.parse_response_body
        same(parse(reply.read(), header_length=head), FOUR)


def check_async_infer(address: str) -> None:
    with client.InferenceServerClient(address, concurrency=4) as c:
        inputs = [given(client, FOUR, "FP32")]
        waiting = [c.async_infer("ident", inputs, request_id=str(i)) for i in range(12)]
        for number, one in enumerate(waiting):
            result = one.get_result()
            same(result, FOUR)
            assert result.get_response()["id"] == str(number)


def check_network_timeout(c: Any, address: str) -> None:
    with client.InferenceServerClient(address, network_timeout=0.2) as hasty:
        try:
            hasty.infer("slow", [given(client, SLOW, "FP32")])
        except Exception as error:
            assert "timed out" in str(error).lower(), error
        else:
            raise AssertionError("the client did not give up")
    check_infer(c)


def check_system_shared_memory(c: Any) -> None:
    region = shm.create_shared_memory_region("peers", "/interlace_peers_http", 32)
    try:
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
