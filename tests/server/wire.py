"""HTTP and v2 bodies by hand, byte for byte."""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Response:
    """A response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    version: str = "1.1",
) -> bytes:
    """A request with Host and Content-Length."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    given = dict(headers or {})
    if body or method == "POST":
        given.setdefault("Content-Length", str(len(body)))
    lines += [f"{name}: {value}" for name, value in given.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class Reader:
    """Reads responses off a socket, keeping what comes after."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    def response(self, bodyless: bool = False) -> Response:
        """The next response; ``bodyless`` for the answer to HEAD."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        status = int(first.split()[1])
        if status == 100:
            return Response(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Response(status, headers, self._chunks())
        length = 0 if bodyless else int(headers["content-length"])
        return Response(status, headers, self.take(length))

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self.take(size)
            assert self.take(2) == b"\r\n"
        assert self.take(2) == b"\r\n"
        return body

    def take(self, count: int) -> bytes:
        while len(self.rest) < count:
            self._more()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def at_end(self) -> bool:
        """Whether the server closes without another byte."""
        try:
            return not self.rest and not self.connection.recv(1)
        except ConnectionError:
            return True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.rest:
            self._more()
        taken, _, self.rest = self.rest.partition(mark)
        return taken

    def _more(self) -> None:
        data = self.connection.recv(1 << 16)
        assert data, f"closed after {self.rest!r}"
        self.rest += data


def exchange(connection: socket.socket, data: bytes, bodyless: bool = False) -> Response:
    """Send bytes, read one response."""
    connection.sendall(data)
    return Reader(connection).response(bodyless)


def v2_body(
    inputs: Sequence[tuple[str, str, Sequence[int], bytes]],
    outputs: Sequence[Mapping[str, Any]] | None = None,
    parameters: Mapping[str, Any] | None = None,
    id: str = "",
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request with binary inputs: (name, datatype, shape, bytes) each."""
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "datatype": datatype,
                "shape": list(shape),
                "parameters": {"binary_data_size": len(data)},
            }
            for name, datatype, shape, data in inputs
        ]
    }
    if outputs is not None:
        head["outputs"] = list(outputs)
    if parameters is not None:
        head["parameters"] = dict(parameters)
    if id:
        head["id"] = id
    text = json.dumps(head).encode()
    data = b"".join(entry[3] for entry in inputs)
    return text + data, {"Inference-Header-Content-Length": str(len(text))}


def infer(model: str, values: Any, **more: Any) -> bytes:
    """A whole binary FP32 request for INPUT0, binary output unless said otherwise."""
    array = np.asarray(values, np.float32)
    more.setdefault("parameters", {"binary_data_output": True})
    body, headers = v2_body([("INPUT0", "FP32", array.shape, array.tobytes())], **more)
    return request("POST", f"/v2/models/{model}/infer", body, headers)


def binary_outputs(response: Response) -> dict[str, bytes]:
    """The bytes of every binary output, by name."""
    length = int(response.headers["inference-header-content-length"])
    found = {}
    at = length
    for output in json.loads(response.body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = response.body[at : at + size]
        at += size
    assert at == len(response.body)
    return found
