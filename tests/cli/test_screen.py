"""Tables in narrow terminals: nothing is cut, figures fold, names stay whole."""

import pytest
from rich.console import Console

from interlace.cli.screen import FoldingTable, console

FIGURES = [f"figure{number}" for number in range(12)]


def printed(made: FoldingTable, width: int) -> list[str]:
    out = Console(width=width, record=True, markup=False, highlight=False)
    out.print(made)
    return out.export_text().splitlines()


def wide() -> FoldingTable:
    made = FoldingTable(("model", "where"), FIGURES)
    made.add_row("a-model-with-a-long-name", "gpu0:1", *(f"{n}.25" for n in range(12)))
    made.add_row("short", "gpu1:0", *["7"] * 4, *[""] * 8)
    return made


@pytest.mark.parametrize("width", (60, 80, 100, 120))
def test_a_narrow_terminal_gets_every_figure(width: int) -> None:
    lines = printed(wide(), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    for whole in ("a-model-with-a-long-name", "gpu0:1", *FIGURES, "0.25", "11.25"):
        assert whole in text, whole


def test_figures_fold_under_the_heading_of_their_line() -> None:
    made = FoldingTable(("model",), ("one", "two", "three"))
    made.add_row("m", "1", "2", "3")
    cells = [line.split() for line in printed(made, 20)]
    assert cells[1:3] == [["model", "one", "two"], ["three"]]
    assert cells[4:6] == [["m", "1", "2"], ["3"]]


def test_a_wide_terminal_gets_a_line_a_row() -> None:
    [row] = [line.split() for line in printed(wide(), 200) if "long-name" in line]
    assert row[2:] == [f"{n}.25" for n in range(12)]


def test_prose_wraps_before_figures_fold() -> None:
    made = FoldingTable(("node", "state"), ("term",), prose=["state"])
    made.add_row("node0", "serves; " * 20, "12")
    lines = printed(made, 60)
    assert max(map(len, lines)) <= 60
    assert sum("serves" in line for line in lines) > 2
    assert any(
        line.split()[0] == "node0" and line.split()[-1] == "12" for line in lines if line.split()
    )


def test_no_color_means_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        out = console()
        with out.capture() as seen:
            out.print(wide())
        assert ("\x1b" in seen.get()) == (not no_color)
