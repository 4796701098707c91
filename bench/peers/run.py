"""Figures of every server, back to back in each repetition: appended to OUT/peers.jsonl.

The server gets core 0 and this process core 1. Per model and protocol: one connection, closed
loop with 32 connections (8 for the image), and Poisson arrivals at half of that closed-loop rate.
All that the file holds is then summed up, as `python -m bench.peers.summarise` does.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Final

from bench.harness import Report, main, processes
from bench.harness.closed_loop import closed_loop
from bench.harness.load import figures, lagged, open_loop
from bench.peers import models, once, wire
from bench.peers.server import Bench, NotReadyError, Server, Watch, claim, started
from bench.peers.summarise import FILE, summarise
from bench.peers.table import PEERS_HOME, Peer, installed, prepare
from bench.peers.table import peers as all_peers
from interlace.load.connections import Call

#: Runs at half of the rate until the generator is not the one that is late.
_TRIES: Final = 3
CONNECTIONS: Final = {"echo": 32, "cnn": 32, "img": 8}
Row = dict[str, Any]


def peers(
    names: Annotated[tuple[str, ...], "all that are installed if none is named"] = (),
    /,
    *,
    reps: int = 3,
    home: Annotated[Path, "where the peers are"] = PEERS_HOME,
    seconds: Annotated[float, "of each measurement"] = 1.8,
    nice: Annotated[int, "of server and client"] = 0,
    patience_s: Annotated[float, "for a quiet machine before each server"] = 20.0,
    out: Path,
) -> Report:
    """All repetitions."""
    claim({1}, nice)
    table = all_peers(home)
    chosen = names or tuple(name for name, peer in table.items() if installed(home, peer))
    for name in chosen:
        prepare(home, table[name])
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(home, "0", nice)
    for rep in range(reps):
        with (out / FILE).open("a") as kept:
            for name in chosen:
                for row in one_peer(name, table[name], bench, seconds, rep + 1, patience_s):
                    kept.write(json.dumps({"rep": rep, "time": time.time(), **row}) + "\n")
                kept.flush()
    return summarise(out / FILE)


def one_peer(
    name: str, peer: Peer, bench: Bench, seconds: float, seed: int, patience_s: float
) -> list[Row]:
    """Start a peer, measure everything it speaks, stop it."""
    rows: list[Row] = []
    pairs = [(model, proto) for model, spoken in peer.protocols.items() for proto in spoken]
    calls = {pair: wire.request(name, *pair) for pair in pairs}
    try:
        with started(name, peer, bench, list(calls.values()), patience_s) as server:
            idle = processes.memory(server.pids())
            for (model, proto), call in calls.items():
                row = {"peer": name, "model": model, "proto": proto}
                row |= {"verify": verify(model, call)}
                rows.append(row | measure(server, call, model, seconds, seed))
                print(_line(rows[-1]), flush=True)
            loaded = processes.memory(server.pids())
    except NotReadyError as error:
        print(f"{name}: {error}", flush=True)
        return [*rows, {"peer": name, "fail": str(error)[:500]}]
    taken = {"startup_s": round(server.startup_s, 2), "idle": idle, "loaded": loaded}
    return [*rows, {"peer": name, **taken, "stop": server.stopped}]


def verify(model: str, call: Call) -> str:
    """ "ok" if the answer carries what the model computes, else what is wrong with it."""
    status, body = once.ask(call)
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    same = model == "cnn" or models.sample(model)[0].tobytes() in body
    return "ok" if same else "different bytes"


def measure(server: Server, call: Call, model: str, seconds: float, seed: int) -> Row:
    """One model over one protocol."""
    packed = call.encoded()
    closed_loop(packed, 4, 0.5, 0.0)
    alone = figures(closed_loop(packed, 1, seconds * 2 / 3, 0.1))
    watch = Watch(server)
    run = closed_loop(packed, CONNECTIONS[model], seconds, 0.3, watch.mark)
    full = figures(run) | watch.read()
    half: Row | None = None
    if full["rps"] > 1:
        for again in range(_TRIES):
            watch.mark()
            half = figures(open_loop(packed, full["rps"] / 2, seconds, seed=seed + 100 * again))
            half |= watch.read() | {"void": lagged(half)}
            if not half["void"]:
                break
    return {"alone": alone, "full": full, "half": half}


def _line(row: Row) -> str:
    alone, full, half = row["alone"], row["full"], row["half"] or {}
    return (
        f"{row['peer']:10} {row['model']:4} {row['proto']:4} {row['verify']:3} "
        f"alone {alone['p50_ms']}/{alone['p99_ms']} ms, full {full['rps']} req/s "
        f"(client {full['client_busy']}, others {full['others_cpus']}), "
        f"half {half.get('p50_ms')}/{half.get('p99_ms')} ms (lag {half.get('lag_p99_ms')}"
        f"{', void' if half.get('void') else ''}) {full['statuses']}"
    )


if __name__ == "__main__":
    main(peers)
