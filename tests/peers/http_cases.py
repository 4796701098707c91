"""HTTP calls to put to two servers: well-formed ones and every kind of malformed one."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from typing import Any, NamedTuple

Json = dict[str, Any]
#: A region of zeros that exists while the calls are made.
SHM_KEY, SHM_BYTES = "/interlace_peers_region", 64
BINARY = "Inference-Header-Content-Length"


class HttpCase(NamedTuple):
    """One call; ``name`` is unique and its part before the first ``.`` is the group."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def tensor(name: str, datatype: str, shape: object, **rest: object) -> Json:
    return {"name": name, "shape": shape, "datatype": datatype, **rest}


def ident(data: object = (1.0, 2.0, 3.0, 4.0), shape: object = (1, 4), **rest: object) -> Json:
    return tensor("INPUT0", "FP32", shape, data=data, **rest)


def pair(first: object, second: object) -> list[Json]:
    return [
        tensor("INPUT0", "INT32", [1, 2], data=first),
        tensor("INPUT1", "INT32", [1, 2], data=second),
    ]


def infer(name: str, model: str, head: object, **more: Any) -> HttpCase:
    """A POST to a model; ``raw`` bytes follow the JSON as the binary extension lays them."""
    raw: bytes | None = more.get("raw")
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    headers = list(more.get("headers", ()))
    if raw is not None:
        headers.append((BINARY, str(more.get("length", len(text)))))
    path = f"/v2/models/{model}{more.get('version', '')}/infer"
    return HttpCase(f"infer.{name}", "POST", path, text + (raw or b""), tuple(headers))


def sized(size: int, **rest: object) -> Json:
    return tensor("INPUT0", "FP32", [1, 4], parameters={"binary_data_size": size}, **rest)


def _server() -> list[HttpCase]:
    get = [
        ("live", "/v2/health/live"),
        ("ready", "/v2/health/ready"),
        ("metadata", "/v2"),
        ("metadata_slash", "/v2/"),
        ("root", "/"),
        ("unknown_path", "/v2/nope"),
        ("models_slash", "/v2/models/"),
        ("model_metadata", "/v2/models/ident"),
        ("model_metadata_slash", "/v2/models/ident/"),
        ("model_metadata_plain", "/v2/models/plain"),
        ("model_metadata_version", "/v2/models/ident/versions/1"),
        ("model_metadata_version_unknown", "/v2/models/ident/versions/9"),
        ("model_metadata_version_word", "/v2/models/ident/versions/one"),
        ("model_metadata_unknown", "/v2/models/nope"),
        ("model_ready", "/v2/models/ident/ready"),
        ("model_ready_version", "/v2/models/ident/versions/1/ready"),
        ("model_ready_unknown", "/v2/models/nope/ready"),
        ("model_ready_version_unknown", "/v2/models/ident/versions/9/ready"),
        ("config", "/v2/models/ident/config"),
        ("config_pair", "/v2/models/pair/versions/1/config"),
        ("config_unknown", "/v2/models/nope/config"),
        ("stats", "/v2/models/ident/stats"),
        ("stats_version", "/v2/models/ident/versions/1/stats"),
        ("stats_all", "/v2/models/stats"),
        ("stats_unknown", "/v2/models/nope/stats"),
        ("stats_version_unknown", "/v2/models/ident/versions/9/stats"),
        ("trace", "/v2/trace/setting"),
        ("trace_model", "/v2/models/ident/trace/setting"),
        ("trace_model_unknown", "/v2/models/nope/trace/setting"),
        ("logging", "/v2/logging"),
        ("infer_get", "/v2/models/ident/infer"),
        ("index_get", "/v2/repository/index"),
        ("unknown_verb", "/v2/models/ident/nope"),
    ]
    cases = [HttpCase(f"server.{name}", "GET", path) for name, path in get]
    post = [
        ("metadata_post", "/v2", b"{}"),
        ("live_post", "/v2/health/live", b"{}"),
        ("trace_set", "/v2/trace/setting", b'{"trace_rate":"500"}'),
        ("trace_set_back", "/v2/trace/setting", b'{"trace_rate":null}'),
        ("trace_set_unknown", "/v2/trace/setting", b'{"nope":"1"}'),
        ("trace_set_not_json", "/v2/trace/setting", b"{"),
        ("logging_set", "/v2/logging", b'{"log_verbose_level":0}'),
        ("logging_set_unknown", "/v2/logging", b'{"nope":1}'),
        ("logging_set_wrong_type", "/v2/logging", b'{"log_info":"yes"}'),
    ]
    return cases + [HttpCase(f"server.{n}", "POST", path, body) for n, path, body in post]


def _repository() -> list[HttpCase]:
    at = "/v2/repository"
    bad = json.dumps({"parameters": {"config": '{"max_batch_size": "many"}'}}).encode()
    less = json.dumps({"parameters": {"config": '{"max_batch_size": 4}'}}).encode()
    post = [
        ("index", f"{at}/index", b"{}"),
        ("index_empty_body", f"{at}/index", b""),
        ("index_ready", f"{at}/index", b'{"ready":true}'),
        ("index_named", f"{at}/nope/index", b"{}"),
        ("index_not_json", f"{at}/index", b"{"),
        ("index_ready_word", f"{at}/index", b'{"ready":"yes"}'),
        ("load_unknown", f"{at}/models/nope/load", b"{}"),
        ("load_bad_config", f"{at}/models/spare/load", bad),
        ("load_config_not_json", f"{at}/models/spare/load", b'{"parameters":{"config":"{"}}'),
        ("load_unknown_parameter", f"{at}/models/spare/load", b'{"parameters":{"nope":1}}'),
        ("load_not_json", f"{at}/models/spare/load", b"{"),
        ("load", f"{at}/models/spare/load", b"{}"),
        ("load_again", f"{at}/models/spare/load", b""),
        ("load_config", f"{at}/models/spare/load", less),
        ("unload", f"{at}/models/spare/unload", b'{"parameters":{"unload_dependents":true}}'),
        ("unload_again", f"{at}/models/spare/unload", b"{}"),
        ("unload_unknown", f"{at}/models/nope/unload", b"{}"),
        ("unload_not_json", f"{at}/models/nope/unload", b"{"),
    ]
    cases = [HttpCase(f"repository.{n}", "POST", path, body) for n, path, body in post]
    after = ("/v2/models/spare", "/v2/models/spare/ready")
    cases += [HttpCase(f"repository.after{p.count('/')}", "GET", p) for p in after]
    return cases


def _in_region() -> list[HttpCase]:
    """Calls whose tensors lie in the region ``mine``."""

    def at(offset: int, size: int) -> Json:
        place = {"shared_memory_offset": offset} if offset else {}
        return {"shared_memory_region": "mine", "shared_memory_byte_size": size, **place}

    def call(name: str, inside: Json, outside: Json | None) -> HttpCase:
        given = [tensor("INPUT0", "FP32", [1, 4], parameters=inside)]
        wanted = {"outputs": [{"name": "OUTPUT0", "parameters": outside}]} if outside else {}
        return infer(name, "ident", {"inputs": given, **wanted})

    return [
        call("shm_in", at(0, 16), None),
        call("shm_both", at(0, 16), at(16, 16)),
        call("shm_input_small", at(0, 12), None),
        call("shm_output_small", at(0, 16), at(16, 12)),
        call("shm_output_large", at(0, 16), at(16, 32)),
        call("shm_past_end", at(SHM_BYTES - 8, 16), None),
        call("shm_offset_past_end", at(SHM_BYTES + 8, 16), None),
        call("shm_output_past_end", at(0, 16), at(SHM_BYTES - 8, 16)),
    ]


def _shm() -> list[HttpCase]:
    system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    key = b'{"key":"/interlace-peers-absent","offset":0,"byte_size":64}'
    mine = json.dumps({"key": SHM_KEY, "offset": 0, "byte_size": SHM_BYTES}).encode()
    handle = b'{"raw_handle":{"b64":"AAAA"},"device_id":0,"byte_size":64}'
    region = {"shared_memory_region": "absent", "shared_memory_byte_size": 16}
    cases = [
        HttpCase("shm.status", "GET", f"{system}/status"),
        HttpCase("shm.status_unknown", "GET", f"{system}/region/absent/status"),
        HttpCase("shm.register_absent", "POST", f"{system}/region/absent/register", key),
        HttpCase("shm.register_no_key", "POST", f"{system}/region/x/register", b'{"byte_size":64}'),
        HttpCase("shm.register_no_size", "POST", f"{system}/region/x/register", b'{"key":"/x"}'),
        HttpCase("shm.register_not_json", "POST", f"{system}/region/x/register", b"{"),
        HttpCase("shm.register_empty", "POST", f"{system}/region/x/register", b""),
        HttpCase("shm.register", "POST", f"{system}/region/mine/register", mine),
        HttpCase("shm.register_again", "POST", f"{system}/region/mine/register", mine),
        HttpCase("shm.status_one", "GET", f"{system}/region/mine/status"),
        HttpCase("shm.status_two", "GET", f"{system}/status"),
        *_in_region(),
        HttpCase("shm.unregister", "POST", f"{system}/region/mine/unregister"),
        HttpCase("shm.unregister_unknown", "POST", f"{system}/region/absent/unregister"),
        HttpCase("shm.unregister_all", "POST", f"{system}/unregister"),
        HttpCase("shm.cuda_status", "GET", f"{cuda}/status"),
        HttpCase("shm.cuda_register", "POST", f"{cuda}/region/x/register", handle),
        HttpCase("shm.cuda_unregister_unknown", "POST", f"{cuda}/region/absent/unregister"),
        HttpCase("shm.cuda_unregister_all", "POST", f"{cuda}/unregister"),
    ]
    absent = tensor("INPUT0", "FP32", [1, 4], parameters=region)
    cases.append(infer("shm_absent_region", "ident", {"inputs": [absent]}))
    wanted = {"name": "OUTPUT0", "parameters": region}
    cases.append(infer("shm_absent_output", "ident", {"inputs": [ident()], "outputs": [wanted]}))
    return cases


def _good() -> list[HttpCase]:
    four, whole = floats(1, 2, 3, 4), {"inputs": [ident()]}
    binary_out = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    text = json.dumps(whole).encode()
    strings = tensor("INPUT0", "BYTES", [1, 2], data=["a", "bcd"])
    packed = struct.pack("<I1sI3s", 1, b"a", 3, b"bcd")
    packed_head = tensor("INPUT0", "BYTES", [1, 2], parameters={"binary_data_size": len(packed)})
    two = tensor("INPUT0", "FP16", [1, 2], parameters={"binary_data_size": 4})
    brain = tensor("INPUT0", "BF16", [1, 2], parameters={"binary_data_size": 4})
    top = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
    every = {"binary_data_output": True}
    return [
        infer("flat", "ident", whole),
        infer("nested", "ident", {"inputs": [ident([[1.0, 2.0, 3.0, 4.0]])]}),
        infer("integers_for_floats", "ident", {"inputs": [ident([1, 2, 3, 4])]}),
        infer("id", "ident", {"id": "seven", **whole}),
        infer("version", "ident", whole, version="/versions/1"),
        infer("named_output", "ident", {**whole, "outputs": [{"name": "OUTPUT0"}]}),
        infer("no_outputs_named", "ident", {**whole, "outputs": []}),
        infer("binary_in", "ident", {"inputs": [sized(16)]}, raw=four),
        infer("binary_both", "ident", {"inputs": [sized(16)], "outputs": binary_out}, raw=four),
        infer("binary_out", "ident", {**whole, "outputs": binary_out}),
        infer("binary_out_all", "ident", {**whole, "parameters": every}),
        infer("raw_body", "ident", b"", raw=four, length=0),
        infer("rows_2", "ident", {"inputs": [ident(list(range(8)), [2, 4])]}),
        infer("rows_8", "ident", {"inputs": [ident(list(range(32)), [8, 4])]}),
        infer("pair", "pair", {"inputs": pair([5, 7], [2, 3])}),
        infer(
            "pair_one_output",
            "pair",
            {"inputs": pair([5, 7], [2, 3]), "outputs": [{"name": "OUTPUT1"}]},
        ),
        infer("pair_swapped", "pair", {"inputs": pair([5, 7], [2, 3])[::-1]}),
        infer("plain", "plain", {"inputs": [ident([1, 2, 3], [3])]}),
        infer("any_length", "any", {"inputs": [ident([1, 2, 3], [1, 3])]}),
        infer("any_length_0", "any", {"inputs": [ident([], [1, 0])]}),
        infer("bytes_json", "text", {"inputs": [strings]}),
        infer("bytes_binary", "text", {"inputs": [packed_head], "parameters": every}, raw=packed),
        infer("fp16", "half", {"inputs": [two], "parameters": every}, raw=b"\x00\x3c\x00\x40"),
        infer("bf16", "brain", {"inputs": [brain], "parameters": every}, raw=b"\x80\x3f\x00\x40"),
        infer("classification", "label", {"inputs": [ident()], "outputs": top}),
        infer("unknown_parameters", "ident", {**whole, "parameters": {"mine": 1, "other": "x"}}),
        infer("unknown_keys", "ident", {**whole, "mine": {"a": [1]}}),
        infer("gzip", "ident", gzip.compress(text), headers=[("Content-Encoding", "gzip")]),
        infer("deflate", "ident", zlib.compress(text), headers=[("Content-Encoding", "deflate")]),
        infer("accept_gzip", "ident", whole, headers=[("Accept-Encoding", "gzip")]),
        infer("accept_deflate", "ident", whole, headers=[("Accept-Encoding", "deflate")]),
        infer("priority", "ident", {**whole, "parameters": {"priority": 1}}),
        infer("timeout", "ident", {**whole, "parameters": {"timeout": 5_000_000}}),
    ]


def _bad_json() -> list[HttpCase]:
    whole = {"inputs": [ident()]}
    without = {k: {x: y for x, y in ident().items() if x != k} for k in ident()}
    cases = [infer(f"no_{key}", "ident", {"inputs": [one]}) for key, one in without.items()]
    heads: list[tuple[str, object]] = [
        ("empty_body", b""),
        ("not_json", b'{"inputs": [{"name": '),
        ("array", []),
        ("no_inputs", {}),
        ("inputs_empty", {"inputs": []}),
        ("inputs_object", {"inputs": {}}),
        ("input_not_object", {"inputs": [3]}),
        ("name_number", {"inputs": [tensor(3, "FP32", [1, 4], data=[1, 2, 3, 4])]}),  # type: ignore[arg-type]
        ("shape_word", {"inputs": [ident(shape="1,4")]}),
        ("shape_float", {"inputs": [ident(shape=[1.5, 4])]}),
        ("shape_negative", {"inputs": [ident(shape=[1, -4])]}),
        ("shape_huge", {"inputs": [ident(shape=[1, 4611686018427387904])]}),
        ("shape_wrong_dim", {"inputs": [ident([1, 2, 3], [1, 3])]}),
        ("shape_no_batch", {"inputs": [ident(shape=[4])]}),
        ("shape_extra_dim", {"inputs": [ident(shape=[1, 1, 4])]}),
        ("rows_0", {"inputs": [ident([], [0, 4])]}),
        ("rows_9", {"inputs": [ident(list(range(36)), [9, 4])]}),
        ("datatype_unknown", {"inputs": [tensor("INPUT0", "FP99", [1, 4], data=[1, 2, 3, 4])]}),
        ("datatype_wrong", {"inputs": [tensor("INPUT0", "INT32", [1, 4], data=[1, 2, 3, 4])]}),
        ("data_short", {"inputs": [ident([1, 2, 3])]}),
        ("data_long", {"inputs": [ident([1, 2, 3, 4, 5])]}),
        ("data_words", {"inputs": [ident(["a", "b", "c", "d"])]}),
        ("data_null", {"inputs": [ident(None)]}),
        ("data_bools", {"inputs": [ident([True, False, True, False])]}),
        ("data_scalar", {"inputs": [ident(4.0)]}),
        ("input_unknown", {"inputs": [tensor("WRONG", "FP32", [1, 4], data=[1, 2, 3, 4])]}),
        ("input_extra", {"inputs": [ident(), tensor("MORE", "FP32", [1, 4], data=[1, 2, 3, 4])]}),
        ("input_twice", {"inputs": [ident(), ident()]}),
        ("output_unknown", {**whole, "outputs": [{"name": "NOPE"}]}),
        ("output_twice", {**whole, "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]}),
        ("output_no_name", {**whole, "outputs": [{}]}),
        ("outputs_object", {**whole, "outputs": {}}),
        ("id_number", {**whole, "id": 7}),
        ("parameters_array", {**whole, "parameters": []}),
        ("timeout_word", {**whole, "parameters": {"timeout": "soon"}}),
        ("priority_word", {**whole, "parameters": {"priority": "high"}}),
        (
            "binary_data_word",
            {**whole, "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": "yes"}}]},
        ),
    ]
    cases += [infer(name, "ident", head) for name, head in heads]
    pairs: list[tuple[str, str, object]] = [
        ("pair_missing", "pair", {"inputs": pair([5, 7], [2, 3])[:1]}),
        (
            "pair_rows_differ",
            "pair",
            {
                "inputs": [
                    pair([5, 7], [2, 3])[0],
                    tensor("INPUT1", "INT32", [2, 2], data=[1, 2, 3, 4]),
                ]
            },
        ),
        ("float_for_int", "pair", {"inputs": pair([5.5, 7], [2, 3])}),
        ("int_too_large", "pair", {"inputs": pair([1 << 40, 7], [2, 3])}),
        ("fp16_json", "half", {"inputs": [tensor("INPUT0", "FP16", [1, 2], data=[1, 2])]}),
        ("bytes_numbers", "text", {"inputs": [tensor("INPUT0", "BYTES", [1, 2], data=[1, 2])]}),
        ("unknown_model", "nope", whole),
        (
            "classification_0",
            "label",
            {
                "inputs": [ident()],
                "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 0}}],
            },
        ),
        ("plain_wrong", "plain", {"inputs": [ident([1, 2, 3, 4], [1, 4])]}),
    ]
    return cases + [infer(*row) for row in pairs]


def _bad_binary() -> list[HttpCase]:
    four = floats(1, 2, 3, 4)
    head = {"inputs": [sized(16)]}
    text = json.dumps({"inputs": [ident()]}).encode()
    loose = struct.pack("<I", 99) + b"abc"
    loose_head = tensor("INPUT0", "BYTES", [1, 1], parameters={"binary_data_size": len(loose)})
    no_head = [sized(16)]
    return [
        infer("binary_short", "ident", head, raw=four[:-3]),
        infer("binary_long", "ident", head, raw=four + b"more"),
        infer("binary_none", "ident", head, raw=b""),
        infer("binary_size_small", "ident", {"inputs": [sized(12)]}, raw=four[:12]),
        infer("binary_size_large", "ident", {"inputs": [sized(20)]}, raw=four + four[:4]),
        infer("binary_size_negative", "ident", {"inputs": [sized(-1)]}, raw=four),
        infer("binary_and_data", "ident", {"inputs": [sized(16, data=[1, 2, 3, 4])]}, raw=four),
        infer("binary_no_length", "ident", {"inputs": no_head}),
        infer("length_too_large", "ident", head, raw=four, length=9999),
        infer("length_negative", "ident", head, raw=four, length=-5),
        infer("length_word", "ident", head, raw=four, length="many"),
        infer("length_cuts_json", "ident", head, raw=four, length=10),
        infer("bytes_length_past_end", "text", {"inputs": [loose_head]}, raw=loose),
        infer("raw_body_short", "ident", b"", raw=four[:12], length=0),
        infer("raw_body_two_inputs", "pair", b"", raw=four, length=0),
        infer("gzip_broken", "ident", b"\x1f\x8bnope", headers=[("Content-Encoding", "gzip")]),
        infer("encoding_unknown", "ident", text, headers=[("Content-Encoding", "br")]),
        infer("version_unknown", "ident", text, version="/versions/9"),
        infer("version_word", "ident", text, version="/versions/one"),
    ]


def http_cases() -> list[HttpCase]:
    """Every HTTP call, in the order they must be made."""
    return [*_server(), *_good(), *_bad_json(), *_bad_binary(), *_shm(), *_repository()]
