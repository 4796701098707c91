"""gRPC calls to put to two servers, with messages in protobuf's JSON form."""

import base64
import struct
from typing import Any, NamedTuple

from .http_case import SHM_BYTES, SHM_KEY

Json = dict[str, Any]
KINDS = {"FP32": "fp32_contents", "INT32": "int_contents", "BYTES": "bytes_contents"}


class GrpcCase(NamedTuple):
    """One call; ``messages`` holds one request, or those of a stream in order."""

    name: str
    method: str
    messages: tuple[Json, ...]
    metadata: tuple[tuple[str, str], ...] = ()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def floats(*values: float) -> str:
    return b64(struct.pack(f"<{len(values)}f", *values))


def tensor(name: str, datatype: str, shape: object, data: object = None, **rest: object) -> Json:
    head: Json = {"name": name, "datatype": datatype, "shape": shape, **rest}
    return head if data is None else {**head, "contents": {KINDS[datatype]: data}}


def ident(shape: object = (1, 4), data: object = (1, 2, 3, 4), **rest: object) -> Json:
    return tensor("INPUT0", "FP32", list(shape), data and list(data), **rest)  # type: ignore[call-overload]


def call(model: str, inputs: list[Json], *raw: str, **rest: object) -> Json:
    head: Json = {"model_name": model, "inputs": inputs, **rest}
    return {**head, "raw_input_contents": list(raw)} if raw else head


def one(name: str, method: str, message: Json | None = None) -> GrpcCase:
    return GrpcCase(name, method, (message or {},))


def infer(name: str, message: Json) -> GrpcCase:
    return GrpcCase(f"infer.{name}", "ModelInfer", (message,))


def _in_region() -> list[GrpcCase]:
    """Calls whose tensors lie in the region ``mine``."""

    def at(offset: int, size: int) -> Json:
        place = {"shared_memory_offset": {"int64_param": offset}} if offset else {}
        region = {"shared_memory_region": {"string_param": "mine"}}
        return {**region, "shared_memory_byte_size": {"int64_param": size}, **place}

    def both(name: str, inside: Json, outside: Json | None) -> GrpcCase:
        wanted = {"outputs": [{"name": "OUTPUT0", "parameters": outside}]} if outside else {}
        return infer(name, call("ident", [ident(data=None, parameters=inside)], **wanted))

    return [
        both("shm_in", at(0, 16), None),
        both("shm_both", at(0, 16), at(16, 16)),
        both("shm_input_small", at(0, 12), None),
        both("shm_output_small", at(0, 16), at(16, 12)),
        both("shm_past_end", at(SHM_BYTES - 8, 16), None),
    ]


def _server() -> list[GrpcCase]:
    shm = {"name": "x", "key": "/interlace-peers-absent", "offset": 0, "byte_size": 64}
    mine = {"name": "mine", "key": SHM_KEY, "byte_size": SHM_BYTES}
    cases = [
        one("server.live", "ServerLive"),
        one("server.ready", "ServerReady"),
        one("server.metadata", "ServerMetadata"),
        one("server.trace", "TraceSetting"),
        one("server.trace_unknown_model", "TraceSetting", {"model_name": "nope"}),
        one("server.logging", "LogSettings"),
        one("server.index", "RepositoryIndex"),
        one("server.index_ready", "RepositoryIndex", {"ready": True}),
        one("shm.status", "SystemSharedMemoryStatus"),
        one("shm.status_unknown", "SystemSharedMemoryStatus", {"name": "absent"}),
        one("shm.register_absent", "SystemSharedMemoryRegister", shm),
        one("shm.register_empty", "SystemSharedMemoryRegister"),
        one("shm.register", "SystemSharedMemoryRegister", mine),
        one("shm.register_again", "SystemSharedMemoryRegister", mine),
        one("shm.status_one", "SystemSharedMemoryStatus", {"name": "mine"}),
        *_in_region(),
        one("shm.unregister", "SystemSharedMemoryUnregister", {"name": "mine"}),
        one("shm.unregister_unknown", "SystemSharedMemoryUnregister", {"name": "absent"}),
        one("shm.unregister_all", "SystemSharedMemoryUnregister"),
        one("shm.cuda_status", "CudaSharedMemoryStatus"),
        one("shm.cuda_unregister_all", "CudaSharedMemoryUnregister"),
        one("shm.cuda_register", "CudaSharedMemoryRegister", {"name": "x", "byte_size": 64}),
    ]
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        cases += [
            one(f"{method}.known", method, {"name": "ident"}),
            one(f"{method}.version", method, {"name": "ident", "version": "1"}),
            one(f"{method}.version_unknown", method, {"name": "ident", "version": "9"}),
            one(f"{method}.version_word", method, {"name": "ident", "version": "one"}),
            one(f"{method}.unknown", method, {"name": "nope"}),
        ]
    return [
        *cases,
        one("ModelReady.unnamed", "ModelReady"),
        one("ModelMetadata.unnamed", "ModelMetadata"),
    ]


def _good() -> list[GrpcCase]:
    pair = [tensor(f"INPUT{i}", "INT32", [1, 2], d) for i, d in enumerate(([5, 7], [2, 3]))]
    words = tensor("INPUT0", "BYTES", [1, 2], [b64(b"a"), b64(b"bcd")])
    packed = b64(struct.pack("<I1sI3s", 1, b"a", 3, b"bcd"))
    top = [{"name": "OUTPUT0", "parameters": {"classification": {"int64_param": 2}}}]
    mine = {"mine": {"string_param": "x"}, "other": {"double_param": 1.5}}
    soon = {"timeout": {"int64_param": 5_000_000}}
    return [
        infer("contents", call("ident", [ident()])),
        infer("raw", call("ident", [ident(data=None)], floats(1, 2, 3, 4))),
        infer("id", call("ident", [ident()], id="seven")),
        infer("version", call("ident", [ident()], model_version="1")),
        infer("named_output", call("ident", [ident()], outputs=[{"name": "OUTPUT0"}])),
        infer("rows_8", call("ident", [ident((8, 4), range(32))])),
        infer("pair", call("pair", pair)),
        infer("pair_one_output", call("pair", pair, outputs=[{"name": "OUTPUT1"}])),
        infer("plain", call("plain", [ident((3,), (1, 2, 3))])),
        infer("any_length", call("any", [ident((1, 3), (1, 2, 3))])),
        infer("bytes_contents", call("text", [words])),
        infer("bytes_raw", call("text", [tensor("INPUT0", "BYTES", [1, 2])], packed)),
        infer("fp16", call("half", [tensor("INPUT0", "FP16", [1, 2])], b64(b"\x00\x3c\x00\x40"))),
        infer("bf16", call("brain", [tensor("INPUT0", "BF16", [1, 2])], b64(b"\x80\x3f\x00\x40"))),
        infer("classification", call("label", [ident()], outputs=top)),
        infer("parameters", call("ident", [ident()], parameters=mine)),
        infer("timeout", call("ident", [ident()], parameters=soon)),
    ]


def _bad() -> list[GrpcCase]:
    four = floats(1, 2, 3, 4)
    rows: list[tuple[str, Json]] = [
        ("no_inputs", call("ident", [])),
        ("no_model", call("", [ident()])),
        ("unknown_model", call("nope", [ident()])),
        ("unknown_version", call("ident", [ident()], model_version="9")),
        ("version_word", call("ident", [ident()], model_version="one")),
        ("no_name", call("ident", [tensor("", "FP32", [1, 4], [1, 2, 3, 4])])),
        ("no_shape", call("ident", [tensor("INPUT0", "FP32", [], [1, 2, 3, 4])])),
        ("no_datatype", call("ident", [{"name": "INPUT0", "shape": [1, 4]}], four)),
        ("no_data", call("ident", [ident(data=None)])),
        ("raw_and_contents", call("ident", [ident()], four)),
        ("raw_short", call("ident", [ident(data=None)], b64(b"\0" * 13))),
        ("raw_long", call("ident", [ident(data=None)], b64(b"\0" * 20))),
        ("raw_extra", call("ident", [ident(data=None)], four, four)),
        (
            "raw_missing",
            call("pair", [tensor(f"INPUT{i}", "INT32", [1, 2]) for i in (0, 1)], b64(b"\0" * 8)),
        ),
        ("contents_short", call("ident", [ident(data=(1, 2, 3))])),
        ("contents_long", call("ident", [ident(data=(1, 2, 3, 4, 5))])),
        (
            "contents_wrong_kind",
            call("ident", [{**ident(data=None), "contents": {"int_contents": [1, 2, 3, 4]}}]),
        ),
    ]
    return [infer(name, message) for name, message in [*rows, *_contradictions()]]


def _contradictions() -> list[tuple[str, Json]]:
    """Messages that are whole but do not fit the model."""
    one_pair = tensor("INPUT0", "INT32", [1, 2], [5, 7])
    taller = tensor("INPUT1", "INT32", [2, 2], [1, 2, 3, 4])
    four, absent = floats(1, 2, 3, 4), {"shared_memory_region": {"string_param": "absent"}}
    absent_16 = {**absent, "shared_memory_byte_size": {"int64_param": 16}}
    loose = b64(struct.pack("<I", 99) + b"abc")
    return [
        ("datatype_wrong", call("ident", [tensor("INPUT0", "INT32", [1, 4], [1, 2, 3, 4])])),
        ("datatype_unknown", call("ident", [{**ident(data=None), "datatype": "FP99"}], four)),
        ("shape_wrong_dim", call("ident", [ident((1, 3), (1, 2, 3))])),
        ("shape_no_batch", call("ident", [ident((4,))])),
        ("shape_negative", call("ident", [ident((1, -4))])),
        ("rows_0", call("ident", [ident((0, 4), None)], "")),
        ("rows_9", call("ident", [ident((9, 4), range(36))])),
        ("input_unknown", call("ident", [tensor("WRONG", "FP32", [1, 4], [1, 2, 3, 4])])),
        ("input_twice", call("ident", [ident(), ident()])),
        ("pair_missing", call("pair", [one_pair])),
        ("pair_rows_differ", call("pair", [one_pair, taller])),
        ("output_unknown", call("ident", [ident()], outputs=[{"name": "NOPE"}])),
        ("bytes_length_past_end", call("text", [tensor("INPUT0", "BYTES", [1, 1])], loose)),
        (
            "timeout_word",
            call("ident", [ident()], parameters={"timeout": {"string_param": "soon"}}),
        ),
        ("shm_absent_region", call("ident", [ident(data=None, parameters=absent_16)])),
        (
            "shm_absent_output",
            call("ident", [ident()], outputs=[{"name": "OUTPUT0", "parameters": absent_16}]),
        ),
    ]


def _stream() -> list[GrpcCase]:
    good, bad = call("ident", [ident()], id="a"), call("nope", [ident()], id="b")
    empty = {"triton_enable_empty_final_response": {"bool_param": True}}
    final = call("ident", [ident()], id="c", parameters=empty)
    strict = (("triton_grpc_error", "true"),)
    return [
        GrpcCase("stream.two", "ModelStreamInfer", (good, {**good, "id": "z"})),
        GrpcCase("stream.none", "ModelStreamInfer", ()),
        GrpcCase("stream.bad_then_good", "ModelStreamInfer", (bad, good)),
        GrpcCase("stream.bad_strict", "ModelStreamInfer", (bad, good), strict),
        GrpcCase("stream.empty_final", "ModelStreamInfer", (final,)),
    ]


def _repository() -> list[GrpcCase]:
    load, unload = "RepositoryModelLoad", "RepositoryModelUnload"
    bad = {"config": {"string_param": '{"max_batch_size": "many"}'}}
    less = {"config": {"string_param": '{"max_batch_size": 4}'}}
    return [
        one("repository.load_unknown", load, {"model_name": "nope"}),
        one("repository.load_unnamed", load),
        one("repository.load_bad_config", load, {"model_name": "spare", "parameters": bad}),
        one("repository.load", load, {"model_name": "spare"}),
        one("repository.load_config", load, {"model_name": "spare", "parameters": less}),
        one("repository.config_after", "ModelConfig", {"name": "spare"}),
        one("repository.unload", unload, {"model_name": "spare"}),
        one("repository.unload_again", unload, {"model_name": "spare"}),
        one("repository.unload_unknown", unload, {"model_name": "nope"}),
        one("repository.after", "ModelReady", {"name": "spare"}),
        one("repository.metadata_after", "ModelMetadata", {"name": "spare"}),
    ]


def grpc_cases() -> list[GrpcCase]:
    """Every gRPC call, in the order they must be made."""
    return [*_server(), *_good(), *_bad(), *_stream(), *_repository()]
