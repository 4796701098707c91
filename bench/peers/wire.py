"""What each server wants on the wire for each model."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bench.harness.load import GrpcCall
from bench.peers import models
from interlace.load.connections import Call
from interlace.proto.messages import ModelInferRequest

HTTP_PORT, GRPC_PORT, METRICS_PORT = 18900, 18901, 18902
#: Servers of the KServe v2 protocol, by the first part of their name.
V2 = {"ours", "triton"}
OCTETS = {"Content-Type": "application/octet-stream"}
_DATATYPES: Final = {"float32": "FP32", "int64": "INT64"}
INFER = "/inference.GRPCInferenceService/ModelInfer"
Input = np.ndarray[Any, Any]


def v2_http(model: str, inputs: Mapping[str, Input]) -> Call:
    """KServe v2 with the binary extension both ways; ``inputs`` have rows first."""
    tensors = [
        {
            "name": name,
            "shape": list(one.shape),
            "datatype": _DATATYPES[one.dtype.name],
            "parameters": {"binary_data_size": one.nbytes},
        }
        for name, one in inputs.items()
    ]
    said = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    head = json.dumps(said, separators=(",", ":")).encode()
    headers = {**OCTETS, "Inference-Header-Content-Length": str(len(head))}
    raw = b"".join(one.tobytes() for one in inputs.values())
    return Call(HTTP_PORT, f"/v2/models/{model}/infer", head + raw, headers)


def v2_grpc(model: str, inputs: Mapping[str, Input], outputs: Sequence[str]) -> Call:
    """A ModelInferRequest with raw contents; ``inputs`` have rows first."""
    message = ModelInferRequest(model_name=model)
    for name, one in inputs.items():
        message.inputs.add(name=name, datatype=_DATATYPES[one.dtype.name], shape=one.shape)
        message.raw_input_contents.append(one.tobytes())
    for name in outputs:
        message.outputs.add(name=name)
    return GrpcCall(GRPC_PORT, INFER, message.SerializeToString())


def request(peer: str, model: str, proto: str = "http") -> Call:
    """A call of a peer's model over "http" (binary) or "grpc"; a peer's name may end in a tuning.

    Raises:
        ValueError: the peer does not speak that.
    """
    sort, arrays = models.BY_NAME[model], models.sample(model)
    kind = re.split("[-_]", peer)[0]
    if kind in V2:
        inputs = dict(zip((tensor.name for tensor in sort.inputs), arrays, strict=True))
        if proto == "grpc":
            return v2_grpc(model, inputs, [tensor.name for tensor in sort.outputs])
        return v2_http(model, inputs)
    if kind == "mosec" and proto == "http":
        return Call(HTTP_PORT, f"/{model}", b"".join(one.tobytes() for one in arrays), OCTETS)
    raise ValueError(f"{peer} does not speak {proto}")
