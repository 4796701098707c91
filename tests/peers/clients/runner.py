"""Runs checks with a flavour of tritonclient and prints one JSON line each.

Arguments: the flavour (its module's name after ``tritonclient.``), host:port, checks as
``module:function``. A check gets what its parameters name: ``c``, a connected client; ``client``,
the flavour's module; the server's ``address``. A check that is no coroutine gets a client whose
calls block, whatever the flavour.
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


class Blocking:
    """A client of asyncio whose calls block."""

    def __init__(self, c: Any, runner: asyncio.Runner) -> None:
        self._c = c
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._c, name)
        return lambda *args, **how: self._runner.run(call(*args, **how))


async def connected(client: ModuleType, address: str) -> Any:
    return client.InferenceServerClient(address)


def run(check: Check, client: ModuleType, address: str) -> None:
    def asked(c: Any) -> dict[str, Any]:
        known = {"c": c, "client": client, "address": address}
        return {name: known[name] for name in inspect.signature(check).parameters}

    if not client.__name__.endswith(".aio"):
        with client.InferenceServerClient(address) as c:
            check(**asked(c))
        return
    with asyncio.Runner() as runner:
        c = runner.run(connected(client, address))
        try:
            if inspect.iscoroutinefunction(check):
                runner.run(check(**asked(c)))
            else:
                check(**asked(Blocking(c, runner)))
        finally:
            runner.run(c.close())


def outcome(check: Check, client: ModuleType, address: str) -> str:
    """Empty if the check passed, else its traceback."""
    try:
        run(check, client, address)
    except BaseException:  # an assertion, or whatever a client raises
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    flavour, server, *checks = sys.argv[1:]
    for one in checks:
        module, _, name = one.partition(":")
        check = getattr(import_module(module), name)
        found = outcome(check, import_module(f"tritonclient.{flavour}"), server)
        print(json.dumps([name, found]), flush=True)
