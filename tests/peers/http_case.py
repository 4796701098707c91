"""How an HTTP call to put to two servers is written down."""

import json
import struct
from typing import Any, NamedTuple

Json = dict[str, Any]
#: A region of zeros that exists while the calls are made.
SHM_KEY, SHM_BYTES = "/interlace_peers_region", 64
BINARY = "Inference-Header-Content-Length"


class HttpCase(NamedTuple):
    """One call; ``name`` is unique and its part before the first ``.`` is the group."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def tensor(name: str, datatype: str, shape: object, **rest: object) -> Json:
    return {"name": name, "shape": shape, "datatype": datatype, **rest}


def ident(data: object = (1.0, 2.0, 3.0, 4.0), shape: object = (1, 4), **rest: object) -> Json:
    return tensor("INPUT0", "FP32", shape, data=data, **rest)


def pair(first: object, second: object) -> list[Json]:
    return [
        tensor("INPUT0", "INT32", [1, 2], data=first),
        tensor("INPUT1", "INT32", [1, 2], data=second),
    ]


def infer(name: str, model: str, head: object, **more: Any) -> HttpCase:
    """A POST to a model; ``raw`` bytes follow the JSON as the binary extension lays them."""
    raw: bytes | None = more.get("raw")
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    headers = list(more.get("headers", ()))
    if raw is not None:
        headers.append((BINARY, str(more.get("length", len(text)))))
    path = f"/v2/models/{model}{more.get('version', '')}/infer"
    return HttpCase(f"infer.{name}", "POST", path, text + (raw or b""), tuple(headers))


def sized(size: int, **rest: object) -> Json:
    return tensor("INPUT0", "FP32", [1, 4], parameters={"binary_data_size": size}, **rest)
