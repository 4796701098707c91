"""The knee: the share of an accelerator beyond which a model gains little (D-STACK 4.3, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from interlace.perf.latency import Surface


def worth_of_unit(latency_ms: float, units: float) -> float:
    """The size of equation 6: |d(1 / (E S)) / dE| = 1 / (E^2 S)."""
    return 1.0 / (latency_ms**2 * units)


def knee(latencies_ms: Mapping[int, float]) -> int:
    """The SMs, or the share, at which equation 6 is largest; the fewest of equals.

    Raises:
        ValueError: nothing was measured.
    """
    if not latencies_ms:
        raise ValueError("a knee needs the latency of at least one share")
    return max(latencies_ms, key=lambda units: (worth_of_unit(latencies_ms[units], units), -units))


def efficacy(batch: int, latency_ms: float, share_pct: int) -> float:
    """Equation 9: throughput for its latency and its share, in rows / (ms^2 %).

    It is equation 7 with the throughput of equation 8, b / L.
    """
    return batch / (latency_ms**2 * share_pct)


def knee_pct(latency: Surface, batch: int, shares_pct: Iterable[int] = ()) -> int:
    """The share of highest efficacy at one batch, among those given or all that were measured.

    At one batch, efficacy is equation 6 but for a factor. Shares below the smallest measured one
    are passed over.

    Raises:
        ValueError: no share is left.
    """
    least = latency.shares_pct[0]
    usable = [share for share in (tuple(shares_pct) or latency.shares_pct) if share >= least]
    return knee({share: latency.latency_ms(batch, share) for share in usable})
