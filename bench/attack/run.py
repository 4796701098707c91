"""Attack a server beside a client that has done nothing wrong; tests have floods and bad input.

Prints a line per attack: what was tried, what must never be and was seen, and the p99 of the
bystander, another model's client, as a multiple of its p99 when nothing else happens. Ends with 1
if anything was seen that must never be.
"""

import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated, Any, Final

from bench.attack import fleets, kills, models, soak
from bench.attack.attack import Attack, Ground, Result
from bench.attack.bystander import Bystander
from bench.harness import Report, main
from bench.peers.server import claim

ATTACKS: Final = (
    Attack("kill-workers", "kill -9 of workers under traffic", kills.workers),
    Attack("kill-fork-server", "kill -9 of the process workers come from", kills.fork_server),
    Attack("stop-workers", "SIGSTOP of workers with a request in them", kills.stopped_worker),
    Attack("models", "models that misbehave", models.models, own=True),
    Attack("fleet", "a node, a controller, a router that lie", fleets.fleet, own=True),
    Attack("soak", "an hour of mixed traffic", soak.soak),
)
_QUIET_S: Final = 8.0
NAMES: Final = tuple(one.name for one in ATTACKS)


def attacks(
    names: Annotated[tuple[str, ...], f"of {', '.join(NAMES)}; all but soak if none is named"] = (),
    /,
    *,
    scale: Annotated[float, "how much of each: 0.1 is a tenth"] = 1.0,
    seed: int = 1,
) -> Report:
    """The chosen attacks, one after the other, each on a fresh server."""
    if unknown := set(names) - set(NAMES):
        raise SystemExit(f"no attack {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    # Who attacks must not take the cores from who is attacked, nor from the bystander.
    claim(set(), nice=5)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="interlace-attack-") as folder:
        ground = Ground(Path(folder), scale, seed)
        for one in ATTACKS:
            if one.name in names or (not names and one.name != "soak"):
                rows.append(attack(one, ground))
                print(line(rows[-1]), flush=True)
    broken = [f"{row['attack']}: {what} x{n}" for row in rows for what, n in row["broken"].items()]
    figures = {"scale": scale, "seed": seed, "rows": rows}
    return Report(figures=figures, broken=broken)


def attack(one: Attack, ground: Ground) -> dict[str, Any]:
    """Run one attack on a fresh server; its row."""
    began_s = time.monotonic()
    row: dict[str, Any] = {"attack": one.name, "about": one.about}
    try:
        found = _own(one, ground) if one.own else _beside(one, ground, row)
        row |= {"tried": found.tried, "broken": dict(+found.broken), **found.figures}
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
        beside.blame(found.broken)
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


if __name__ == "__main__":
    main(attacks)
