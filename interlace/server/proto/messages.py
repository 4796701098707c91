"""Message classes of the gRPC service, from a descriptor pool of their own.

The pool is private so that a process may also hold another copy of the same public protocol (a
client library's) without a clash of names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory

from interlace.server.proto.descriptors import FILES

_POOL = descriptor_pool.DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file)

SERVICE = _POOL.FindServiceByName("inference.GRPCInferenceService")
HEALTH = _POOL.FindServiceByName("grpc.health.v1.Health")


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


ModelInferRequest = _message("inference.ModelInferRequest")
ModelInferResponse = _message("inference.ModelInferResponse")
ModelStreamInferResponse = _message("inference.ModelStreamInferResponse")
HealthCheckRequest = _message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _message("grpc.health.v1.HealthCheckResponse")


def request_class(method: Any) -> Any:
    """The class of a method descriptor's request."""
    return message_factory.GetMessageClass(method.input_type)


def response_class(method: Any) -> Any:
    """The class of a method descriptor's response."""
    return message_factory.GetMessageClass(method.output_type)
