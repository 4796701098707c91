"""Attack a server in every way there is a program for, beside a client that has done nothing wrong.

Prints a line per attack: what was tried, what must never be and was seen, and the p99 of the
bystander, another model's client, as a multiple of its p99 when nothing else happens. Writes
attack.json, and draws the long run. Ends with 1 if anything was seen that must never be.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Final

from bench.attack import (
    bodies,
    browser,
    draw,
    folders,
    http1,
    http2,
    kills,
    misbehaving,
    overload,
    reloads,
    slow,
    soak,
)
from bench.attack.attack import Attack, Ground, Result
from bench.attack.bystander import Bystander

ATTACKS: Final = (
    Attack("kill-workers", "kill -9 of workers under traffic", kills.workers),
    Attack("kill-fork-server", "kill -9 of the process workers come from", kills.fork_server),
    Attack("stop-workers", "SIGSTOP of workers with a request in them", kills.stopped_worker),
    Attack("overload", "2 and 10 times what can be served", overload.overload),
    Attack("reloads", "loads, unloads, reloads under traffic", reloads.reloads),
    Attack("names", "loads of names that never were", reloads.names_that_never_were),
    Attack("http-named", "requests that can be read in two ways", http1.named),
    Attack("http-mutated", "mutated HTTP requests", http1.mutated),
    Attack("grpc-floods", "HTTP/2 floods that have names", http2.floods),
    Attack("grpc-mutated", "mutated HTTP/2 connections", http2.mutated),
    Attack("json-large", "JSON of 16 MB", bodies.large_json),
    Attack("json-honest", "JSON of 6 MB that is right", bodies.honest_json),
    Attack("gzip", "gzip that unpacks to 60 and 250 MB", bodies.gzip_bombs),
    Attack("browser", "cross-site requests and foreign hosts", browser.browser),
    Attack("slow-heads", "1,000 connections, a letter a second", slow.slow_heads),
    Attack("idle", "3,000 connections that say nothing", slow.idle),
    Attack("models", "models that misbehave", misbehaving.models, own=True),
    Attack("folders", "hostile model folders", folders.folders, own=True),
    Attack("soak", "an hour of mixed traffic", soak.soak),
)
_QUIET_S: Final = 8.0


def attack(one: Attack, ground: Ground) -> dict[str, Any]:
    """Run one attack on a fresh server; its row."""
    began_s = time.monotonic()
    row: dict[str, Any] = {"attack": one.name, "about": one.about}
    try:
        found = _own(one, ground) if one.own else _beside(one, ground, row)
        row |= {"tried": found.tried, "broken": dict(found.broken), **found.figures}
    except Exception as error:  # one attack that cannot go on leaves the others
        traceback.print_exc()
        row |= {"tried": 0, "broken": {f"the attack itself: {error!r}"[:300]: 1}}
    row["seconds"] = round(time.monotonic() - began_s, 1)
    return row


def _own(one: Attack, ground: Ground) -> Result:
    return one.run(ground)  # type: ignore[call-arg]


def _beside(one: Attack, ground: Ground, row: dict[str, Any]) -> Result:
    """The attack on a server of the common models, with the bystander before and during it."""
    stand = ground.start(ground.repository())
    try:
        stand.wait_ready()
        with Bystander(stand) as quiet:
            time.sleep(_QUIET_S)
        with Bystander(stand) as beside:
            found = one.run(ground, stand)  # type: ignore[call-arg]
        row |= {"quiet": quiet.figures, "bystander": beside.figures}
        for kind in ("wrong", "lost", "hung"):
            count = beside.figures["statuses"].get(kind, 0)
            if count:
                found.broken[f"bystander {kind}"] += count
    finally:
        row["stop"] = stand.stop()
        row["log"] = stand.lines[-40:]
    return found


def line(row: dict[str, Any]) -> str:
    """What the terminal shows of a row."""
    broken = "; ".join(f"{what} x{n}" for what, n in row["broken"].items()) or "nothing"
    quiet, beside = row.get("quiet"), row.get("bystander")
    said = ""
    if quiet and beside and quiet["p99_ms"] and beside["p99_ms"]:
        times = beside["p99_ms"] / quiet["p99_ms"]
        said = f"; bystander p99 {quiet['p99_ms']} -> {beside['p99_ms']} ms (x{times:.1f})"
    return f"{row['attack']:<18}{row['tried']:>8} tried, {row['seconds']} s; broken: {broken}{said}"


def arguments() -> argparse.Namespace:
    about = "\n".join(f"  {one.name:<18}{one.about}" for one in ATTACKS)
    parser = argparse.ArgumentParser(
        prog="python -m bench.attack.run",
        description=__doc__,
        epilog=f"attacks:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "attacks", nargs="*", metavar="ATTACK", help="all but soak if none is named"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each: 0.1 is a tenth")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/bench/attack"))
    return parser.parse_args()


def main() -> int:
    """The chosen attacks, one after the other."""
    asked = arguments()
    names = {one.name for one in ATTACKS}
    if unknown := set(asked.attacks) - names:
        print(f"no attack {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")
        return 2
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(16384, most), most))
    os.nice(5)  # who attacks must not take the cores from who is attacked, nor from the bystander
    asked.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="interlace-attack-") as folder:
        ground = Ground(Path(folder), asked.scale, asked.seed)
        for one in ATTACKS:
            if one.name in asked.attacks or (not asked.attacks and one.name != "soak"):
                rows.append(attack(one, ground))
                print(line(rows[-1]), flush=True)
                if points := rows[-1].get("points"):
                    draw.draw(points, asked.out / "soak.svg")
                kept = {"scale": asked.scale, "seed": asked.seed, "rows": rows}
                (asked.out / "attack.json").write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if any(row["broken"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
