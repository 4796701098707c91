"""Every allowed difference from Triton, its reason, and the page that lists them."""

from __future__ import annotations

import json

from .record import Answer, Answers

#: Reasons by key; every case that differs names one of them.
REASONS: dict[str, str] = {}
#: Cases that differ, as ``http:`` or ``grpc:`` and the name, with the key of the reason.
ALLOWED: dict[str, str] = {}
HEAD = """# Where Interlace answers otherwise than Triton

The same calls were put to the real `tritonserver` 2.51.0 and to Interlace, each with equivalent
models: {total} calls over HTTP and gRPC, well-formed and malformed. {same} are answered alike, to
the byte of every tensor and the wording of every error. The {different} others are below, with the
reason. Names and versions of server and platform, measured times, and the parts of a model's
configuration beyond names, types, dims and batch limit were left out of the comparison.

This page is written by `tests/peers/pages.py` and checked by `tests/peers/test_triton_oracle.py`;
the calls themselves are in `tests/peers/http_cases.py` and `tests/peers/grpc_cases.py`.
"""


def differing(triton: Answers, ours: Answers) -> list[str]:
    """Names of the cases that are not answered alike."""
    return [name for name in ours if ours[name] != triton[name]]


def page(triton: Answers, ours: Answers) -> str:
    """The page: a table for each reason, in the order of ``REASONS``."""
    different = differing(triton, ours)
    head = HEAD.format(total=len(ours), same=len(ours) - len(different), different=len(different))
    parts = [head]
    for key, reason in REASONS.items():
        names = [name for name in different if ALLOWED.get(name) == key]
        if names:
            rows = [_row(name, triton[name], ours[name]) for name in names]
            table = ["| call | Triton | Interlace |", "|---|---|---|", *rows]
            parts.append(f"## {reason}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def _row(name: str, triton: Answer, ours: Answer) -> str:
    return f"| `{name}` | {_cell(triton)} | {_cell(ours)} |"


def _cell(answer: Answer, most: int = 260) -> str:
    """Status and text of an answer, short enough for a table."""
    if answer["status"] == 0:
        return str(answer["text"])
    body = answer.get("json", answer.get("text", ""))
    if isinstance(body, dict) and set(body) == {"error"}:
        body = body["error"]
    text = body if isinstance(body, str) else json.dumps(body)
    if len(text) > most:
        text = f"{text[:most]} ..."
    text = text.replace("|", "\\|").replace("\n", " ").replace("`", "'")
    return f"{answer['status']}" + (f" `{text}`" if text else "")
