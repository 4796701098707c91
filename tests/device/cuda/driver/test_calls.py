"""Each driver call exists in the installed bindings, with that many parameters."""

import ast
import re
from pathlib import Path

import pytest

import interlace.device.cuda.driver as room

ROOT = Path(room.__file__).parent
FILES = ("bound.py", "calls.py", "kernels.py")
#: What bindings of one version do not show, though others do: never to be used.
NOT_EVERYWHERE = re.compile(r"CUdevSmResourceSplit\w*_flags|\.reserved")

bindings = pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")


def modules() -> dict[str, object]:
    from cuda.bindings import driver, nvrtc

    return {"cu": driver, "nvrtc": nvrtc}


def chains(name: str) -> set[tuple[str, ...]]:
    """Every ``cu.X.Y`` in a file, as its parts."""
    found = set()
    tree = ast.parse((ROOT / name).read_text())
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        parts: list[str] = []
        outer: ast.expr | ast.AST = node
        while isinstance(outer, ast.Attribute) and (parts or id(node) not in inner):
            parts.insert(0, outer.attr)
            outer = outer.value
        if parts and isinstance(outer, ast.Name) and outer.id in modules():
            found.add((outer.id, *parts))
    return found


def calls(name: str) -> list[tuple[str, str, int, bool]]:
    """(module, function, arguments, whether some are starred) of what a file calls."""
    found = []
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if not isinstance(node, ast.Call):
            continue
        function, arguments = node.func, node.args
        if _bound(function) is None and arguments and _bound(arguments[0]) is not None:
            function, arguments = arguments[0], arguments[1:]  # call(cu.cuX, ...)
        target = _bound(function)
        if target is not None and target[1].startswith(("cu", "nvrtc")):
            starred = any(isinstance(one, ast.Starred) for one in arguments)
            found.append((*target, len(arguments), starred))
    return found


def _bound(node: ast.expr) -> tuple[str, str] | None:
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return None
    return (node.value.id, node.attr) if node.value.id in modules() else None


def parameters(module: str, function: str) -> int:
    """How many parameters a binding has, by the first line of its documentation."""
    found = getattr(modules()[module], function)
    line = found.__doc__.strip().splitlines()[0]
    inside = re.fullmatch(rf"{function}\((.*)\)(?: -> .*)?", line)
    assert inside is not None, line
    flat = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", inside[1]))
    return len([one for one in flat.split(",") if one.strip() and "=" not in one])


@pytest.mark.parametrize("name", FILES)
def test_every_name_exists(name: str) -> None:
    missing = []
    for module, *parts in chains(name):
        found = modules()[module]
        for part in parts:
            if not hasattr(found, part) and part not in ("name", "sm", "bytes", "getPtr"):
                missing.append(".".join((module, *parts)))
                break
            found = getattr(found, part, None)
    assert not missing


@pytest.mark.parametrize("name", FILES)
def test_every_call_gives_what_the_binding_takes(name: str) -> None:
    wrong = []
    for module, function, count, starred in calls(name):
        wanted = parameters(module, function)
        if count != wanted and not (starred and count <= wanted):
            wrong.append(f"{function}: {count} arguments for {wanted} parameters")
    assert not wrong


def test_most_of_the_driver_is_looked_at() -> None:
    assert len({one[1] for one in calls("bound.py")}) > 30
    assert parameters("cu", "cuLaunchKernel") == 11
    assert parameters("cu", "cuMemGetInfo") == 0


def test_nothing_that_some_versions_lack() -> None:
    for name in FILES:
        assert not NOT_EVERYWHERE.search((ROOT / name).read_text())
