"""ModelConfig as JSON: both spellings of names, quoted integers, mistakes with their path."""

from __future__ import annotations

import json

import pytest

from interlace.core.errors import RepositoryError
from interlace.repository.json_config import parse_json


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
        ('{"maxBatch": 1}', "max_batch: found unknown field; expected did you mean"),
        ('{"max_batch_size": true}', "max_batch_size: found True; expected an integer"),
        ('{"max_batch_size": "x"}', "max_batch_size: found 'x'; expected an integer"),
        ('{"input": {}}', "input: found {}; expected a list"),
        ('{"input": [3]}', r"input\[0\]: found 3; expected an object"),
        ('{"parameters": []}', r"parameters: found \[\]; expected an object"),
        ('{"input": [{"data_type": "FP32"}]}', r"input\[0\].data_type: found 'FP32'; expected one"),
    ],
)
def test_mistakes_are_named_with_their_path(text: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        parse_json(text)
