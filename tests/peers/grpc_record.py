"""What a server answered to the gRPC calls, in a form that compares and reads well."""

from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from .grpc_cases import GrpcCase

Answer = dict[str, Any]


def plain(message: Any) -> Any:
    """A reply as JSON; 64-bit integers come as strings, bytes as base64."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def ask(channel: grpc.Channel, case: GrpcCase) -> Answer:
    """Status name and reply, or the replies of a stream up to its error; 0 if none came at all."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    kind = f"{case.method.replace('Stream', '')}Request"
    requests = [json_format.ParseDict(m, getattr(service_pb2, kind)()) for m in case.messages]
    how = {"timeout": 60, "metadata": case.metadata}
    streamed: list[Any] = []
    try:
        if "Stream" not in case.method:
            return {"status": "OK", "json": plain(getattr(stub, case.method)(requests[0], **how))}
        for reply in stub.ModelStreamInfer(iter(requests), **how):
            streamed.append(plain(reply))
        return {"status": "OK", "json": streamed}
    except grpc.RpcError as error:
        answer: Answer = {"status": error.code().name, "text": error.details()}
        if answer["status"] == "UNAVAILABLE" and "onnect" in str(answer["text"]):
            return {"status": 0, "text": "no answer"}
        return {**answer, "json": streamed} if streamed else answer
