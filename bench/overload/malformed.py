"""Wrong requests: what each server says to them, and whether it still serves afterwards."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from bench.peers import once, wire
from interlace.load.call import Call

Row = dict[str, Any]
#: Peers that take named, typed tensors, so that a wrong name or type means something.
NAMED = {"ours", "triton"}


def ask_all(peer: str, proto: str) -> dict[str, Row]:
    """Status, first words and milliseconds of the answer to every wrong request."""
    rows = {name: _ask(call) for name, call in _calls(peer, proto).items()}
    rows["right_again"] = _ask(wire.request(peer, "echo", proto))
    return rows


def _calls(peer: str, proto: str) -> dict[str, Call]:
    good = wire.request(peer, "echo", proto)
    headless = {k: v for k, v in good.headers.items() if "Length" not in k}
    calls = {
        "unknown_model": replace(good, path=good.path.replace("echo", "nosuch")),
        "wrong_shape": wire.request(peer, "echo", proto, np.zeros(15, np.float32)),
        "empty_body": replace(good, body=b"", headers=headless),
        "truncated": replace(good, body=good.body[:-7]),
    }
    if peer.split("_", maxsplit=1)[0] in NAMED:
        wrong_type = good.body.replace(b"FP32", b"INT8", 1)
        wrong_name = good.body.replace(b'"INPUT"', b'"INPUX"', 1)
        broken = b"{" + good.body[2:]
        calls["wrong_datatype"] = replace(good, body=wrong_type)
        calls["wrong_input_name"] = replace(good, body=wrong_name)
        calls["broken_json"] = replace(good, body=broken)
    return calls


def _ask(call: Call) -> Row:
    began = time.perf_counter()
    try:
        status, body = once.ask(call, timeout_s=8)
        said = body[:220].decode("latin1") if status != 200 else ""
    except OSError as error:
        status, said = 0, f"{type(error).__name__}: {error}"[:120]
    return {"status": status, "says": said, "ms": round((time.perf_counter() - began) * 1e3, 1)}
