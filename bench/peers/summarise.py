"""From a JSON-lines file of figures to medians, ratios of ours with their spread, and tables."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

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
}


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def spread(values: list[float]) -> dict[str, float] | None:
    """Median, least and greatest; None of nothing."""
    if not values:
        return None
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {key: round(value, 3) for key, value in figures.items()} | {"n": len(values)}


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
    found = (row[part] or {}).get(name)
    return None if found is None else float(found)


def summary(rows: list[Row]) -> Row:
    """Every figure's spread, and ours over each peer's by repetition."""
    groups = by_key(rows)
    figures = [
        {"peer": key[0], "model": key[1], "proto": key[2], "reps": len(group)}
        | {f: spread([v for r in group if (v := value(r, f)) is not None]) for f in FIGURES}
        for key, group in groups.items()
    ]
    return {"figures": figures, "ratios": _ratios(groups), "servers": _servers(rows),
            "cnn_share_of_bare_torch": _bare_share(rows, groups)}  # fmt: skip


def _ratios(groups: dict[Key, list[Row]]) -> list[Row]:
    """Ours over a peer's, repetition by repetition, same model and protocol."""
    out = []
    for (peer, model, proto), group in groups.items():
        own = {row["rep"]: row for row in groups.get(("ours", model, proto), [])}
        if peer == "ours" or not own:
            continue
        row: Row = {"peer": peer, "model": model, "proto": proto}
        for figure in FIGURES:
            pairs = [
                (value(own[r["rep"]], figure), value(r, figure)) for r in group if r["rep"] in own
            ]
            row[figure] = spread([a / b for a, b in pairs if a is not None and b])
        out.append(row)
    return out


def _bare_share(rows: list[Row], groups: dict[Key, list[Row]]) -> Row:
    """CNN rate over that of torch alone at batch 16, measured in the same repetition."""
    bare = {row["rep"]: row["bare_torch"]["16"]["rps"] for row in rows if "bare_torch" in row}
    return {
        f"{peer} {proto}": spread(
            [r["full"]["rps"] / bare[r["rep"]] for r in group if r["rep"] in bare]
        )
        for (peer, model, proto), group in groups.items()
        if model == "cnn"
    }


def _servers(rows: list[Row]) -> Row:
    out: Row = {}
    for peer in {row["peer"] for row in rows if "startup_s" in row}:
        starts = [row for row in rows if row.get("peer") == peer and "startup_s" in row]
        out[peer] = {
            "startup_s": spread([row["startup_s"] for row in starts]),
            "processes": starts[-1]["idle"]["processes"],
            "pss_idle_mb": spread([row["idle"]["pss_mb"] for row in starts]),
            "pss_loaded_mb": spread([row["loaded"]["pss_mb"] for row in starts]),
        }
    return out


def table(figures: list[Row], model: str) -> str:
    """A markdown table of one model, fastest first; medians, spread of the rate in brackets."""
    lines = [
        f"**{model}**\n",
        "| server | wire | max req/s (least-greatest) | alone p50 / p99 ms | half p50 / p99 ms |",
        "|---|---|--:|--:|--:|",
    ]
    rows = [row for row in figures if row["model"] == model and row["full_rps"]]
    for row in sorted(rows, key=lambda row: -float(row["full_rps"]["median"])):
        rate = row["full_rps"]
        cells = [f"{rate['median']:.0f} ({rate['min']:.0f}-{rate['max']:.0f})"]
        for part in ("alone", "half"):
            pair = [row[f"{part}_{p}_ms"] for p in ("p50", "p99")]
            cells.append(" / ".join("-" if v is None else f"{v['median']:.2f}" for v in pair))
        lines.append(f"| {row['peer']} | {row['proto']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write summary.json and tables.md beside the input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=Path("build/bench/peers.jsonl"))
    file = parser.parse_args().file
    result = summary(read(file))
    text = "\n".join(table(result["figures"], model) for model in ("echo", "cnn", "img"))
    file.with_name("peers-summary.json").write_text(json.dumps(result, indent=1) + "\n")
    file.with_name("peers-tables.md").write_text(text)
    print(text)
    print(json.dumps({k: v for k, v in result.items() if k != "figures"}, indent=1))


if __name__ == "__main__":
    main()
