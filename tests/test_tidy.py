"""Style as a test: sizes, docstrings, names, and what must not be called below the runtime."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.conftest import LONG, MARKS

ROOT = Path(__file__).resolve().parent.parent
#: Meaning decides where a file ends: beyond 300 lines have a look, beyond 450 it has two subjects.
FILE_LINES_WANTED = 300
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 50
PARAMETERS_WANTED = 6
#: Most lines of each room, and of all tests and benchmarks. They only fall: a change that must
#: raise one says why in its commit, and what it deleted first.
ROOM_LINES = {
    "bench": 16_950,
    "interlace": 250,
    "interlace/apps": 1_710,
    "interlace/assembly": 2_720,
    "interlace/cli": 5_040,
    "interlace/control": 2_830,
    "interlace/core": 2_560,
    "interlace/device": 17_020,
    "interlace/engine": 5_540,
    "interlace/fleet": 4_810,
    "interlace/formats": 6_900,
    "interlace/load": 930,
    "interlace/packing": 4_050,
    "interlace/perf": 2_070,
    "interlace/planning": 4_230,
    "interlace/policy": 5_990,
    "interlace/profiling": 3_640,
    "interlace/proto": 50,
    "interlace/repository": 2_900,
    "interlace/router": 2_330,
    "interlace/routing": 440,
    "interlace/runtime": 1_450,
    "interlace/server": 12_160,
    "interlace/shm": 910,
    "interlace/sim": 2_120,
    "interlace/testing": 1_110,
    "tests": 64_180,
}
#: A budget this far above its room is lowered.
ROOM_SLACK = 150
#: Rooms that know no clock, no chance and no outside world: time and numbers are arguments there.
PURE_ROOMS = tuple(
    f"interlace/{room}/" for room in ("core", "perf", "packing", "policy", "engine", "routing")
)
IMPURE_MODULES = frozenset({"time", "random", "datetime", "logging", "os", "socket", "threading"})
VAGUE_FILE = re.compile(r"(^|_)(utils?|helpers?|misc|common)\.py$")
VAGUE_CLASS = re.compile(r"(Helper|Utils?|Mixin)$")
#: A path in somebody's home means nothing to another reader.
HOME_PATH = re.compile(r"(?<![\w.$])/(?:home|Users)/(?!\.\.\.)\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tracked() -> tuple[str, ...]:
    """Every file of the repository, as paths from its root."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode == 0:
        names = listing.stdout.splitlines()
    else:  # an unpacked archive
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [str(path) for path in paths if path.parts[0] != ".venv"]
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


@cache
def package() -> dict[str, ast.Module]:
    """The package's own modules, parsed."""
    return {
        name: ast.parse((ROOT / name).read_text())
        for name in tracked()
        if name.endswith(".py") and name.startswith("interlace/")
    }


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in package().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield name, node


def report(findings: list[str], remedy: str) -> str:
    return "\n".join([remedy, *findings])


def test_the_package_is_seen() -> None:
    assert len(package()) > 20


def test_rooms_keep_their_budgets() -> None:
    sizes = dict.fromkeys(ROOM_LINES, 0)
    for name in tracked():
        first, _, rest = name.partition("/")
        if name.endswith(".py") and first in ("interlace", "tests", "bench"):
            inner = first == "interlace" and "/" in rest
            room = "/".join(name.split("/")[:2]) if inner else first
            sizes[room] = sizes.get(room, 0) + len((ROOT / name).read_text().splitlines())
    over, loose = [], []
    for room, size in sizes.items():
        budget = ROOM_LINES.get(room, 0)
        if size > budget:
            over.append(f"  {room}: {size} lines, budget {budget}")
        elif budget > size + ROOM_SLACK:
            loose.append(f"  {room}: {size} lines, budget {budget}")
    assert not over, report(over, "rooms beyond their budget of lines: delete first")
    assert not loose, report(loose, "rooms became smaller: lower their budgets")


def test_files_have_one_subject() -> None:
    sizes = {name: (ROOT / name).read_text().count("\n") for name in package()}
    long = [f"  {name}: {size} lines" for name, size in sizes.items() if size > FILE_LINES_MAX]
    wanted = [f"  {name}: {size}" for name, size in sizes.items() if size > FILE_LINES_WANTED]
    advice = [f"worth a look, not an error (over {FILE_LINES_WANTED}):", *wanted]
    assert not long, report(
        [*long, *advice], f"over {FILE_LINES_MAX} lines: two subjects, split it"
    )


def test_functions_fit_on_a_screen() -> None:
    long, wide = [], []
    for name, node in functions():
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            long.append(f"  {name}:{node.lineno} {node.name}: {lines} lines")
        count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
        if count > PARAMETERS_WANTED + 1:  # self
            wide.append(f"  {name}:{node.lineno} {node.name}: {count} parameters")
    advice = ["worth a look, not an error (a value may be hiding in the parameters):", *wide]
    assert not long, report([*long, *advice], f"functions over {FUNCTION_LINES_MAX} lines: split")


def test_every_module_says_what_it_is() -> None:
    silent = [f"  {name}" for name, tree in package().items() if not ast.get_docstring(tree)]
    assert not silent, report(silent, "a module starts with one line, a noun phrase:")


def test_names_say_something() -> None:
    vague = [f"  {name}" for name in package() if VAGUE_FILE.search(Path(name).name)]
    vague += [
        f"  {name}:{node.lineno} class {node.name}"
        for name, tree in package().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and VAGUE_CLASS.search(node.name)
    ]
    assert not vague, report(vague, "name the thing, not its role in the plumbing:")


def test_a_class_name_has_one_meaning() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for name, tree in package().items():
        room = name.split("/")[1]
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault((room, node.name), []).append(name)
    reused = [
        f"  {name}: {', '.join(files)}" for (_, name), files in places.items() if len(files) > 1
    ]
    assert not reused, report(reused, "a name has one meaning in its room; rename one of:")


def _impurity(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names):
            roots = {alias.name.split(".")[0] for alias in names} & IMPURE_MODULES
            return f"import {min(roots)}" if roots else None
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in IMPURE_MODULES:
            return f"from {module} import ..."
        case ast.Call(func=ast.Name(id="print" | "input" | "open" as name)):
            return f"{name}()"
    return None


def test_pure_rooms_stay_pure() -> None:
    found = [
        f"  {name}:{getattr(node, 'lineno', 0)} {what}"
        for name, tree in package().items()
        if name.startswith(PURE_ROOMS)
        for node in ast.walk(tree)
        if (what := _impurity(node))
    ]
    assert not found, report(found, "below the runtime, time and chance are arguments:")


def test_no_globals_and_no_environment() -> None:
    found = []
    for name, tree in package().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                found.append(f"  {name}:{node.lineno} global {', '.join(node.names)}")
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"):
                found.append(f"  {name}:{node.lineno} {node.attr}")
    assert not found, report(found, "settings are arguments; state has an owner:")


def test_no_path_of_one_machine() -> None:
    found = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue  # weights and pictures
        found += [f"  {name}: {match[0]}..." for match in HOME_PATH.finditer(text)]
    assert not found, report(found, "a path in somebody's home means nothing to another reader:")


def test_marked_places_and_long_tests_exist() -> None:
    files = {place: ROOT / "tests" / place for place in {*MARKS, *LONG}}
    missing = [f"  {place}" for place, path in files.items() if not path.exists()]
    for place, names in LONG.items():
        if files[place].exists():
            text = files[place].read_text()
            missing += [f"  {place}: {name}" for name in names if f"def {name}(" not in text]
            if text.count("\ndef test_") <= len(names):
                missing.append(f"  {place}: a test that is not long")
    assert not missing, report(missing, "named in tests/conftest.py and not there:")
