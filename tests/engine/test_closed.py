"""The engine from outside: events in, commands out, and a snapshot; nothing else of it is read."""

import ast
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from interlace.core.messages import ModelWithdrawn
from tests.builders import World, line_profile

ROOT = Path(__file__).resolve().parents[2]
#: What code outside the package may import of it.
PUBLIC = {f"interlace.engine.{name}" for name in ("engine", "snapshot", "fleet_planner")}


def _sources() -> Iterator[Path]:
    """Every module that is neither the engine nor its tests."""
    for room in ("interlace", "bench", "tests", "examples"):
        for path in (ROOT / room).rglob("*.py"):
            if path.parent not in (ROOT / "interlace/engine", ROOT / "tests/engine"):
                yield path


def test_nothing_outside_reads_the_engines_state() -> None:
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("state", "_state"):
                owner = ast.unparse(node.value).rsplit(".", 1)[-1].lstrip("_")
                own = path.name == "builders.py"  # it lends the state to the engine's own tests
                assert owner != "engine" or own, f"{path}:{node.lineno}: take engine.snapshot()"


def test_only_what_is_public_of_the_engine_is_imported() -> None:
    for path in (one for one in _sources() if one.is_relative_to(ROOT / "interlace")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = node.module.startswith("interlace.engine")
                assert not inner or node.module in PUBLIC, f"{path}:{node.lineno}: {node.module}"


def test_a_snapshot_does_not_change() -> None:
    world = World({"a": line_profile("a")})
    world.deploy({"a": 100.0})
    world.run(1_000.0)
    before = world.engine.snapshot()
    partition = next(iter(before.partitions.values()))
    world.send("a", 100.0)
    world.runtime.deliver(ModelWithdrawn("a"))
    world.run(1_000.0)
    assert partition.slots and partition.loaded and not partition.batches
    assert partition.id in before.models["a"].hosts and before.reached
    assert world.engine.snapshot().models == {}
    with pytest.raises(FrozenInstanceError):
        partition.share_pct = 1  # type: ignore[misc]


def test_the_plan_is_reported_to_stand_and_not_to_stand() -> None:
    world = World({"a": line_profile("a"), "b": line_profile("b")})
    world.deploy({"a": 100.0})
    assert world.settled == []
    world.run(1_000.0)
    assert world.settled == [False, True]
    world.devices["g0"].kill("g0.p0")
    world.run(1_000.0)
    assert world.settled == [False, True, False, True]
    world.deploy({"b": 100.0})
    world.run(1_000.0)
    assert world.settled[-1] and len(world.settled) % 2 == 0
