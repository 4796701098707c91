"""Calls that every flavour of tritonclient has."""

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from .tensors import FOUR, given, pair, refused, same


def check_health(c: Any) -> None:
    assert c.is_server_live() and c.is_server_ready()
    assert c.is_model_ready("ident") and c.is_model_ready("ident", "1")
    assert not c.is_model_ready("nope") and not c.is_model_ready("ident", "9")


def check_loading(c: Any) -> None:
    c.unload_model("spare", unload_dependents=True)
    assert not c.is_model_ready("spare")
    c.load_model("spare")
    assert c.is_model_ready("spare")
    refused(lambda: c.load_model("nope"), "nope")


def check_two_inputs_and_outputs(c: Any, client: ModuleType) -> None:
    inputs, total, difference = pair(client)
    result = c.infer("pair", inputs)
    same(result, total)
    same(result, difference, "OUTPUT1")
    outputs = [client.InferRequestedOutput(name) for name in ("OUTPUT1", "OUTPUT0")]
    same(c.infer("pair", inputs, outputs=outputs), total)
    result = c.infer("pair", inputs, outputs=outputs[:1])
    same(result, difference, "OUTPUT1")
    assert result.as_numpy("OUTPUT0") is None


def check_datatypes(c: Any, client: ModuleType) -> None:
    half = np.array([[1.5, -2]], np.float16)
    brain = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    words = np.array([["", "a", "bäm"]], np.object_)
    same(c.infer("half", [given(client, half, "FP16")]), half)
    same(c.infer("brain", [given(client, brain, "BF16")]), brain)
    got = c.infer("text", [given(client, words, "BYTES")]).as_numpy("OUTPUT0")
    assert [b.decode() for b in got.ravel()] == ["", "a", "bäm"], got


def check_shapes(c: Any, client: ModuleType) -> None:
    many = np.arange(32, dtype=np.float32).reshape(8, 4)
    same(c.infer("ident", [given(client, many, "FP32")]), many)
    flat = np.arange(3, dtype=np.float32)
    same(c.infer("plain", [given(client, flat, "FP32")]), flat)
    wide = np.random.default_rng(1).standard_normal((1, 2_000_000)).astype(np.float32)
    same(c.infer("any", [given(client, wide, "FP32")]), wide)


def check_classification(c: Any, client: ModuleType) -> None:
    outputs = [client.InferRequestedOutput("OUTPUT0", class_count=2)]
    result = c.infer("label", [given(client, FOUR, "FP32")], outputs=outputs)
    got = [b.decode() for b in result.as_numpy("OUTPUT0").ravel()]
    assert got == ["3.000000:3:four", "2.000000:2:three"], got


def check_parameters(c: Any, client: ModuleType) -> None:
    inputs = [given(client, FOUR, "FP32")]
    same(c.infer("ident", inputs, model_version="1"), FOUR)
    same(c.infer("ident", inputs, parameters={"mine": "x", "count": 3}), FOUR)
    same(c.infer("ident", inputs, priority=1, timeout=5_000_000), FOUR)
    same(c.infer("ident", inputs, headers={"x-mine": "1"}), FOUR)


def check_errors(c: Any, client: ModuleType) -> None:
    http = client.__name__.startswith("tritonclient.http")
    missing, bad = ("404", "400") if http else ("NOT_FOUND", "INVALID_ARGUMENT")
    good = [given(client, FOUR, "FP32")]
    refused(lambda: c.get_model_metadata("nope"), missing, "unknown model: 'nope'")
    refused(lambda: c.infer("nope", good), missing, "'nope'")
    refused(lambda: c.infer("ident", good, model_version="9"), missing, "version 9")
    refused(lambda: c.infer("ident", []), bad, "INPUT0")
    wide = [given(client, np.zeros((1, 5), np.float32), "FP32")]
    refused(lambda: c.infer("ident", wide), bad, "INPUT0")
    wanted = [client.InferRequestedOutput("NOPE")]
    refused(lambda: c.infer("ident", good, outputs=wanted), bad, "NOPE")
    many = [given(client, np.zeros((9, 4), np.float32), "FP32")]
    refused(lambda: c.infer("ident", many), bad, "8")
    same(c.infer("ident", good), FOUR)


def check_cuda_shared_memory(c: Any) -> None:
    c.unregister_cuda_shared_memory()
    status = c.get_cuda_shared_memory_status()
    assert not getattr(status, "regions", status)
    refused(lambda: c.register_cuda_shared_memory("x", b"AAAA", 0, 64))
