"""Runs every ``check_*`` function of a flavour of tritonclient and prints one JSON line each.

Arguments: the flavour (its module's name after ``tritonclient.``), host:port, modules with checks.
A check gets what its parameters name: ``c``, a connected client; ``client``, the flavour's module;
the server's ``address``.
"""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

Check = Callable[..., Any]


def asked(check: Check, **known: Any) -> dict[str, Any]:
    return {name: known[name] for name in inspect.signature(check).parameters}


async def awaited(check: Check, client: ModuleType, address: str) -> None:
    async with client.InferenceServerClient(address) as c:
        await check(**asked(check, c=c, client=client, address=address))


def outcome(check: Check, client: ModuleType, address: str) -> str:
    """Empty if the check passed, else its traceback."""
    try:
        if inspect.iscoroutinefunction(check):
            asyncio.run(awaited(check, client, address))
        else:
            with client.InferenceServerClient(address) as c:
                check(**asked(check, c=c, client=client, address=address))
    except BaseException:  # an assertion, or whatever a client raises
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    flavour, server, *modules = sys.argv[1:]
    for module in map(import_module, modules):
        for name, check in vars(module).items():
            if name.startswith("check_"):
                found = outcome(check, import_module(f"tritonclient.{flavour}"), server)
                print(json.dumps([name, found]), flush=True)
