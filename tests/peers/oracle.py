"""What the real server answered, recorded once: how to make the recording and how to read it.

Run as ``.venv/bin/python -m tests.peers.oracle`` to record again.
"""

import json
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from . import programs, repository
from .normal import normal
from .record import Answers, Start, record

FILE = Path(__file__).parent / "oracle.json"


def triton_start(folder: Path) -> Start:
    """How to start the real server on the tiny models."""
    root = repository.write_triton(folder / "triton", programs.TRITON_NUMPY)

    def start() -> AbstractContextManager[programs.Running]:
        ports = programs.free_ports(3)
        command, env = programs.triton_command(root, ports)
        return programs.running(command, ports, folder / "triton.log", env)

    return start


def everything(start: Start) -> Answers:
    """All answers of a server in comparable form, ``http:`` or ``grpc:`` before each name."""
    return {name: normal(name.partition(":")[2], answer) for name, answer in record(start).items()}


def recorded() -> Answers:
    """The committed recording."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return found


def main() -> None:
    """Record the real server and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        answers = everything(triton_start(Path(folder)))
    lines = (f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in answers.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
