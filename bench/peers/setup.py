"""Which peers are installed, and their one-time preparation."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.peers.table import Peer, environment


def installed(home: Path, peer: Peer) -> bool:
    """Whether the program a peer is started with is there."""
    program = Path(peer.command[0])
    needs_triton = program.name == "triton.sh"
    return program.exists() and (not needs_triton or (home / "tritonserver" / ".done").exists())


def prepare(home: Path, peer: Peer) -> None:
    """Run a peer's own preparation, if it has one.

    Raises:
        subprocess.CalledProcessError: it failed; its output is in the message.
    """
    if peer.setup:
        subprocess.run(list(peer.setup), env=environment(home, peer), check=True)
