"""The few calls that commands make to a running server."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from interlace.core.user_errors import UserError

_TIMEOUT_S = 5.0
_ORDER_S = 120.0
_BODY_BYTES_MAX = 64 << 20


class V2Client:
    """A v2 server at a URL such as ``http://127.0.0.1:8000`` or ``localhost:8000``."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Only remembers the address, and the key that calls are to carry.

        Raises:
            UserError: the URL is not one of plain HTTP.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(f"'{url}' is not a URL this can reach; give http://HOST:PORT")
        try:
            self.port = parts.port or 8000
        except ValueError:
            raise UserError(f"'{url}': the port is not a number in 1..65535") from None
        self.host = parts.hostname
        self.headers = {} if api_key is None else {"X-Api-Key": api_key}
        self.url = f"http://{parts.hostname}:{self.port}"

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
        connection = HTTPConnection(
            self.host, self.port, timeout=_TIMEOUT_S if sent is None else _ORDER_S
        )
        try:
            connection.request(method, path, sent, headers=self.headers)
            reply = connection.getresponse()
            body = reply.read(_BODY_BYTES_MAX).decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise UserError(
                f"no answer from {self.url} ({error}); is `interlace serve` running there?"
            ) from None
        finally:
            connection.close()
        if reply.status != 200:
            raise UserError(f"{self.url}{path}: {reply.status} {_error_text(body)}")
        return body

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


def _error_text(body: str) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:200]
