"""The command of a benchmark: options from a function's signature, its report shown and kept.

Written on argparse rather than on typer, which a borrowed GPU machine does not have.
"""

import argparse
import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from bench.harness.conditions import conditions
from bench.harness.drawing import save
from bench.harness.report import Report

Benchmark = Callable[..., Report] | Callable[..., Coroutine[Any, Any, Report]]

ROOT: Final = Path(__file__).resolve().parents[2]
OUT: Final = Path("build/bench")


def main(*benchmarks: Benchmark) -> None:
    """Run a benchmark as the command of its module; exits with 1 if its report says so.

    Of several the first argument names one.
    """
    benchmark, arguments = chosen(benchmarks, sys.argv[1:])
    report = run(benchmark, arguments)
    sys.exit(1 if report.broken else 0)


def chosen(
    benchmarks: Sequence[Benchmark], arguments: Sequence[str]
) -> tuple[Benchmark, Sequence[str]]:
    """The benchmark that the command line names, and the arguments that are left for it."""
    if len(benchmarks) == 1:
        return benchmarks[0], arguments
    named = {one.__name__: one for one in benchmarks}
    made = argparse.ArgumentParser()
    made.add_argument("benchmark", choices=named, help="its own --help says more")
    return named[made.parse_args(arguments[:1]).benchmark], arguments[1:]


def run(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> Report:
    """Call a benchmark with options from the command line; show and keep its report."""
    given = vars(parser(benchmark).parse_args(arguments))
    out: Path = given["out"]
    if "out" not in inspect.signature(benchmark).parameters:
        del given["out"]
    order = inspect.signature(benchmark).parameters.values()
    first = [given.pop(one.name) for one in order if one.kind is one.POSITIONAL_ONLY]
    found = benchmark(*first, **given)
    report = asyncio.run(found) if inspect.iscoroutine(found) else found
    assert isinstance(report, Report)
    show(report, name_of(benchmark), out)
    return report


def show(report: Report, name: str, out: Path) -> None:
    """Print the tables, draw the pictures and write NAME.json."""
    report.print()
    out.mkdir(parents=True, exist_ok=True)
    for picture in report.pictures:
        path = out / f"{name}{picture.suffix}"
        save(picture, path)
        print(f"picture: {path}")
    kept = {"benchmark": name, **conditions(), **report.plain()}
    (out / f"{name}.json").write_text(json.dumps(kept, indent=1, default=str) + "\n")


def name_of(benchmark: Benchmark) -> str:
    """A benchmark's files are named after its module; of the papers, ``dstack-figure4``."""
    file = Path(inspect.getfile(benchmark)).with_suffix("")
    parts = file.relative_to(ROOT / "bench" if file.is_relative_to(ROOT / "bench") else ROOT).parts
    if parts[0] == "papers":
        return f"{parts[1]}-{benchmark.__name__}"
    return "-".join(part for part in parts if part != "run")


def parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    """Options of a function: positional-only parameters are named by their place alone."""
    about = inspect.getmodule(benchmark)
    made = argparse.ArgumentParser(
        description=f"{about.__doc__ if about else ''}\n{inspect.getdoc(benchmark)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hints = get_type_hints(benchmark, include_extras=True)
    for one in inspect.signature(benchmark).parameters.values():
        if one.name == "out":
            continue
        _add(made, one, hints[one.name])
    made.add_argument(
        "--out", type=Path, default=OUT, help=f"folder of what is kept; {OUT} if not said"
    )
    return made


def _add(made: argparse.ArgumentParser, one: inspect.Parameter, hint: Any) -> None:
    text = ""
    if get_origin(hint) is Annotated:
        hint, text = get_args(hint)
    place = one.kind is one.POSITIONAL_ONLY
    names = [one.name] if place else [f"--{one.name.replace('_', '-')}"]
    if one.default is not one.empty and one.default not in (None, (), False, ""):
        shown = one.default
        shown = " ".join(map(str, shown)) if isinstance(shown, tuple) else shown
        text = f"{text} ({shown})".strip().replace("%", "%%")
    settings: dict[str, Any] = {"help": text or None}
    if one.default is not one.empty:
        settings["default"] = one.default
    elif not place:
        settings["required"] = True
    if hint is bool:
        made.add_argument(*names, action=_switch(one.default), **settings)
        return
    if place and one.default is not one.empty:
        settings = {"nargs": "?", **settings}
    made.add_argument(*names, **{**settings, **_kind(hint, place)})


def _switch(default: object) -> Any:
    return argparse.BooleanOptionalAction if default is True else "store_true"


def _kind(hint: Any, place: bool) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple:
        inner = _kind(get_args(hint)[0], place)
        return {**inner, "nargs": "*" if place else "+", "action": _AsTuple}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint), "type": type(get_args(hint)[0])}
    return {"type": hint}


class _AsTuple(argparse.Action):
    """Several values as a tuple, or the default if there are none."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, tuple(values) or self.default)
