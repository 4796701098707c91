"""Inference over HTTP: well-formed calls and every kind of malformed one."""

import gzip
import json
import struct
import zlib

from .http_case import HttpCase, floats, ident, infer, pair, sized, tensor


def good() -> list[HttpCase]:
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


def bad_json() -> list[HttpCase]:
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
    ]
    cases += [infer(name, "ident", head) for name, head in heads]
    return [*cases, *_bad_names(), *_bad_other()]


def _bad_names() -> list[HttpCase]:
    whole = {"inputs": [ident()]}
    heads: list[tuple[str, object]] = [
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
    return [infer(name, "ident", head) for name, head in heads]


def _bad_other() -> list[HttpCase]:
    whole = {"inputs": [ident()]}
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
    return [infer(*row) for row in pairs]


def bad_binary() -> list[HttpCase]:
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
