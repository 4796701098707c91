"""The hour drawn: memory, descriptors and p99 over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Three panels under each other, one time axis; ``path`` ends in .svg or .png."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    minutes = [one["minutes"] for one in points]
    figure, (memory, descriptors, late) = plt.subplots(3, 1, sharex=True, figsize=(8, 7))
    memory.plot(minutes, [one["rss_mb"] for one in points], label="all processes")
    descriptors.plot(minutes, [one["main_descriptors"] for one in points], label="main process")
    for name, label in (("p99_ms", "p99"), ("p50_ms", "p50")):
        late.plot(minutes, [one[name] for one in points], label=label)
    for panel, title in ((memory, "memory, MB (RSS)"), (descriptors, "descriptors"), (late, "ms")):
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(loc="lower right", fontsize=8)
    late.set_xlabel("minutes")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
