"""The command line as a whole: help is complete and quick to import, errors are plain."""

import subprocess
import sys
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path

import pytest
import typer

from interlace.cli import main
from interlace.core.version import __version__
from tests.cli.planning import invoke

PRESENT = [
    command
    for command in main.COMMANDS
    if (Path(main.__file__).parent / f"{command.name}.py").is_file()
]


def test_help_names_every_command() -> None:
    text = invoke("--help").output
    for command in main.COMMANDS:
        assert command.name in text


@pytest.mark.parametrize("command", PRESENT, ids=lambda command: command.name)
def test_every_command_teaches_with_examples(command: main.Command) -> None:
    text = invoke(command.name, "--help").output
    assert "Examples:" in text
    assert f"  interlace {command.name} " in text


@pytest.mark.parametrize("command", PRESENT, ids=lambda command: command.name)
def test_the_line_in_the_list_is_the_first_of_the_help(command: main.Command) -> None:
    found = getattr(import_module(f"interlace.cli.{command.name}"), command.name)
    text = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    assert text.splitlines()[0] == command.help


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from interlace.cli.main import build; build(['--help']); "
        "heavy = {'torch', 'onnxruntime', 'transformers', 'grpc', 'numpy', 'uvloop'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert python("-c", probe).stdout.strip() == "[]"


def test_version_and_mistakes() -> None:
    start = "import sys; from interlace.cli.main import main; sys.argv[0] = 'interlace'; main()"
    version = python("-c", start, "--version").stdout.strip()
    assert version in {f"interlace {__version__} ({how})" for how in ("compiled", "pure Python")}
    assert python("-m", "interlace", "--version").stdout.strip() == version
    wrong = python("-c", start, "bench", "http://127.0.0.1:1", "x")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: no answer from http://127.0.0.1:1")
    assert "Traceback" not in wrong.stderr
    unknown = python("-c", start, "srve")
    assert unknown.returncode == 2
    assert "No such command 'srve'" in unknown.stderr


#: What opens models, and every library of an extra.
LIBRARIES = {"torch", "transformers", "onnxruntime", "safetensors", "cuda", "pynvml", "numba"}
EXTRAS = LIBRARIES | {
    *("uvloop", "httptools", "hpack", "matplotlib", "hypothesis", "onnx", "PIL", "grpc"),
    *("tritonclient", "tokenizers", "psutil", "prometheus_client"),
}
#: As if they were not installed.
BLOCK = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


sys.meta_path.insert(0, Missing())
"""
MAIN = "from interlace.cli.main import main; main()"
SCENARIO = """
gpu = "2080ti"
profiles = ["profiles.csv"]

[models.small]
rate_rps = 20
slo_ms = 100
"""
API = """
import interlace

found = interlace.plan(sys.argv[1])
assert found.gpus >= found.bound.gpus
played = interlace.simulate(sys.argv[1], seconds=1.0, gpus=found.gpus)
assert played.report.requests > 0
try:
    interlace.serve
except ModuleNotFoundError as error:
    print(error)
"""


def run(
    code: str, *arguments: str, absent: AbstractSet[str] = EXTRAS
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", f"NAMES = {absent}\n{BLOCK}{code}", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    rows = [f"small,{share},{batch},{4 + batch}" for share in (50, 100) for batch in (1, 4)]
    table = "\n".join(("model,share_pct,batch,latency_ms", *rows))
    (tmp_path / "profiles.csv").write_text(table + "\n")
    file = tmp_path / "one.toml"
    file.write_text(SCENARIO)
    return str(file)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("--help", "simulate"),
        ("--version", "interlace "),
        ("plan SCENARIO", "1 2080ti"),
        ("simulate SCENARIO --seconds 1", "requests/s in time"),
        ("replay --help", "Usage"),
        ("bench --help", "--rate"),
        ("top --help", "--window"),
    ],
)
def test_what_needs_no_extra(command: str, said: str, scenario: str) -> None:
    done = run(MAIN, *command.replace("SCENARIO", scenario).split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("command", ["serve", "profile"])
def test_help_needs_nothing_that_opens_models(command: str) -> None:
    done = run(MAIN, command, "--help", absent=LIBRARIES)
    assert "Usage" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve models", "serve"),
        ("profile models", "serve"),
        ("plan SCENARIO --draw plan.svg", "plots"),
        ("simulate SCENARIO --plot cdf=cdf.svg", "plots"),
    ],
)
def test_what_needs_one_says_which(command: str, extra: str, scenario: str) -> None:
    done = run(MAIN, *command.replace("SCENARIO", scenario).split())
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert f"pip install 'interlace[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_api_plans_and_simulates(scenario: str) -> None:
    done = run(API, scenario)
    assert done.returncode == 0, done.stderr
    assert "pip install 'interlace[serve]'" in done.stdout


def test_short_options_of_help_and_version() -> None:
    for words in (["-h"], ["plan", "-h"], ["fleet", "plan", "-h"]):
        found = invoke(*words)
        assert found.exit_code == 0
        assert "Usage:" in found.output
    assert __version__ in invoke("-V").output


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("interlace pl", "plan"),
        ("interlace plan --ex", "--explain"),
        ("interlace fleet dr", "drain"),
    ],
)
def test_shells_complete_commands_and_options(
    line: str, wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["interlace"])
    monkeypatch.setenv("_INTERLACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    with pytest.raises(SystemExit):
        main.main()
    assert wanted in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    "line",
    [
        "plan nowhere.toml",
        "plan . --measured points.csv",
        "simulate nowhere.toml",
        "bench localhost:1 m --shape m/x=a",
        "bench localhost:99999 m",
        "top nothing://here",
        "profile . --device abacus",
        "profile . --cores x",
        "serve . --device simulated --gpu abacus",
        "serve . --device simulated --gpu h100 --gpus many",
        "fleet serve .",
        "fleet plan --rate a",
        "plan --no-such-option",
    ],
)
def test_wrong_usage_ends_with_2(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["interlace", *line.split()])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2


def test_what_is_imported_says_which() -> None:
    done = run("import interlace.testing", absent={"hypothesis"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("pip install 'interlace[testing]'")
