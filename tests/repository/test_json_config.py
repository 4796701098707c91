"""ModelConfig as JSON: both spellings of names, quoted integers, mistakes with their path."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import RepositoryError
from interlace.repository.model_config import parse_json


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
