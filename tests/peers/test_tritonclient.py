"""The real tritonclient in its four flavours, every call that is claimed to work."""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .programs import Running

CLIENTS = Path(__file__).parent / "clients"
FLAVOURS = ("http", "http_aio", "grpc", "grpc_aio")


def checks(flavour: str) -> list[str]:
    """Names of a flavour's checks, read from its source: the client is another interpreter's."""
    tree = ast.parse((CLIENTS / f"{flavour}_checks.py").read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and n.name.startswith("check_")]


@cache
def outcomes(flavour: str, address: str, python: Path) -> dict[str, str]:
    """Run all checks of a flavour once: the traceback by name, empty for those that passed."""
    script = CLIENTS / f"{flavour}_checks.py"
    done = subprocess.run(
        [str(python), str(script), address],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    missing = f"it did not run (exit code {done.returncode}): {done.stderr[-2000:]}"
    return {name: found.get(name, missing) for name in checks(flavour)}


@pytest.mark.parametrize(
    ("flavour", "check"), [(flavour, check) for flavour in FLAVOURS for check in checks(flavour)]
)
def test_call(ours: Running, client: Path, flavour: str, check: str) -> None:
    address = ours.http if flavour.startswith("http") else ours.grpc
    failure = outcomes(flavour, address, client)[check]
    assert not failure, failure
