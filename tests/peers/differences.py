"""Every allowed difference from Triton, its reason, and the page that lists them."""

import json
import re
from textwrap import wrap

from .record import Answer, Answers

#: Reasons by key, in the order of the page: a heading and what a caller sees.
REASONS = {
    "blame": (
        "Malformed calls are the caller's fault",
        "Interlace answers 400 (INVALID_ARGUMENT). Triton answers 500 (INTERNAL), or dies.",
    ),
    "strict": (
        "Doubtful calls are refused",
        "Triton ignores or guesses what was meant. Interlace refuses an output that is requested\n"
        "twice, a value that does not fit its datatype, a superfluous tensor, an unknown trace or\n"
        "log setting. Unknown request parameters are ignored.",
    ),
    "trace_model": (
        "An unknown model is 404 in every call",
        "Triton answers 400 or 500 to some of them.",
    ),
    "unloaded": (
        "An unloaded model is not found",
        "Triton says that it has no available versions.",
    ),
    "version": (
        "A version that is not a number does not exist",
        "Interlace treats it like any other version that is not served.",
    ),
    "settings": (
        "Trace and log settings are read-only",
        "A change is refused with 501. Triton accepts a change or complains about its type.",
    ),
    "cuda": (
        "CUDA shared memory is not offered",
        "Registering is refused with 501 (UNIMPLEMENTED). "
        "Send tensors in the request or in system shared memory.",
    ),
    "extensions": (
        "The list of extensions is shorter",
        "The server's metadata does not list `cuda_shared_memory`.",
    ),
    "region": (
        "A wrong name of a shared memory region is bad input",
        "Interlace answers 400 (INVALID_ARGUMENT) to an unknown region and to a taken name.",
    ),
    "stored": (
        "Replies in shared memory say where",
        "Over gRPC, an output in shared memory has the parameters `shared_memory_region`,\n"
        "`shared_memory_byte_size` and `shared_memory_offset`.",
    ),
    "stream": (
        "An error ends a stream with `triton_grpc_error`",
        "The stream ends with the status of the error, which the caller requested by that header.",
    ),
    "encoding": (
        "An unknown Content-Encoding is 415",
        "Use `gzip` or `deflate`.",
    ),
    "merge": (
        "A config given at load is completed",
        "Interlace adds the inputs and outputs that the given config leaves out, from the model.",
    ),
    "statistics": (
        "Statistics always have a count of failures",
        "Over gRPC, Triton leaves out a count of 0.",
    ),
    "health": (
        "Health calls have a JSON body",
        "KServe's client reads it. The status codes are equal.",
    ),
    "root": (
        "GET / answers",
        "The reply is that of KServe's servers.",
    ),
    "path": (
        "Errors name an unknown path",
        "The status is 404 in both servers.",
    ),
    "wording": (
        "Errors in other words",
        "The status is equal. Interlace names the place, the value found and the value expected.",
    ),
}
#: Cases whose pair of replies is shown.
SHOWN = [
    "http:infer.no_name",
    "http:infer.shape_huge",
    "http:infer.int_too_large",
    "http:repository.load_unknown",
    "grpc:infer.version_word",
    "http:server.trace_set",
    "http:shm.cuda_register",
    "http:infer.shm_absent_region",
    "http:server.ready",
    "http:infer.input_unknown",
    "http:infer.binary_short",
    "http:infer.pair_rows_differ",
]
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
    ("statistics", "grpc"): """
        ModelStatistics.known ModelStatistics.version
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
        ModelStatistics.version_unknown
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
HEAD = """# Differences from Triton

{total} calls, well-formed and malformed, were sent to `tritonserver` 2.51.0 and to Interlace with
equivalent models. {same} replies are equal to the byte, errors included. The other {different} are
below by kind. To move a repository, see [from Triton](from-triton.md).

Not compared: names and versions of server and platform, measured times, and the keys that
Interlace adds to an error. Of a model's configuration, only names, types, dims and the batch limit
are compared.

`tests/peers/pages.py` writes this page and `tests/peers/test_triton_oracle.py` checks it. The
calls are in `tests/peers/http_cases.py`, `http_infer_cases.py` and `grpc_cases.py`.
"""


def differing(triton: Answers, ours: Answers) -> list[str]:
    """Names of the cases that are not answered alike."""
    return [name for name in ours if ours[name] != triton[name]]


def page(triton: Answers, ours: Answers) -> str:
    """The page: for each reason its calls by kind, and the replies of those in ``SHOWN``."""
    different = differing(triton, ours)
    head = HEAD.format(total=len(ours), same=len(ours) - len(different), different=len(different))
    parts = [head]
    for key, (title, text) in REASONS.items():
        names = [name for name in different if ALLOWED.get(name) == key]
        if names:
            parts.append(f"## {title}\n\n{text}\n\n{_kinds(names, triton, ours)}")
            shown = [_row(name, triton[name], ours[name]) for name in names if name in SHOWN]
            if shown:
                table = ["| call | Triton | Interlace |", "|---|---|---|", *shown, ""]
                parts.append("\n".join(table))
    return "\n".join(parts)


def named(text: str) -> list[str]:
    """The calls that a page names as answered otherwise, ``http:`` or ``grpc:`` before each."""
    blocks = re.findall(r"^(HTTP|gRPC): .*\n((?:  .*\n)+)", text, re.MULTILINE)
    return [f"{protocol.lower()}:{name}" for protocol, names in blocks for name in names.split()]


def _kinds(names: list[str], triton: Answers, ours: Answers) -> str:
    """The calls of one reason by protocol and both statuses."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        protocol, _, call = name.partition(":")
        theirs, mine = _status(triton[name]), _status(ours[name])
        both = f"{theirs} in both" if theirs == mine else f"Triton {theirs}, Interlace {mine}"
        label = {"http": "HTTP", "grpc": "gRPC"}[protocol]
        kinds.setdefault(f"{label}: {both}", []).append(call)
    lines = ["```text"]
    for kind, calls in kinds.items():
        lines.append(kind)
        lines += wrap(" ".join(calls), 110, initial_indent="  ", subsequent_indent="  ",
                      break_on_hyphens=False)  # fmt: skip
    return "\n".join([*lines, "```", ""])


def _status(answer: Answer) -> str:
    return str(answer["status"] or "dies")


def _row(name: str, triton: Answer, ours: Answer) -> str:
    return f"| `{name}` | {_cell(triton)} | {_cell(ours)} |"


def _cell(answer: Answer, most: int = 140) -> str:
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
