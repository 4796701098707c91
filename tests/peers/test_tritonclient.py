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
    "http.aio": ("aio_checks", "http_aio_checks"),
    "grpc": ("sync_checks", "grpc_checks"),
    "grpc.aio": ("aio_checks", "grpc_aio_checks"),
}


def checks(flavour: str) -> list[str]:
    """Names of a flavour's checks, read from its source: the client is another interpreter's."""
    trees = [ast.parse((CLIENTS / f"{module}.py").read_text()) for module in MODULES[flavour]]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node.name for tree in trees for node in tree.body if isinstance(node, kinds)]
    return [name for name in found if name.startswith("check_")]


@cache
def outcomes(flavour: str, address: str, python: Path) -> dict[str, str]:
    """Run all checks of a flavour once: the traceback by name, empty for those that passed."""
    command = [str(python), str(CLIENTS / "runner.py"), flavour, address, *MODULES[flavour]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    missing = f"it did not run (exit code {done.returncode}): {done.stderr[-2000:]}"
    return {name: found.get(name, missing) for name in checks(flavour)}


@pytest.mark.parametrize(
    ("flavour", "check"), [(flavour, check) for flavour in MODULES for check in checks(flavour)]
)
def test_call(ours: Running, client: Path, flavour: str, check: str) -> None:
    address = ours.http if flavour.startswith("http") else ours.grpc
    failure = outcomes(flavour, address, client)[check]
    assert not failure, failure
