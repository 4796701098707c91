"""The few calls that commands make to a running server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from ssl import SSLCertVerificationError
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlsplit

from interlace.core.model import SampleValue
from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec
from interlace.core.user_errors import InputError, UserError
from interlace.formats.arrays import given_array, sample_shape, wire_bytes
from interlace.load.connections import Call, EncodedCall
from interlace.profiling.samples import content
from interlace.server.api_keys import shown_key
from interlace.server.errors import error_text
from interlace.server.tls import HTTP, TlsFiles

_TIMEOUT_S = 5.0
_ORDER_S = 120.0
_BODY_BYTES_MAX = 64 << 20
#: Where fleets answer and take orders.
_FLEET: Final = "/v2/fleet"


class V2Client:
    """A v2 server at a URL such as ``http://127.0.0.1:8000`` or ``localhost:8000``."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        key_option: str = "--api-key-file",
        ca: Path | None = None,
    ) -> None:
        """Only remembers the address, and the key that calls are to carry.

        ``key_option`` is how a command is given that key. Servers with TLS are verified by the
        authority in ``ca``, else by those of the system.

        Raises:
            UserError: the URL is not one of HTTP, or the file of the authority cannot be used.
        """
        scheme = "http" if ca is None else "https"
        parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"'{url}' is not a URL this can reach; give http(s)://HOST:PORT")
        if ca is not None and parts.scheme == "http":
            raise InputError(f"'{url}' with --ca: give https://{parts.netloc}, or no --ca")
        tls = TlsFiles(ca=ca).client(HTTP) if parts.scheme == "https" else None
        self.tls = None if tls is None else tls.now()
        try:
            self.port = parts.port or 8000
        except ValueError:
            raise InputError(f"'{url}': the port is not a number in 1..65535") from None
        self.host = parts.hostname
        self._key_option = key_option
        self.headers = {} if api_key is None else {"X-Api-Key": shown_key(api_key)}
        self.url = f"{parts.scheme}://{parts.hostname}:{self.port}"

    def text(self, path: str) -> str:
        """The body of a GET.

        Raises:
            UserError: nobody answers there, or not with 200.
        """
        return self._ask("GET", path)

    def post(self, path: str, order: object) -> Any:
        """The JSON that answers an order; raises as ``text`` does."""
        return json.loads(self._ask("POST", path, json.dumps(order).encode()))

    def _ask(self, method: str, path: str, sent: bytes | None = None) -> str:
        timeout_s = _TIMEOUT_S if sent is None else _ORDER_S
        connection = (
            HTTPConnection(self.host, self.port, timeout=timeout_s)
            if self.tls is None
            else HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls)
        )
        try:
            connection.request(method, path, sent, headers=self.headers)
            reply = connection.getresponse()
            body = reply.read(_BODY_BYTES_MAX)
        except (OSError, HTTPException) as error:
            unknown = isinstance(error, SSLCertVerificationError)
            command = "interlace fleet serve" if path.startswith(_FLEET) else "interlace serve"
            hint = "give --ca FILE" if unknown else f"is `{command}` running there?"
            raise UserError(f"no answer from {self.url} ({error}); {hint}") from None
        finally:
            connection.close()
        if reply.status == 401:
            why = "the key is not the one it asks for" if self.headers else "it asks for a key"
            begun = (
                ", the one that the fleet was begun with (without, it takes no orders)"
                if path.startswith(_FLEET) and sent is not None
                else ""
            )
            raise UserError(f"{self.url}{path}: 401, {why}: give {self._key_option} FILE{begun}")
        if reply.status == 404 and path.startswith(_FLEET):
            raise UserError(
                f"{self.url}: no fleet is served there, but one server, or a router: give the "
                "address of `interlace fleet serve`, or see `interlace top`"
            )
        if reply.status != 200:
            raise UserError(f"{self.url}{path}: {reply.status} {error_text(body)}")
        return body.decode("utf-8", "replace")

    def json(self, path: str) -> Any:
        """The JSON of a GET; raises as ``text`` does."""
        body = self.text(path)
        try:
            return json.loads(body)
        except ValueError:
            raise UserError(f"{self.url}{path}: the reply is not JSON") from None

    def metadata(self, model: str) -> Any:
        return self.json(f"/v2/models/{quote(model, safe='')}")

    def config(self, model: str) -> Any:
        return self.json(f"/v2/models/{quote(model, safe='')}/config")


@dataclass(frozen=True, slots=True)
class LoadCall:
    """One ready call to a model: its bytes, the SLO it is judged by, what was assumed."""

    model: str
    encoded: EncodedCall
    slo_ms: float | None
    notes: tuple[str, ...] = field(default=())


def make_call(
    server: V2Client,
    model: str,
    shapes: Mapping[str, Sequence[int]],
    slo_ms: float | None,
    values: Mapping[str, SampleValue] = MappingProxyType({}),
) -> LoadCall:
    """Ask the server what the model takes, and build one call of one row.

    ``shapes`` gives full shapes by "MODEL/INPUT" for inputs with free dims, ``values`` what is sent
    instead of made-up values. An ``slo_ms`` is sent along and judged by; without one the server's
    own SLO counts.

    Raises:
        UserError: the server does not answer or does not serve the model; or a value is not what
            an input takes.
    """
    metadata, config = server.metadata(model), server.config(model)
    names = {declared["name"] for declared in metadata["inputs"]}
    for key in values:
        if key.startswith(f"{model}/") and key.removeprefix(f"{model}/") not in names:
            raise UserError(f"--value {key}: {model} takes {', '.join(sorted(names))}")
    notes: list[str] = []
    inputs, bodies = [], []
    for index, declared in enumerate(metadata["inputs"]):
        stated = shapes.get(f"{model}/{declared['name']}")
        shape, note = _shape(model, declared, config, stated)
        notes += note
        spec = TensorSpec(declared["name"], declared["datatype"], shape)
        if spec.datatype not in ITEM_BYTES and spec.datatype != BYTES:
            raise UserError(f"{model}: input {spec.name} has the unknown type {spec.datatype}")
        body = _content(spec, shape, values.get(f"{model}/{spec.name}"), index)
        bodies.append(body)
        inputs.append(
            {
                "name": spec.name,
                "shape": list(shape),
                "datatype": spec.datatype,
                "parameters": {"binary_data_size": len(body)},
            }
        )
    judged_ms = slo_ms if slo_ms is not None else server_slo_ms(config)
    call = _call(server, model, inputs, b"".join(bodies), slo_ms)
    return LoadCall(model, call.encoded(), judged_ms, tuple(notes))


def _call(
    server: V2Client, model: str, inputs: Sequence[object], bodies: bytes, slo_ms: float | None
) -> Call:
    parameters: dict[str, Any] = {"binary_data_output": True}
    if slo_ms is not None:
        parameters["slo_ms"] = slo_ms
    header = json.dumps({"parameters": parameters, "inputs": inputs}, separators=(",", ":"))
    return Call(
        server.port,
        f"/v2/models/{quote(model, safe='')}/infer",
        header.encode() + bodies,
        {
            **server.headers,
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(header.encode())),
        },
        server.host,
        server.tls,
    )


def _content(
    spec: TensorSpec, shape: tuple[int, ...], value: SampleValue | None, seed: int
) -> bytes:
    if value is None:
        return content(spec, shape, seed)
    try:
        return wire_bytes(given_array(spec, shape, value))
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise UserError(f"--value {spec.name}: {error}; the model takes {spec.datatype}") from None


def server_slo_ms(config: Mapping[str, Any]) -> float | None:
    """The SLO a model's config states; ``None`` from servers that know no SLO."""
    try:
        return float(_parameter(config, "slo_ms"))
    except ValueError:
        return None


def sample_sizes(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Sizes of an input's dims that a config states as ``sample.NAME``; empty if it does not."""
    text = _parameter(config, f"sample.{name}").strip("[] ")
    return tuple(int(size) for size in text.split(",")) if text else ()


def _parameter(config: Mapping[str, Any], key: str) -> str:
    value = config.get("parameters", {}).get(key, {})
    return str(value.get("string_value", "") if isinstance(value, dict) else value)


def _shape(
    model: str, declared: Mapping[str, Any], config: Mapping[str, Any], stated: Sequence[int] | None
) -> tuple[tuple[int, ...], list[str]]:
    name, shape = declared["name"], tuple(int(size) for size in declared["shape"])
    if stated is not None:
        if len(stated) != len(shape):
            raise UserError(
                f"--shape {model}/{name}: {len(stated)} sizes given, the model takes "
                f"{len(shape)}: {list(shape)}"
            )
        return tuple(stated), []
    rows = (1,) if int(config.get("max_batch_size", 0)) > 0 else ()
    dims = shape[len(rows) :]
    sizes = sample_sizes(config, name)
    full = (*rows, *sample_shape(TensorSpec(name, "", dims), {name: sizes}))
    if sizes or min(dims, default=0) >= 0:
        return full, []
    return full, [f"{model}: {name} is sent as {list(full)}; --shape {model}/{name}=... to change"]
