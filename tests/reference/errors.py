"""docs/errors.md: each reason with its status in both protocols."""

import re
from pathlib import Path

from interlace.core.errors import Reason
from interlace.server.errors import GRPC_STATUS, HTTP_STATUS
from interlace.server.http import responses

from .markdown import described, sentence, table

_START = """# Errors

Every request gets one answer: a result or one error.

Over HTTP an error is `{"error": "...", "reason": "..."}`. Over gRPC it is the status with the same
text. A refusal may have more:

* `late_ms`: by how much the request would have missed its deadline;
* `retry_after_ms`: when a retry may succeed. The HTTP header `Retry-After` is the same in whole
  seconds, rounded up: prefer `retry_after_ms`;
* `Interlace-Final: 1`, a header or trailer: the code of the model answered so. Routers ask no other
  node, whatever the status.

A refusal is sent at once. Above 5,000 refusals a second, the next request on the connection of a
refused one is read up to 50 ms later.

## Reasons
"""
_END = """
A request that is wrong as HTTP gets a status without a `reason`: STATUSES.
Status 403 is for a `Host` or `Origin` that is not allowed, 408 for a request that comes too slowly.

Commands print `error: ...` on stderr: see [exit codes](commands.md#exit-codes).
"""


def page() -> str:
    texts = described(Reason)
    assert set(texts) == {reason.name for reason in Reason}
    rows = []
    for reason in Reason:
        when, _, act = texts[reason.name].partition(". ")
        codes = str(HTTP_STATUS[reason]), GRPC_STATUS[reason].name
        rows.append([f"`{reason.value}`", *codes, sentence(when), sentence(act)])
    head = ["reason", "HTTP", "gRPC", "when", "what to do"]
    return "\n".join([_START, *table(head, rows), _END.replace("STATUSES", _statuses())])


def _statuses() -> str:
    """The statuses that the HTTP server gives by itself."""
    texts = [path.read_text() for path in Path(responses.__file__ or "").parent.rglob("*.py")]
    found = {int(code) for text in texts for code in re.findall(r"HttpError\(\s*(\d{3})", text)}
    return ", ".join(map(str, sorted(found)))
