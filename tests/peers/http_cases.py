"""HTTP calls to put to two servers: all of them, and those that are not inference."""

import json

from .http_case import SHM_BYTES, SHM_KEY, HttpCase, Json, ident, infer, tensor
from .http_infer_cases import bad_binary, bad_json, good


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


def http_cases() -> list[HttpCase]:
    """Every HTTP call, in the order they must be made."""
    return [*_server(), *good(), *bad_json(), *bad_binary(), *_shm(), *_repository()]
