"""Systems by name: the catalog's, installed ones, one's own, and what is said of others."""

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from interlace.policy import catalog
from interlace.policy.catalog import CATALOG, known_systems, resolve

_MODULE = """
from dataclasses import replace
from interlace.policy.catalog import resolve

SYSTEM = replace(resolve("gpulet"), name="mine", source="a test")

def made():
    return SYSTEM

def broken():
    raise OSError("no disk")

def wants(argument):
    return SYSTEM

class Inside:
    system = SYSTEM

TEXT = "gpulet"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that offers systems."""
    name = "systems_of_a_test"
    (tmp_path / f"{name}.py").write_text(_MODULE)
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there")
    (tmp_path / "does_not_load.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("attribute", ["SYSTEM", "made", "Inside.system"])
def test_a_module_offers_systems_named_as_they_were_asked_for(module: str, attribute: str) -> None:
    found = resolve(f"{module}:{attribute}")
    assert found == replace(CATALOG["gpulet"], name=f"{module}:{attribute}", source="a test")


def test_an_installed_package_offers_systems(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("slack", f"{module}:SYSTEM", catalog.GROUP)
    monkeypatch.setattr(
        catalog, "entry_points", lambda group, name="slack": [point] if name == "slack" else []
    )
    assert resolve("slack").name == "slack"
    assert known_systems() == [*CATALOG, "slack"]
    with pytest.raises(ValueError, match=r"unknown system 'slacks' \(did you mean slack\?\)"):
        resolve("slacks")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gpulets", r"unknown system 'gpulets' \(did you mean gpulet\?\); known: interlace, "),
        ("nowhere_at_all:SYSTEM", "there is no module 'nowhere_at_all'"),
        ("interlace.nowhere:SYSTEM", r"there is no module 'interlace\.nowhere'"),
        ("needs_more:SYSTEM", "module 'needs_more' needs a_module_that_is_not_there"),
        ("does_not_load:SYSTEM", "importing 'does_not_load' raised ZeroDivisionError"),
        ("{module}:SISTEM", r"has no 'SISTEM' \(did you mean SYSTEM\?\)"),
        ("{module}:TEXT", "it is a str; expected an interlace.policy.base.System"),
        ("{module}:broken", r"calling it raised OSError\('no disk'\)"),
        ("{module}:wants", "calling it raised TypeError"),
        ("{module}:", "expected module:attribute"),
        (":SYSTEM", "expected module:attribute"),
    ],
)
def test_what_is_no_system_is_said(module: str, asked: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resolve(asked.format(module=module))
