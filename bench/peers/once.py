"""One plain call, with ordinary clients."""

import http.client

from bench.harness.load import GrpcCall
from interlace.load.connections import Call


def ask(wire: Call, timeout_s: float = 30.0) -> tuple[int, bytes]:
    """Status and body; a gRPC call that failed is 500 with its code and details.

    Raises:
        OSError: nobody answers.
    """
    return (_grpc if isinstance(wire, GrpcCall) else _http)(wire, timeout_s)


def get(port: int, path: str) -> tuple[int, bytes]:
    """A GET.

    Raises:
        OSError: nobody answers.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _http(wire: Call, timeout_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=timeout_s)
    try:
        connection.request("POST", wire.path, body=wire.body, headers=dict(wire.headers))
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def _grpc(wire: Call, timeout_s: float) -> tuple[int, bytes]:
    import grpc

    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{wire.port}", options=unlimited) as channel:
        call = channel.unary_unary(wire.path, request_serializer=bytes, response_deserializer=bytes)
        try:
            return 200, call(wire.body, timeout=timeout_s)
        except grpc.RpcError as error:
            return 500, f"{error.code()}: {error.details()}".encode()
