"""Message classes: KServe v2's gRPC service, its health service, Triton's ModelConfig, ONNX graphs.

They come from ``descriptors.binpb`` (written by ``scripts/proto``), in a descriptor pool of their
own, so that a process may also hold a client library's copy of the same protocol.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

_POOL = descriptor_pool.DescriptorPool()
for _file in FileDescriptorSet.FromString(
    Path(__file__).with_name("descriptors.binpb").read_bytes()
).file:
    _POOL.Add(_file)

SERVICE: Any = _POOL.FindServiceByName("inference.GRPCInferenceService")
HEALTH: Any = _POOL.FindServiceByName("grpc.health.v1.Health")


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


OnnxModel = _message("onnx.ModelProto")
ModelConfigMessage = _message("inference.ModelConfig")
ModelInferRequest = _message("inference.ModelInferRequest")
ModelInferResponse = _message("inference.ModelInferResponse")
ModelStreamInferResponse = _message("inference.ModelStreamInferResponse")


def request_class(method: Any) -> Any:
    """The class of a method descriptor's request."""
    return message_factory.GetMessageClass(method.input_type)


def response_class(method: Any) -> Any:
    """The class of a method descriptor's response."""
    return message_factory.GetMessageClass(method.output_type)
