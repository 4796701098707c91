"""Compiled modules are used only as long as they are what the sources say."""

import ast
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from interlace import compiled
from interlace.policy.catalog import CATALOG


@pytest.mark.parametrize("changed", [False, True])
def test_changed_sources_win(
    changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = dict(compiled.sources())
    if changed:
        sources["engine/engine.py"] = [1, 1]
    manifest = tmp_path / "compiled.json"
    manifest.write_text(json.dumps(sources))
    monkeypatch.setattr(compiled, "MANIFEST", manifest)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = len(sys.meta_path)
    compiled.prefer_sources_if_changed()
    assert len(sys.meta_path) == before + changed


@pytest.mark.parametrize("changed", [False, True])
def test_importing_the_package_looks_at_its_sources(changed: bool, tmp_path: Path) -> None:
    root = Path(compiled.__file__).parent
    copy = tmp_path / "interlace"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*.so", "*.json", "__pycache__"))
    asked = "import interlace, sys; print(interlace.__file__, len(sys.meta_path))"
    shown = {}
    for manifest in ("none", "some"):
        if manifest == "some":
            noted = {} if changed else _sources(copy)
            (copy / "compiled.json").write_text(json.dumps(noted))
        done = subprocess.run(
            [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        where, finders = done.stdout.split()
        assert Path(where).parent == copy
        shown[manifest] = int(finders)
    assert shown["some"] == shown["none"] + changed


def _sources(root: Path) -> dict[str, list[int]]:
    seen = {path.relative_to(root).as_posix(): path.stat() for path in sorted(root.rglob("*.py"))}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in seen.items()}


def test_what_is_hot_is_there() -> None:
    root = Path(compiled.__file__).parent
    assert [name for name in compiled.HOT if not (root / name).is_file()] == []


def test_what_is_hot_has_no_interpreted_class_below_it() -> None:
    """mypyc refuses that when such a class is made, in the middle of a request."""
    root = Path(compiled.__file__).parent
    trees = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    classes = [
        (name, node)
        for name, text in trees.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]
    hot = {node.name for name, node in classes if name in compiled.HOT}
    below = [
        f"{name}: {node.name}"
        for name, node in classes
        if name not in compiled.HOT
        and any(isinstance(base, ast.Name) and base.id in hot for base in node.bases)
    ]
    assert below == []


def test_what_is_hot_has_no_class_of_another_package_above_it() -> None:
    """A build environment lacks that package: the class is made as if it inherited nothing."""
    root = Path(compiled.__file__).parent
    above = []
    for name in compiled.HOT:
        tree = ast.parse((root / name).read_text())
        foreign = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
            if node.module.split(".")[0] not in {*sys.stdlib_module_names, "interlace"}
        }
        above += [
            f"{name}: {node.name}({base.id})"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if isinstance(base, ast.Name) and base.id in foreign
        ]
    assert above == []


def test_planners_of_every_system_reach_the_planning_process() -> None:
    for system in CATALOG.values():
        planners = (system.planner, system.packer)
        assert pickle.loads(pickle.dumps(planners)) == planners
