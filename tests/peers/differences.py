"""Every allowed difference from Triton, its reason, and the page that lists them."""

import json

from .record import Answer, Answers

#: Reasons by key, in the order of the page; every case that differs has one.
REASONS = {
    "blame": "A malformed call is the caller's fault: 400 where Triton says 500, or dies",
    "wording": "The same status in other words: where, what was found, what was expected",
    "strict": "What cannot have been meant is refused where Triton guesses or lets it pass",
    "health": "Health and readiness carry a JSON body, which KServe's own client reads; for all "
    "others the status counts",
    "root": "GET / answers, as KServe's own servers do",
    "path": "An unknown path is named in the error",
    "version": "A version that is no number is one that is not there, not another kind of error",
    "unloaded": "A model that was unloaded is not found, whether or not its folder is there",
    "extensions": "Sequences and CUDA shared memory are not offered, so they are not listed",
    "cuda": "CUDA shared memory is not offered here: it says so (501) and what to use instead",
    "region": "A region that was not registered, or is already, is a bad input like any other "
    "wrong name in a call",
    "stored": "The reply over gRPC says where in shared memory the output lies",
    "settings": "Trace and log settings can be read; changing one while the server runs is "
    "refused, not accepted without effect",
    "trace_model": "An unknown model is 404 wherever it is named",
    "encoding": "An unknown Content-Encoding is 415, the status HTTP has for it",
    "stream": "The caller asked for the status on stream errors (`triton_grpc_error`), so it ends "
    "the stream with it",
    "merge": "A config given at load leaves out what the model says of itself; the model is asked",
}
#: Cases that differ, by reason and protocol.
GROUPS = {
    ("health", "http"): """
        server.live server.ready server.model_ready server.model_ready_version
    """,
    ("root", "http"): """
        server.root
    """,
    ("extensions", "http"): """
        server.metadata
    """,
    ("extensions", "grpc"): """
        server.metadata
    """,
    ("blame", "http"): """
        server.trace_set_not_json infer.no_name infer.no_shape infer.no_datatype infer.not_json
        infer.array infer.no_inputs infer.inputs_object infer.name_number infer.shape_word
        infer.shape_float infer.shape_negative infer.shape_huge infer.data_short infer.data_long
        infer.data_words infer.data_null infer.data_bools infer.data_scalar infer.output_no_name
        infer.outputs_object infer.id_number infer.parameters_array infer.timeout_word
        infer.priority_word infer.binary_data_word infer.float_for_int infer.bytes_numbers
        infer.binary_size_negative infer.length_cuts_json shm.register_absent
        shm.register_not_json shm.register_empty infer.shm_output_small
        repository.index_not_json repository.index_ready_word repository.load_unknown_parameter
        repository.load_not_json
    """,
    ("blame", "grpc"): """
        shm.register_absent shm.register_empty infer.shm_output_small
    """,
    ("strict", "http"): """
        infer.output_twice infer.int_too_large repository.unload_not_json
        server.trace_set_unknown server.logging_set_unknown
    """,
    ("strict", "grpc"): """
        infer.raw_extra
    """,
    ("settings", "http"): """
        server.trace_set server.logging_set_wrong_type
    """,
    ("cuda", "http"): """
        shm.cuda_register
    """,
    ("cuda", "grpc"): """
        shm.cuda_register
    """,
    ("region", "http"): """
        shm.status_unknown infer.shm_absent_region infer.shm_absent_output
    """,
    ("region", "grpc"): """
        shm.status_unknown infer.shm_absent_region infer.shm_absent_output shm.register_again
    """,
    ("stored", "grpc"): """
        infer.shm_both
    """,
    ("trace_model", "http"): """
        server.trace_model_unknown repository.load_unknown
    """,
    ("trace_model", "grpc"): """
        server.trace_unknown_model repository.load_unknown repository.load_unnamed
    """,
    ("version", "http"): """
        server.model_metadata_version_word infer.version_word
    """,
    ("version", "grpc"): """
        ModelReady.version_word ModelMetadata.version_word ModelConfig.version_word
        infer.version_word ModelStatistics.version_word
    """,
    ("encoding", "http"): """
        infer.encoding_unknown
    """,
    ("stream", "grpc"): """
        stream.bad_strict
    """,
    ("merge", "grpc"): """
        repository.config_after
    """,
    ("unloaded", "http"): """
        repository.after3
    """,
    ("unloaded", "grpc"): """
        repository.metadata_after
    """,
    ("path", "http"): """
        server.metadata_slash server.unknown_path server.models_slash
        server.model_metadata_slash server.unknown_verb
    """,
    ("wording", "http"): """
        server.model_metadata_version_unknown server.stats_version_unknown infer.no_data
        infer.empty_body infer.input_not_object infer.shape_wrong_dim infer.shape_no_batch
        infer.shape_extra_dim infer.rows_0 infer.datatype_unknown infer.input_unknown
        infer.input_extra infer.input_twice infer.output_unknown infer.pair_rows_differ
        infer.fp16_json infer.binary_short infer.binary_long infer.binary_none
        infer.binary_and_data infer.binary_no_length infer.length_too_large
        infer.length_negative infer.length_word infer.bytes_length_past_end infer.raw_body_short
        infer.raw_body_two_inputs infer.gzip_broken infer.version_unknown shm.register_no_key
        shm.register_no_size infer.shm_past_end infer.shm_offset_past_end
        infer.shm_output_past_end repository.load_bad_config
        repository.load_config_not_json
    """,
    ("wording", "grpc"): """
        infer.shm_past_end ModelMetadata.version_unknown ModelConfig.version_unknown
        ModelStatistics.known ModelStatistics.version ModelStatistics.version_unknown
        infer.unknown_version infer.no_name infer.no_shape infer.no_datatype infer.no_data
        infer.raw_missing infer.contents_wrong_kind infer.datatype_unknown infer.shape_wrong_dim
        infer.shape_no_batch infer.shape_negative infer.rows_0 infer.input_unknown
        infer.input_twice infer.pair_rows_differ infer.output_unknown
        infer.bytes_length_past_end infer.timeout_word repository.load_bad_config
    """,
}
#: The key of its reason, by ``http:`` or ``grpc:`` and the case's name.
ALLOWED = {
    f"{protocol}:{name}": reason
    for (reason, protocol), names in GROUPS.items()
    for name in names.split()
}
HEAD = """# Where Interlace answers otherwise than Triton

The same calls were put to the real `tritonserver` 2.51.0 and to Interlace, each with equivalent
models: {total} calls over HTTP and gRPC, well-formed and malformed. {same} are answered alike, to
the byte of every tensor and the wording of every error. The {different} others are below, with the
reason. Left out of the comparison: names and versions of server and platform, measured times, the
parts of a model's configuration beyond names, types, dims and batch limit, and the keys that
Interlace adds to an error (`reason`, and on refusals when to try again).

This page is written by `tests/peers/pages.py` and checked by `tests/peers/test_triton_oracle.py`;
the calls themselves are in `tests/peers/http_cases.py`, `http_infer_cases.py` and `grpc_cases.py`.
"""


def differing(triton: Answers, ours: Answers) -> list[str]:
    """Names of the cases that are not answered alike."""
    return [name for name in ours if ours[name] != triton[name]]


def page(triton: Answers, ours: Answers) -> str:
    """The page: a table for each reason, in the order of ``REASONS``."""
    different = differing(triton, ours)
    head = HEAD.format(total=len(ours), same=len(ours) - len(different), different=len(different))
    parts = [head]
    for key, reason in REASONS.items():
        names = [name for name in different if ALLOWED.get(name) == key]
        if names:
            rows = [_row(name, triton[name], ours[name]) for name in names]
            table = ["| call | Triton | Interlace |", "|---|---|---|", *rows]
            parts.append(f"## {reason}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def _row(name: str, triton: Answer, ours: Answer) -> str:
    return f"| `{name}` | {_cell(triton)} | {_cell(ours)} |"


def _cell(answer: Answer, most: int = 260) -> str:
    """Status and text of an answer, short enough for a table."""
    if answer["status"] == 0:
        return str(answer["text"])
    body = answer.get("json", answer.get("text", ""))
    if isinstance(body, dict) and set(body) == {"error"}:
        body = body["error"]
    text = body if isinstance(body, str) else json.dumps(body, sort_keys=True)
    if len(text) > most:
        text = f"{text[:most]} ..."
    text = text.replace("|", "\\|").replace("\n", " ").replace("`", "'")
    return f"{answer['status']}" + (f" `{text}`" if text else "")
