"""A small capacity question in a folder, and the command that answers it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from interlace.cli.main import build
from interlace.core.user_errors import InputError

SCENARIO = """
gpu = "2080ti"
gpus = 8
price_per_hour = 0.5
profiles = ["p.csv"]
[models.small]
rate_rps = 100
slo_ms = 40
[models.large]
rate_rps = 50
slo_ms = 200
"""


def rows() -> str:
    """Latency falls with the share, less for the small model; weights are 100 MB each."""
    lines = ["model,share_pct,batch,latency_ms,weights_mb"]
    for model, base_ms, row_ms in (("small", 2.0, 1.0), ("large", 4.0, 10.0)):
        for share in (20, 50, 100):
            for batch in (1, 2, 4, 8):
                latency_ms = base_ms + row_ms * batch * 100 / share
                lines.append(f"{model},{share},{batch},{latency_ms},100")
    return "\n".join(lines) + "\n"


def invoke(*words: object) -> Result:
    """Run a command in this process."""
    texts = [str(word) for word in words]
    return CliRunner().invoke(build(texts), texts)


def printed(*words: object) -> str:
    """What a command prints; what it raises is raised."""
    found = invoke(*words)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.stdout


@dataclass(frozen=True, slots=True)
class Said:
    """What a command answered; ``error`` is what it would say before it ends with 2."""

    code: int
    out: str
    err: str
    error: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Question:
    """A scenario with its profiles in a folder of its own."""

    def __init__(self, folder: Path, scenario: str = SCENARIO) -> None:
        self.folder = folder
        self.path = folder / "s.toml"
        self.path.write_text(scenario)
        (folder / "p.csv").write_text(rows())

    def plan(self, *arguments: str) -> Said:
        found = invoke("plan", self.path, *arguments)
        error = found.exception
        if error is not None and not isinstance(error, (InputError, SystemExit)):
            raise error
        return Said(found.exit_code, found.stdout, found.stderr, str(error or ""))

    def refused(self, *arguments: str) -> str:
        """What is said when the input cannot be used."""
        said = self.plan(*arguments)
        assert said.error, said.out
        return said.error
