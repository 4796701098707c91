"""Runs every ``check_*`` function of a module and prints one JSON line each."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from typing import Any


def run(names: dict[str, Any]) -> None:
    """Call every check with the server's address (host:port, the only argument)."""
    address = sys.argv[1]
    for name, check in names.items():
        if name.startswith("check_"):
            print(json.dumps([name, _outcome(check, address)]), flush=True)


def _outcome(check: Any, address: str) -> str:
    """Empty if the check passed, else its traceback."""
    try:
        result = check(address)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except BaseException:  # an assertion, or whatever a client raises
        return traceback.format_exc()
    return ""
