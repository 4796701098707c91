"""The real tritonclient in its four flavours, every call that is claimed to work."""

import asyncio
import inspect
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from .clients import aio_checks, grpc_aio_checks, grpc_checks, http_checks, sync_checks
from .programs import Running

Check = Callable[..., Any]
#: Modules with checks by flavour: what two flavours have in common, and what is its own.
MODULES = {
    "http": (sync_checks, http_checks),
    "http.aio": (sync_checks, http_checks, aio_checks),
    "grpc": (sync_checks, grpc_checks),
    "grpc.aio": (sync_checks, grpc_checks, aio_checks, grpc_aio_checks),
}
#: Clients of asyncio have no callbacks; a check that makes its own client makes one that blocks.
NOT_AIO = {"async_infer", "async_stream_infer", "start_stream", "address"}


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


def checks() -> list[Any]:
    """Every flavour with its checks by name; a later module's stand for an earlier one's."""
    found = []
    for flavour, modules in MODULES.items():
        aio = flavour.endswith(".aio")
        known = {name: one for module in modules for name, one in vars(module).items()}
        for name, check in known.items():
            if name.startswith("check_") and not (
                aio and NOT_AIO & {*check.__code__.co_names, *check.__code__.co_varnames}
            ):
                marks = pytest.mark.long if aio else ()
                found.append(pytest.param(flavour, check, marks=marks, id=f"{flavour}-{name}"))
    return found


@pytest.mark.filterwarnings("ignore:Sending a large body")
@pytest.mark.parametrize(("flavour", "check"), checks())
def test_call(ours: Running, flavour: str, check: Check) -> None:
    """A check gets what its parameters name; one that is no coroutine, calls that block."""
    client = import_module(f"tritonclient.{flavour}")
    address = ours.http if flavour.startswith("http") else ours.grpc

    def asked(c: Any) -> dict[str, Any]:
        known = {"c": c, "client": client, "address": address}
        return {name: known[name] for name in inspect.signature(check).parameters}

    if not flavour.endswith(".aio"):
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
