"""What the documentation shows is true: flags exist, files parse, code compiles."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import interlace
from bench.attack.repository import write_model
from interlace.cli.main import COMMANDS, build
from interlace.core.errors import RepositoryError
from interlace.repository.model_config import parse_pbtxt
from interlace.repository.model_settings import parse_settings
from tests.reference import pages as reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page.name, language, text)
        for page in PAGES
        if page.exists()
        for language, text in FENCE.findall(page.read_text())
        if language in languages
    ]


def shell_lines() -> Iterator[list[str]]:
    for block in blocks("sh", "bash", "shell"):
        text = ""
        for line in block.text.replace("\\\n", " ").splitlines():
            text += f"{line}\n"
            try:
                words = shlex.split(text, comments=True)
            except ValueError:  # a quotation goes on over the line
                continue
            text = ""
            if words:
                yield words


@cache
def help_of(*command: str) -> str:
    return CliRunner().invoke(build(command), [*command, "--help"]).output


@pytest.mark.parametrize("words", [w for w in shell_lines() if w[0] == "interlace"], ids=" ".join)
def test_commands_and_their_flags_exist(words: list[str]) -> None:
    assert words[1] in {command.name for command in COMMANDS} | {"--help", "--version"}
    group = "COMMAND [ARGS]" in help_of(words[1])
    shown = help_of(*words[1 : 3 if group else 2])
    for word in words[2:]:
        if word.startswith("--"):
            assert re.search(rf"{re.escape(word.partition('=')[0])}\b", shown), word


@pytest.mark.parametrize("words", [w for w in shell_lines() if "/" in w[0]], ids=" ".join)
def test_scripts_exist_and_can_be_run(words: list[str]) -> None:
    script = ROOT / words[0]
    if words[0].startswith(".venv/"):
        return
    assert script.is_file()
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize(
    "block",
    [one for one in blocks("toml") if not one.text.startswith("[project")],
    ids=lambda block: block.page,
)
def test_toml_is_what_the_repository_takes(block: Block) -> None:
    assert parse_settings(block.text, block.page).slo_ms


@pytest.mark.parametrize("block", blocks("pbtxt"), ids=lambda block: block.page)
def test_pbtxt_is_what_the_repository_takes(block: Block) -> None:
    assert parse_pbtxt(block.text, block.page).values


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.page)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.page, "exec")


def test_the_quoted_error_is_the_real_one() -> None:
    with pytest.raises(RepositoryError) as caught:
        parse_settings('slo_ms = 5\nmax_batch = "four"\n', "models/detector/interlace.toml")
    assert str(caught.value) in (ROOT / "docs" / "repository.md").read_text()


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    written = (ROOT / "docs" / name).read_text()
    assert written == reference.text_of(name), f"docs/{name} is old: run {reference.COMMAND}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text()
PLANS, VARIANTS, RUNS, SERVES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_planning_and_simulating(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for code in (PLANS, VARIANTS, RUNS):
        exec(compile(code, "python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "2 GPUs, 2 at the least, 0.80 an hour" in said
    assert said.count("requests/s in time") == 2
    found = names["found"]
    assert found.kept and not found.plan.unserved_rows_per_s
    assert len(found.trial.models) == 9
    assert all(one.attainment >= 0.99 for one in found.trial.models.values())


@pytest.mark.process
def test_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "models", "double")
    monkeypatch.chdir(tmp_path)
    more = "port=0, grpc_port=0, metrics_port=0, cores='0', device='cpu', profiles=PROFILES"
    names = {"interlace": interlace, "PROFILES": tmp_path / "profiles"}
    exec(compile(SERVES.replace("port=0", more), "python.md", "exec"), names)
    assert "['double']" in capsys.readouterr().out


def test_every_name_of_the_page_is_exported() -> None:
    for name in set(re.findall(r"`interlace\.(\w+)", PAGE)):
        assert hasattr(interlace, name), name
        assert name in interlace.__all__
