"""The real tritonclient in its four flavours, every call that is claimed to work."""

import ast
import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .programs import Running

CLIENTS = Path(__file__).parent / "clients"
#: Modules with checks by flavour: what two flavours have in common, and what is its own.
MODULES = {
    "http": ("sync_checks", "http_checks"),
    "http.aio": ("sync_checks", "http_checks", "aio_checks"),
    "grpc": ("sync_checks", "grpc_checks"),
    "grpc.aio": ("sync_checks", "grpc_checks", "aio_checks", "grpc_aio_checks"),
}
#: Clients of asyncio have no callbacks; a check that makes its own client makes one that blocks.
NOT_AIO = {"async_infer", "async_stream_infer", "start_stream", "address"}


def checks(flavour: str) -> dict[str, str]:
    """Modules by check, read from their source: the client is another interpreter's."""
    found = {}
    for module in MODULES[flavour]:
        for node in ast.parse((CLIENTS / f"{module}.py").read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            words = {getattr(one, "attr", getattr(one, "arg", "")) for one in ast.walk(node)}
            if node.name.startswith("check_") and not (
                flavour.endswith(".aio") and words & NOT_AIO
            ):
                found[node.name] = module
    return found


@cache
def outcomes(flavour: str, address: str, python: Path) -> dict[str, str]:
    """Run all checks of a flavour once: the traceback by name, empty for those that passed."""
    names = [f"{module}:{check}" for check, module in checks(flavour).items()]
    command = [str(python), str(CLIENTS / "runner.py"), flavour, address, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    missing = f"it did not run (exit code {done.returncode}): {done.stderr[-2000:]}"
    return {name: found.get(name, missing) for name in checks(flavour)}


def long_if_aio(flavour: str, check: str) -> object:
    marks = pytest.mark.long if flavour.endswith(".aio") else ()
    return pytest.param(flavour, check, marks=marks)


@pytest.mark.parametrize(
    ("flavour", "check"),
    [long_if_aio(flavour, check) for flavour in MODULES for check in checks(flavour)],
)
def test_call(ours: Running, client: Path, flavour: str, check: str) -> None:
    address = ours.http if flavour.startswith("http") else ours.grpc
    failure = outcomes(flavour, address, client)[check]
    assert not failure, failure
