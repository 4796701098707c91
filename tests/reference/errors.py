"""docs/errors.md: each reason with its status in both protocols."""

from interlace.core.errors import Reason
from interlace.server.grpc.status import STATUS as GRPC_STATUS
from interlace.server.http.responses import STATUS as HTTP_STATUS

from .markdown import described, sentence, table

_START = """# Errors

Every request gets one answer: a result or one error.

Over HTTP an error is `{"error": "...", "reason": "..."}`. Over gRPC it is the status with the same
text. A refusal may have more:

* `late_ms`: by how much the request would have missed its deadline;
* `retry_after_ms`: when a retry may succeed. HTTP also has the header `Retry-After`, in seconds.

## Reasons
"""
_END = """
A request that is not valid HTTP gets a status without a `reason`: 400, 403 (Host or Origin not
allowed), 404, 405, 408, 413, 414, 415, 417, 431 or 505.

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
    return "\n".join([_START, *table(head, rows), _END])
