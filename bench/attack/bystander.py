"""A client that has done nothing wrong, in a process of its own: what an attack costs it.

Run as a command it calls until its standard input ends, then prints its figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any, Final

from bench.attack.calls import BAD
from bench.attack.stand import Stand
from bench.attack.traffic import Target, Traffic

MODEL: Final = Target("bystander", 3.0)
SLO_MS: Final = 50.0
_RATE_RPS: Final = 40.0


class Bystander:
    """Calls of one model at a steady rate over HTTP and gRPC, from ``with`` to its end."""

    def __init__(self, stand: Stand) -> None:
        self._ports = (stand.http_port, stand.grpc_port)
        self.figures: dict[str, Any] = {}

    def __enter__(self) -> Bystander:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.attack.bystander", *map(str, self._ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self

    def __exit__(self, *error: object) -> None:
        said, _ = self._process.communicate(timeout=120)
        self.figures = json.loads(said.splitlines()[-1])

    def blame(self, broken: Counter[str], what: str = "") -> None:
        """Count its answers that must never be, under what was done meanwhile."""
        for kind in BAD:
            broken[f"{what}bystander {kind}"] += self.figures["statuses"].get(kind, 0)


def main(http_port: int, grpc_port: int) -> None:
    traffic = Traffic((http_port, grpc_port), [MODEL], rate_rps=_RATE_RPS)
    with traffic:
        print("calling", flush=True)
        sys.stdin.read()
    print(json.dumps(traffic.figures()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
