"""The harness: options of a function, tables, repeatable pictures, spread, the record of a run."""

import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from matplotlib.figure import Figure

from bench.harness import Report, Row, Table, grouped_bars, interval, percentile, run, spread
from bench.harness.command import parser, show
from bench.harness.conditions import conditions


def everything(
    names: Annotated[tuple[str, ...], "positional"] = (),
    /,
    *,
    rate: Annotated[float, "at 100 %"] = 0.5,
    counts: tuple[int, ...] = (1, 2),
    kind: Literal[2, 4] = 4,
    folder: Path | None = None,
    fast: bool = False,
    live: bool = True,
) -> Report:
    given = (names, rate, counts, kind, folder, fast, live)
    return Report([Row("given", None, rate)], figures=repr(given))


def needs(data: Path, /, *, seeds: int, out: Path) -> Report:
    return Report(notes=f"{data} {seeds} {out}")


def bad() -> Report:
    return Report(broken=["an answer was lost"])


async def slow(*, seconds: float = 1.0) -> Report:
    return Report([Row("seconds", 2.0, seconds, " s")])


def test_defaults_are_those_of_the_function(tmp_path: Path) -> None:
    report = run(everything, ["--out", str(tmp_path)])
    assert report.figures == everything().figures


def test_options_have_the_types_of_the_parameters(tmp_path: Path) -> None:
    words = "a b --rate 2 --counts 3 --kind 2 --folder /x --fast --no-live --out"
    report = run(everything, [*words.split(), str(tmp_path)])
    given = (("a", "b"), 2.0, (3,), 2, Path("/x"), True, False)
    assert report.figures == repr(given)


def test_what_has_no_default_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(needs, ["data"])
    report = run(needs, ["data", "--seeds", "3", "--out", str(tmp_path)])
    assert report.notes == f"data 3 {tmp_path}"


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(SystemExit):
        parser(everything).parse_args(["--kind", "3"])


def test_a_coroutine_is_run_and_its_figures_are_kept_with_their_conditions(tmp_path: Path) -> None:
    assert run(slow, ["--seconds", "3", "--out", str(tmp_path)]).rows[0].ratio == 1.5
    (kept,) = tmp_path.glob("*.json")
    found = json.loads(kept.read_text())
    assert found["rows"] == [{"what": "seconds", "published": 2.0, "ours": 3.0, "unit": " s"}]
    assert found["date"] and found["cores"] >= 1


def test_what_must_not_be_is_kept(tmp_path: Path) -> None:
    assert run(bad, ["--out", str(tmp_path)]).broken == ["an answer was lost"]


def test_equal_figures_make_equal_files(tmp_path: Path) -> None:
    def draw(figure: Figure) -> None:
        grouped_bars(figure, ["a", "b"], {"one": [1.0, 2.0], "other": [2.0, 1.0]}, "unit")

    for name in ("first", "second"):
        show(Report(draw=draw), name, tmp_path)
    first, second = (tmp_path / f"{name}.svg" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_a_table_as_the_documentation_has_it() -> None:
    table = Table(("system", "rate"), [("ours", 12345.678), ("other", None)], "rates")
    assert table.markdown().splitlines() == [
        "**rates**", "", "| system | rate |", "| --- | --: |", "| ours | 12346 |", "| other | - |",
    ]  # fmt: skip


def test_spread_and_interval() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert found is not None and found.text(0) == "2 (1-3)"
    assert spread([]) is None and percentile([], 50) is None
    assert interval([1.0]) == (1.0, 0.0)
    assert interval([1.0, 2.0, 3.0]).half == pytest.approx(4.30 / 3**0.5)


def test_figures_are_kept_where_git_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert conditions()["commit"] == ""
