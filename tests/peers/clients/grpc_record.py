"""Puts gRPC calls to a server and prints the answers; run by the client's own interpreter.

Arguments: host:port. Standard input: a JSON list of ``[name, method, messages, metadata]``.
Standard output: one JSON line a call; it stops after the first call that got no answer at all.
"""

import json
import sys
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

Answer = dict[str, Any]


def plain(message: Any) -> Any:
    """A reply as JSON; 64-bit integers come as strings, bytes as base64."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def ask(stub: Any, method: str, messages: list[Any], metadata: list[Any]) -> Answer:
    """Status name and reply, or the replies of a stream up to its error."""
    kind = "ModelInferRequest" if method.startswith("ModelStream") else f"{method}Request"
    requests = [json_format.ParseDict(m, getattr(service_pb2, kind)()) for m in messages]
    streamed: list[Any] = []
    try:
        if kind != "ModelInferRequest" or method == "ModelInfer":
            reply = getattr(stub, method)(requests[0], timeout=15, metadata=metadata)
            return {"status": "OK", "json": plain(reply)}
        for reply in stub.ModelStreamInfer(iter(requests), timeout=15, metadata=metadata):
            streamed.append(plain(reply))
        return {"status": "OK", "json": streamed}
    except grpc.RpcError as error:
        answer: Answer = {"status": error.code().name, "text": error.details()}
        return {**answer, "json": streamed} if streamed else answer


def main() -> None:
    """Every case on one channel."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, method, messages, metadata in json.load(sys.stdin):
            answer = ask(stub, method, messages, metadata)
            gone = answer["status"] == "UNAVAILABLE" and "onnect" in str(answer.get("text"))
            print(json.dumps([name, {"status": 0, "text": "no answer"} if gone else answer]))
            if gone:
                return


if __name__ == "__main__":
    main()
