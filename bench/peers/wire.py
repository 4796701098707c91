"""What each server wants on the wire for each model."""

import json
from typing import Any

import numpy as np

from bench.harness.load import GrpcCall
from bench.peers import models
from interlace.load.connections import Call
from interlace.proto.messages import ModelInferRequest

HTTP_PORT, GRPC_PORT, METRICS_PORT = 18900, 18901, 18902
#: Servers of the KServe v2 protocol, by the first part of their name.
V2 = {"ours", "triton"}
OCTETS = {"Content-Type": "application/octet-stream"}
INFER = "/inference.GRPCInferenceService/ModelInfer"
Input = np.ndarray[Any, Any]


def v2_http(
    model: str, x: Input, name: str = "INPUT", outputs: tuple[str, ...] = ("OUTPUT",)
) -> Call:
    """KServe v2 with the binary extension both ways; one row."""
    raw = x.tobytes()
    tensor = {
        "name": name, "shape": [1, *x.shape], "datatype": "FP32",
        "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    wanted = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
    head = json.dumps({"inputs": [tensor], "outputs": wanted}, separators=(",", ":")).encode()
    headers = {**OCTETS, "Inference-Header-Content-Length": str(len(head))}
    return Call(HTTP_PORT, f"/v2/models/{model}/infer", head + raw, headers)


def v2_grpc(model: str, x: Input) -> Call:
    """A ModelInferRequest with raw contents."""
    message = ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT", datatype="FP32", shape=(1, *x.shape))
    message.outputs.add(name="OUTPUT")
    message.raw_input_contents.append(x.tobytes())
    return GrpcCall(GRPC_PORT, INFER, message.SerializeToString())


def request(peer: str, model: str, proto: str, x: Input | None = None) -> Call:
    """A call of a peer's model over "http" (binary) or "grpc".

    Raises:
        ValueError: the peer does not speak that.
    """
    x = models.sample(model) if x is None else x
    kind = peer.split("_", maxsplit=1)[0]
    if kind in V2:
        return {"http": v2_http, "grpc": v2_grpc}[proto](model, x)
    if kind == "mosec" and proto == "http":
        return Call(HTTP_PORT, f"/{model}", x.tobytes(), OCTETS)
    raise ValueError(f"{peer} does not speak {proto}")
