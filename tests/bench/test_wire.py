"""Requests of the comparison: the hand-made protobuf is what protobuf would write."""

import json

import numpy as np
import pytest

from bench.peers import models, wire
from interlace.proto.messages import ModelInferRequest


@pytest.mark.parametrize("model", models.SHAPES)
def test_grpc_message(model: str) -> None:
    x = models.sample(model)
    message = ModelInferRequest.FromString(wire.v2_grpc(model, x).body)
    assert (message.model_name, message.outputs[0].name) == (model, "OUTPUT")
    (tensor,) = message.inputs
    assert (tensor.name, tensor.datatype, tuple(tensor.shape)) == ("INPUT", "FP32", (1, *x.shape))
    assert message.raw_input_contents[0] == x.tobytes()


def test_http_message() -> None:
    x = models.sample("echo")
    call = wire.v2_http("echo", x)
    length = int(call.headers["Inference-Header-Content-Length"])
    head = json.loads(call.body[:length])
    assert head["inputs"][0]["shape"] == [1, 16]
    assert np.array_equal(np.frombuffer(call.body[length:], np.float32), x)


def test_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="does not speak"):
        wire.request("mosec", "cnn", "grpc")
