"""What a server answered to the HTTP calls, in a form that compares and reads well."""

import gzip
import http.client
import json
import zlib
from typing import Any

from .http_case import BINARY, HttpCase

Answer = dict[str, Any]


def ask(port: int, case: HttpCase) -> Answer:
    """Status, kind of body and body of one call, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(case.method, case.path, skip_accept_encoding=True)
        if case.method == "POST":
            connection.putheader("Content-Length", str(len(case.body)))
        for key, value in case.headers:
            connection.putheader(key, value)
        connection.endheaders(case.body or None)
        response = connection.getresponse()
        return _answer(response, response.read())
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "text": f"no answer: {type(error).__name__}"}
    finally:
        connection.close()


def _answer(response: http.client.HTTPResponse, body: bytes) -> Answer:
    answer: Answer = {"status": response.status}
    encoding = response.getheader("Content-Encoding")
    if encoding:
        answer["encoding"] = encoding
        body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
    length = response.getheader(BINARY)
    if length is not None:
        answer["binary"] = body[int(length) :].hex()
        body = body[: int(length)]
    try:
        answer["json"] = json.loads(body)
    except ValueError:
        answer["text"] = body.decode("utf-8", "replace")
    return answer
