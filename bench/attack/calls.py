"""Calls whose answers can be checked: a model multiplies, so every output says whose it is."""

import http.client
import json
import random
import socket
import struct
import time
from typing import Final

#: How long an answer may stay out before the call counts as hung.
HUNG_S: Final = 35.0


#: Answers that must never be: another's output, none, or none in time.
BAD: Final = frozenset({"wrong", "lost", "hung"})


def row(random_: random.Random) -> list[float]:
    """One row of whole numbers, which FP32 multiplies exactly."""
    return [float(random_.randrange(1, 999)) for _ in range(4)]


def body(values: list[float]) -> bytes:
    """An inference request in JSON."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


class HttpCaller:
    """One keep-alive connection, remade when it breaks."""

    def __init__(self, port: int, limit_s: float = HUNG_S) -> None:
        self._port, self._limit_s = port, limit_s
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, model: str, factor: float, values: list[float]) -> str:
        """The status of one checked call; "wrong" if the output is another's."""
        try:
            status, data = self.post(f"/v2/models/{model}/infer", body(values))
        except TimeoutError:
            return "hung"
        except (OSError, http.client.HTTPException):
            return "lost"
        if status != 200:
            return str(status)
        try:
            got = json.loads(data)["outputs"][0]["data"]
        except (ValueError, KeyError, IndexError):
            return "wrong"
        return "200" if got == [factor * value for value in values] else "wrong"

    def post(self, path: str, data: bytes, **headers: str) -> tuple[int, bytes]:
        """Any POST; the connection is remade after an error.

        Raises:
            OSError: nobody answers, or not in time (TimeoutError).
            HTTPException: what came is no HTTP.
        """
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(
                    "127.0.0.1", self._port, timeout=self._limit_s
                )
                self._connection.connect()
                sock: socket.socket = self._connection.sock
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            self._connection.request("POST", path, body=data, headers=names)
            response = self._connection.getresponse()
            answer = response.status, response.read()
            if response.will_close:
                self.close()
            return answer
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class GrpcCaller:
    """One channel of the ordinary gRPC client."""

    def __init__(self, port: int) -> None:
        import grpc

        self._error: type[Exception] = grpc.RpcError
        # No waiting longer and longer before a broken connection is tried again.
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=bytes,
            response_deserializer=bytes,
        )

    def ask(self, model: str, factor: float, values: list[float]) -> str:
        """The status code of one checked call; "wrong" if the output is another's."""
        began_s = time.monotonic()
        try:
            data = self._infer(message(model, values), timeout=HUNG_S)
        except self._error as error:
            if time.monotonic() - began_s > HUNG_S - 1:
                return "hung"
            code = str(error.code().name)  # type: ignore[attr-defined]
            return "lost" if code in ("CANCELLED", "UNKNOWN") else code
        want = struct.pack("<4f", *(factor * value for value in values))
        return "200" if want in data else "wrong"

    def close(self) -> None:
        self._channel.close()


def message(model: str, values: list[float]) -> bytes:
    """A ModelInferRequest with one row of four FP32."""
    from interlace.proto.messages import ModelInferRequest

    request = ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(struct.pack("<4f", *values))
    return bytes(request.SerializeToString())
