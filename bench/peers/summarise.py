"""From a JSON-lines file of figures to medians, ratios of ours with their spread, and tables."""

import json
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

from bench.harness import Report, Table, main, spread

#: Rows of ours: its own format of the models, and the files that Triton serves.
OURS: Final = ("ours", "ours_python")
Row = dict[str, Any]
Key = tuple[str, str, str]
#: A window counts as clean when other processes used less than this many CPUs in it.
CLEAN_CPUS = 0.3
FIGURES = {
    "full_rps": ("full", "rps"),
    "alone_p50_ms": ("alone", "p50_ms"),
    "alone_p99_ms": ("alone", "p99_ms"),
    "half_p50_ms": ("half", "p50_ms"),
    "half_p99_ms": ("half", "p99_ms"),
    "half_lag_p99_ms": ("half", "lag_p99_ms"),
}


#: The file that repetitions are appended to.
FILE: Final = "peers.jsonl"
_HEADS: Final = ("server", "wire", "max req/s", "alone p50 / p99 ms", "half p50 / p99 / lag p99 ms")


def summarise(
    file: Annotated[Path, "what a run appended to"] = Path("build/bench") / FILE, /
) -> Report:
    """Medians and ratios of all that a file holds."""
    result = summary(read(file))
    tables = [table(result["figures"], model) for model in ("echo", "cnn", "img")]
    return Report(tables=[*tables, ratio_table(result["ratios"])], figures=result)


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _spread(values: list[float]) -> dict[str, float] | None:
    """Median, least and greatest as they are kept; None of nothing."""
    found = spread(values)
    if found is None:
        return None
    figures = {"median": found.median, "min": found.least, "max": found.greatest}
    return {key: round(value, 3) for key, value in figures.items()} | {"n": found.runs}


def by_key(rows: list[Row]) -> dict[Key, list[Row]]:
    """Verified measurements by peer, model and protocol; only clean windows where two exist."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("verify") == "ok":
            groups[row["peer"], row["model"], row["proto"]].append(row)
    for key, group in groups.items():
        clean = [row for row in group if row["full"]["others_cpus"] < CLEAN_CPUS]
        groups[key] = clean if len(clean) >= 2 else group
    return groups


def value(row: Row, figure: str) -> float | None:
    part, name = FIGURES[figure]
    measured = row[part] or {}
    if measured.get("void"):
        return None  # the generator was late, not the server
    return None if (found := measured.get(name)) is None else float(found)


def summary(rows: list[Row]) -> Row:
    """Every figure's spread, and ours over each peer's by repetition."""
    groups = by_key(rows)
    figures = [
        {"peer": key[0], "model": key[1], "proto": key[2], "reps": len(group)}
        | {f: _spread([v for r in group if (v := value(r, f)) is not None]) for f in FIGURES}
        for key, group in groups.items()
    ]
    return {"figures": figures, "ratios": _ratios(groups), "servers": _servers(rows)}


def _ratios(groups: dict[Key, list[Row]]) -> list[Row]:
    """Each of ours over a peer's, repetition by repetition, same model and protocol."""
    out = []
    for mine, (peer, model, proto) in product(OURS, groups):
        group = groups[peer, model, proto]
        own = {row["rep"]: row for row in groups.get((mine, model, proto), [])}
        if peer in OURS or not own:
            continue
        row: Row = {"own": mine, "peer": peer, "model": model, "proto": proto}
        for figure in FIGURES:
            pairs = [
                (value(own[r["rep"]], figure), value(r, figure)) for r in group if r["rep"] in own
            ]
            row[figure] = _spread([a / b for a, b in pairs if a is not None and b])
        out.append(row)
    return out


def _servers(rows: list[Row]) -> Row:
    out: Row = {}
    for peer in {row["peer"] for row in rows if "startup_s" in row}:
        starts = [row for row in rows if row.get("peer") == peer and "startup_s" in row]
        out[peer] = {
            "startup_s": _spread([row["startup_s"] for row in starts]),
            "processes": starts[-1]["idle"]["processes"],
            "pss_idle_mb": _spread([row["idle"]["pss_mb"] for row in starts]),
            "pss_loaded_mb": _spread([row["loaded"]["pss_mb"] for row in starts]),
        }
    return out


def table(figures: list[Row], model: str) -> Table:
    """One model, fastest first; medians, spread of the rate in brackets."""
    cells = []
    rows = [row for row in figures if row["model"] == model and row["full_rps"]]
    for row in sorted(rows, key=lambda row: -float(row["full_rps"]["median"])):
        rate = row["full_rps"]
        found = [f"{rate['median']:.0f} ({rate['min']:.0f}-{rate['max']:.0f})"]
        for part in ("alone", "half"):
            shown = [row.get(f"{part}_{one}_ms") for one in ("p50", "p99", "lag_p99")]
            texts = ["-" if one is None else f"{one['median']:.2f}" for one in shown]
            found.append(" / ".join(texts if part == "half" else texts[:2]))
        cells.append((row["peer"], row["proto"], *found))
    return Table(_HEADS, cells, model)


def ratio_table(ratios: list[Row]) -> Table:
    """Ours over each peer's, repetition by repetition."""
    cells = [
        (
            f"{row['own']} / {row['peer']}, {row['model']}, {row['proto']}",
            *(_ratio(row[f]) for f in FIGURES),
        )
        for row in ratios
    ]
    return Table(("ratio", *FIGURES), cells, "ratios")


def _ratio(found: Row | None) -> str | None:
    return f"{found['median']:.2f} ({found['min']:.2f}-{found['max']:.2f})" if found else None


if __name__ == "__main__":
    main(summarise)
