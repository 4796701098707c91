"""config.pbtxt: what protobuf text allows, and mistakes with the line they stand on."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import RepositoryError
from interlace.repository.model_config import ModelConfig, parse_json, parse_pbtxt

WHOLE = """
# A comment.
name: "resnet"  # another
backend: 'onnx' "runtime"
max_batch_size: 0x10
version_policy { specific { versions: [1, 3] versions: 7 } }
input [
  { name: "x" data_type: TYPE_FP32, dims: [ 3, -1, -1 ] },
  { name: "m" data_type: 8; dims: -1 optional: true }
]
output < name: "y\\n\\x41\\101\\"" data_type: TYPE_STRING dims: [] >
instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters: { key: "slo_ms", value: { string_value: "20" } }
parameters [ { key: "other" value { string_value: "x" } } ]
optimization { graph { level: 1 } cuda { graphs: true } }
"""


def test_a_whole_file() -> None:
    config = parse_pbtxt(WHOLE, "config.pbtxt")
    assert config.values == {
        "name": "resnet",
        "backend": "onnxruntime",
        "max_batch_size": 16,
        "version_policy": {"specific": {"versions": [1, 3, 7]}},
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [3, -1, -1]},
            {"name": "m", "data_type": "TYPE_INT32", "dims": [-1], "optional": True},
        ],
        "output": [{"name": 'y\nAA"', "data_type": "TYPE_STRING", "dims": []}],
        "instance_group": [{"kind": "KIND_GPU", "count": 2, "gpus": [0]}],
        "dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 100},
        "parameters": {"slo_ms": {"string_value": "20"}, "other": {"string_value": "x"}},
        "optimization": {"graph": {"level": 1}, "cuda": {"graphs": True}},
    }
    assert config.lines["input[1].data_type"] == 9
    assert config.lines["parameters['other']"] == 15
    assert config.where("max_batch_size") == "config.pbtxt:5: max_batch_size"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nmax_batch: 3", "c:2: ModelConfig: found field 'max_batch'; .*mean max_batch_size"),
        ('input { nam: "x" }', r"c:1: input\[0\]: found field 'nam'; .*did you mean name\?"),
        ('max_batch_size: "3"', "c:1: max_batch_size: found '\"3\"'; expected an integer"),
        ("max_batch_size: 1.5", "found '1.5'; expected an integer of 32 bits"),
        ("max_batch_size: [1]", "max_batch_size: found '\\[1\\]'; expected an integer"),
        ("max_batch_size: 1\nmax_batch_size: 2", "c:2: max_batch_size: found given twice"),
        ("name: resnet", "c:1: name: found 'resnet'; expected a quoted string"),
        ("input { data_type: TYPE_FLOAT }", "found 'TYPE_FLOAT'; expected one of TYPE_INVALID, "),
        ("\ninput { data_type: 77 }", r"c:2: input\[0\].data_type: found 77; expected one of"),
        ("input { dims: [1 2] }", r"input\[0\].dims: found '2\]'; expected \",\""),
        ("input { optional: yes }", "found 'yes'; expected true or false"),
        ("input {\n name: 'x'\n", r"c:2: input\[0\]\S*: found end of file; expected \"}\""),
        ("input: 3", "c:1: input: found '3'; expected \"{\""),
        ("name { }", "c:1: name: found '{'; expected \":\""),
        ("name 'x'", "name: found ''x''; expected \":\""),
        ("name: 'x", "c:1: name: found ''x'; expected a quoted string"),
        (
            "max_batch_size: ${n}",
            r"_size: found '\${n}'; expected a value: this file is a template",
        ),
        ("input { data_type: TYPE_${t} }", r"found 'TYPE_\${t}'; expected a value: this file is"),
        ("= 3", "c:1: ModelConfig: found '='; expected identifier or number"),
        ("optimization {" * 40, "c:1: optimization: found field 'optimization'"),
        ("}", "found '}'; expected identifier"),
        (
            "version_policy { all {} latest {} }",
            "version_policy: found 'latest' besides 'all'; expected one",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        parse_pbtxt(text, "c")


def test_an_empty_file_says_nothing() -> None:
    assert parse_pbtxt(" # nothing\n", "c") == ModelConfig("c", {}, {})


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + " ".join(f"{key}: {as_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_text, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not value.startswith("TYPE_"):
        return '"' + "".join(f"\\{byte:03o}" for byte in value.encode()) + '"'
    return str(value)


TENSORS = st.fixed_dictionaries(
    {"name": st.text(), "data_type": st.sampled_from(["TYPE_FP32", "TYPE_BOOL"])},
    optional={"dims": st.lists(st.integers(-1, 9)), "optional": st.booleans()},
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(),
        "max_batch_size": st.integers(-(2**31), 2**31 - 1),
        "input": st.lists(TENSORS, min_size=1, max_size=3),
        "version_policy": st.just({"all": {}}),
    },
)


@given(CONFIGS)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(values: dict[str, Any]) -> None:
    text = " ".join(f"{key}: {as_text(value)}" for key, value in values.items())
    assert parse_pbtxt(text, "c").values == values


@given(st.text(alphabet="{}[]<>:,; ab01\"'#-\\\n", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(RepositoryError):
        parse_pbtxt(text, "c")


def test_both_spellings_mean_the_same() -> None:
    camel = {
        "maxBatchSize": 8,
        "input": [{"name": "x", "dataType": "TYPE_FP32", "dims": ["3", -1]}],
        "dynamicBatching": {"maxQueueDelayMicroseconds": "100"},
        "parameters": {"slo_ms": {"stringValue": "5"}},
        "instanceGroup": [{"kind": 2, "passive": None}],
    }
    assert parse_json(json.dumps(camel)).values == {
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3, -1]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
        "parameters": {"slo_ms": {"string_value": "5"}},
        "instance_group": [{"kind": "KIND_CPU"}],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"found no JSON"),
        ("[]", "found list; expected a JSON object"),
        ('{"maxBatch": 1}', "ModelConfig: found field 'maxBatch'; .*did you mean maxBatchSize"),
        ('{"max_batch": 1}', "ModelConfig: found field 'max_batch'; .*did you mean max_batch_size"),
        ('{"max_batch_size": true}', "max_batch_size: found .*True.*; expected an integer"),
        ('{"max_batch_size": "x"}', "max_batch_size: found .*'x'; expected an integer"),
        ('{"input": {}}', "input: found .*{}; expected a list, each a message"),
        ('{"input": [3]}', "input: found .*; expected a list, each a message"),
        ('{"parameters": []}', "parameters: found .*; expected a map"),
        ('{"input": [{"data_type": "FP32"}]}', r"input\[0\].data_type: .*FP32.*; expected one"),
        ('{"input": [{"data_type": 99}]}', r"input\[0\].data_type: found 99; expected one of TYPE"),
    ],
)
def test_mistakes_are_named_with_their_path(text: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        parse_json(text)


NAMES = ["name", "input", "dims", "dataType", "parameters", "string_value", "version_policy", "all"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
@settings(max_examples=300, deadline=None)
def test_any_object_is_read_or_refused(value: dict[str, Any]) -> None:
    with suppress(RepositoryError):
        parse_json(json.dumps(value))
