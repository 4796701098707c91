"""Outputs that README and docs show are what the commands print.

A pair is a fence ``sh``, then a fence without a language or with ``text``; between them is nothing,
or one paragraph that ends with a colon. Pairs are run whose commands are all ``interlace plan``,
``simulate``, ``fleet simulate``, ``replay`` or ``--version`` on files that the repository has.
The second fence shows consecutive lines of what they print, errors included, in this form:

* a line ``...`` stands for any lines, and ``...`` in a line for any text;
* empty lines, the width of gaps and rules are free;
* what moves has any digits: versions, dates, paths in /tmp, and times after "planned in".
"""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from interlace.cli.main import build

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NO_SERVER = {"plan", "simulate", "replay", "--version"}
#: Options of commands that take minutes.
LONG = {"--compare", "--what-if"}
FILE = re.compile(r"^[^-=]*(?:\.(?:toml|onnx|log|json)|/)$")
MOVING = (
    (r"planned in [\d.]+ s", "planned in TIME"),
    (r"interlace \d+\.\d+\.\d+ \(.*\)", "interlace VERSION"),
    (r"/tmp/[^\s:]+", "TEMPORARY"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", "DATE"),
)


class Pair(NamedTuple):
    """Commands, and what a page shows of their output."""

    page: str
    commands: tuple[tuple[str, ...], ...]
    shown: str

    @property
    def long(self) -> bool:
        return any(LONG & set(words) for words in self.commands)


def pairs(text: str, page: str) -> list[Pair]:
    fences = list(FENCE.finditer(text))
    found = []
    for first, second in pairwise(fences):
        between = text[first.end() : second.start()].strip()
        told = not between or ("\n\n" not in between and between.endswith(":"))
        if first[1] == "sh" and second[1] in ("", "text") and told:
            lines = first[2].replace("\\\n", " ").splitlines()
            words = tuple(tuple(shlex.split(line, comments=True)) for line in lines)
            found.append(Pair(page, tuple(filter(None, words)), second[2]))
    return found


def needs_no_server(pair: Pair) -> bool:
    """Whether its commands run here: ours, without a server, on files that are there or made."""
    made: set[str] = set()
    for words in pair.commands:
        rest = words[1:] if words[1:2] != ("fleet",) else words[2:]
        if Path(words[0]).name != "interlace" or not rest or rest[0] not in NO_SERVER:
            return False
        for option, word in pairwise(rest):
            if option in ("--save", "--log"):
                made.add(word)
        files = {word for word in rest[1:] if FILE.match(word)}
        if not all((ROOT / name).is_file() for name in files - made):
            return False
    return True


ALL = [one for page in PAGES for one in pairs(page.read_text(), page.name)]
RUN = [one for one in ALL if needs_no_server(one) and not one.long]


def plain(text: str) -> list[str]:
    """Lines without what is free and what moves."""
    for pattern, name in MOVING:
        text = re.sub(pattern, name, text)
    lines = (re.sub(r"[ ─]+", " ", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def missing(shown: str, printed: str) -> str:
    """The first shown lines that are not in what was printed; "" if all are, in their order."""
    rest = "\n".join(["", *plain(printed), ""])
    for part in re.split(r"\n\.\.\.\n", "\n".join(["", *plain(shown), ""])):
        if not part.strip():
            continue
        pattern = r"[^\n]*".join(map(re.escape, part.strip("\n").split("...")))
        found = re.search(rf"\n{pattern}(?=\n)", rest)
        if found is None:
            return part
        rest = rest[found.end() :]
    return ""


def _parameter(pair: Pair) -> Any:
    """Pages other than README are for the long run."""
    name = f"{pair.page}: {' '.join(pair.commands[-1])}"
    return pytest.param(pair, id=name, marks=() if pair.page == "README.md" else pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [_parameter(one) for one in RUN])
def test_the_shown_output_is_printed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed = ""
    for words in pair.commands:
        ran = CliRunner().invoke(build(words[1:]), words[1:])
        error = ran.exception
        told = "" if error is None or isinstance(error, SystemExit) else f"error: {error}\n"
        printed += ran.stdout + ran.stderr + told
    lines = missing(pair.shown, printed)
    assert not lines, f"{pair.page} shows\n{lines}\nprinted was\n{printed}"


def test_a_pair_of_readme_is_run() -> None:
    assert any(one.page == "README.md" for one in RUN)


def test_pairs_are_found_by_the_rule() -> None:
    shell, shown = "```sh\ninterlace --version\n```\n", "```\ninterlace 0.1.0 (compiled)\n```\n"
    for between in ("", "\nIt prints:\n\n"):
        (pair,) = pairs(shell + between + shown, "x.md")
        assert pair.commands == (("interlace", "--version"),) and needs_no_server(pair)
    assert pairs(f"{shell}\nOne.\n\nTwo:\n\n{shown}", "x.md") == []
    assert pairs(f"{shell}\n```toml\na = 1\n```\n", "x.md") == []
    for other in ("curl localhost", "interlace serve models/", "interlace plan none.toml"):
        (pair,) = pairs(shell.replace("interlace --version", other) + shown, "x.md")
        assert not needs_no_server(pair)


def test_lines_left_out_and_what_moves_are_free() -> None:
    printed = "\n a    b \n ─────── \n 1    2 \n\nplanned in 3.25 s, 0.80\nend 7\n"
    assert missing("a b\n1   2\n...\nplanned in 0.1 s, 0.80\n", printed) == ""
    assert missing("...\nend ...\n", printed) == ""
    assert "1 3" in missing("a b\n...\n1 3\n", printed)
    assert missing("a b\nend 7\n", printed), "nothing says that lines are left out"
    assert missing("end 7\n...\na b\n", printed), "in another order"
    assert missing("planned in 0.1 s, 0.90\n", printed)
