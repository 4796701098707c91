"""Every administrative method, from the public client to ``AdminApi`` and back."""

import json
from collections.abc import Iterator
from multiprocessing import shared_memory

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import TensorSpec
from interlace.proto.messages import HEALTH, SERVICE
from interlace.server.administration.api import IndexEntry
from interlace.server.model_table import ServedModel
from tests.server.fakes import model
from tests.server.grpc.fakes import Main


class Stand:
    """A server with two versions of a model, and the public client."""

    def __init__(self, main: Main) -> None:
        self.main = main
        self.control = main.control
        self.client = triton.InferenceServerClient(main.target)


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Main() as main:
        inputs = [TensorSpec("INPUT", "FP32", (16,))]
        outputs = [TensorSpec("OUTPUT", "FP32", (-1, 4))]
        for version in (1, 2):
            main.table.publish(ServedModel(model("mine", inputs, outputs, version=version)))
        made = Stand(main)
        yield made
        made.client.close()


def test_every_method_is_there(stand: Stand) -> None:
    every = {f"/{s.full_name}/{method.name}" for s in (SERVICE, HEALTH) for method in s.methods}
    assert stand.main.server._service.paths == every


def test_health(stand: Stand) -> None:
    client = stand.client
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("mine") and client.is_model_ready("mine", "2")
    assert not client.is_model_ready("mine", "9") and not client.is_model_ready("nope")
    stand.control.is_ready = False
    assert client.is_server_live() and not client.is_server_ready()
    stand.control.is_ready = True


def test_statistics(stand: Stand) -> None:
    found = stand.client.get_inference_statistics("mine", "2").model_stats
    assert [(each.name, each.version) for each in found] == [("mine", "2")]
    assert found[0].inference_stats.success.count == 0
    assert len(stand.client.get_inference_statistics().model_stats) == 2
    with pytest.raises(InferenceServerException, match="requested model 'x' is not available"):
        stand.client.get_inference_statistics("x")


def test_repository(stand: Stand) -> None:
    stand.control.entries = [
        IndexEntry("mine", "1", "READY"),
        IndexEntry("bad", "1", "UNAVAILABLE", "it is broken"),
    ]
    index = stand.client.get_model_repository_index().models
    assert [(e.name, e.version, e.state, e.reason) for e in index] == [
        ("mine", "1", "READY", ""),
        ("bad", "1", "UNAVAILABLE", "it is broken"),
    ]
    files = {"file:1/model.onnx": b"\0\1\2" * 100_000}
    stand.client.load_model("mine", config=json.dumps({"max_batch_size": 4}), files=files)
    stand.client.unload_model("mine")
    loaded, unloaded = stand.control.calls
    assert loaded == (
        "load",
        "mine",
        '{"max_batch_size": 4}',
        {"1/model.onnx": b"\0\1\2" * 100_000},
    )
    assert unloaded == ("unload", "mine")
    stand.control.error = ServeError(Reason.BACKEND, "failed to load 'mine'")
    with pytest.raises(InferenceServerException, match="failed to load 'mine'"):
        stand.client.load_model("mine")
    stand.control.error = None


def test_shared_memory(stand: Stand) -> None:
    client = stand.client
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
        client.register_system_shared_memory("r", "/interlace-test-no-such", 64)
    with pytest.raises(InferenceServerException, match="not supported here"):
        client.register_cuda_shared_memory("r", b"aGk=", 0, 64)
    with pytest.raises(InferenceServerException, match="Unable to find"):
        client.get_system_shared_memory_status("r")


def test_a_region_can_be_registered(stand: Stand) -> None:
    segment = shared_memory.SharedMemory(create=True, size=128)
    try:
        stand.client.register_system_shared_memory("r", segment.name, 64, 32)
        region = stand.client.get_system_shared_memory_status("r").regions["r"]
        assert (region.key, region.offset, region.byte_size) == (segment.name, 32, 64)
        stand.client.unregister_system_shared_memory("r")
        assert not stand.client.get_system_shared_memory_status().regions
    finally:
        segment.close()
        segment.unlink()


def test_settings(stand: Stand) -> None:
    client = stand.client
    trace = client.get_trace_settings().settings
    assert list(trace["trace_level"].value) == ["OFF"] and list(trace["trace_file"].value) == [""]
    assert client.update_trace_settings(settings={"trace_level": ["OFF"], "trace_rate": None})
    with pytest.raises(InferenceServerException, match="trace_level"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    log = client.get_log_settings().settings
    assert log["log_info"].bool_param and log["log_verbose_level"].uint32_param == 0
    assert client.update_log_settings({"log_info": True})
    with pytest.raises(InferenceServerException, match="unknown log setting 'nope'"):
        client.update_log_settings({"nope": True})
