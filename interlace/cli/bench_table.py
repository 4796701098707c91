"""The results of a load run as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.cli.screen import console, table
from interlace.load.result import LAG_OF_SLO_MAX, ModelLoadReport

_FIGURES: Final = (
    "SLO ms",
    "sent/s",
    "good/s",
    "in SLO",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "p99.9 ms",
    "refused",
    "lost",
)


def show(results: Sequence[ModelLoadReport], notes: Sequence[str]) -> None:
    """Print one line per model, then what a reader should know before trusting it."""
    out = console()
    for note in notes:
        out.print(note, soft_wrap=True)
    figures = table(("model",), _FIGURES)
    for result in results:
        figures.add_row(*_cells(result))
    out.print(figures)
    for line in [*(line for one in results for line in remarks(one)), *lateness(results)]:
        out.print(line, soft_wrap=True)


def remarks(result: ModelLoadReport) -> list[str]:
    """Refusals by reason, and requests that the generator held back."""
    lines = []
    if result.refused:
        reasons = ", ".join(f"{reason} {count}" for reason, count in result.refused.items())
        lines.append(
            f"{result.model}: refused: {reasons}; told within {_ms(result.refusal_p99_ms)} ms (p99)"
        )
    if result.crowded:
        lines.append(
            f"{result.model}: {result.crowded} requests waited for a connection (counted in their "
            "latency); --connections sets more"
        )
    return lines


def lateness(results: Sequence[ModelLoadReport]) -> list[str]:
    """How far the generator itself was late, and a warning where that spoils the figures."""
    lags = [one.lag_p99_ms for one in results if one.lag_p99_ms is not None]
    if not lags:
        return []
    lines = [f"the load generator itself was late by {max(lags):.2f} ms (p99)"]
    doubtful = ", ".join(one.model for one in results if one.doubtful)
    if doubtful:
        lines.append(
            f"warning: that is over {LAG_OF_SLO_MAX:.0%} of the SLO of {doubtful}: these latencies "
            "say as much of this machine as of the server; lower the rate or free a core"
        )
    return lines


def _cells(result: ModelLoadReport) -> list[str]:
    return [
        result.model,
        "-" if result.slo_ms is None else f"{result.slo_ms:g}",
        f"{result.offered_rps:.1f}",
        f"{result.goodput_rps:.1f}",
        f"{result.attainment:.1%}",
        *(_ms(value) for value in (result.p50_ms, result.p95_ms, result.p99_ms, result.p999_ms)),
        str(sum(result.refused.values())),
        str(result.unanswered),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
