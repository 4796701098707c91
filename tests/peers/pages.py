"""Writes docs/differences.md; run as ``.venv/bin/python -m tests.peers.pages``."""

import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from . import programs, repository
from .differences import ALLOWED, differing, page
from .oracle import everything, recorded
from .record import Start

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


def ours_start(folder: Path) -> Start:
    """How to start Interlace on the tiny models; profiles are kept between starts."""
    root = repository.write_ours(folder / "ours")

    def start() -> AbstractContextManager[programs.Running]:
        ports = programs.free_ports(3)
        profiles = ("--profiles", str(folder / "profiles"))
        command = programs.ours_command(root, ports, "--allow-client-shm", *profiles)
        return programs.running(command, ports, folder / "ours.log")

    return start


def main() -> None:
    """Ask Interlace everything, write the page, name the differences that have no reason yet."""
    with tempfile.TemporaryDirectory() as folder:
        ours = everything(ours_start(Path(folder)))
    triton = recorded()
    PAGE.write_text(page(triton, ours))
    for name in differing(triton, ours):
        if name not in ALLOWED:
            print(f"{name}\n  triton    {triton[name]}\n  interlace {ours[name]}")


if __name__ == "__main__":
    main()
