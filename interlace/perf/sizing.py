"""The knee, beyond which more share gains a model little, and which batch runs at which share.

D-STACK, sections 4.3 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Size:
    """A batch and a share; ``deployed_pct`` is the share with what is given on top of it."""

    batch: int
    share_pct: int
    deployed_pct: int
    latency_ms: float
    efficacy: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The optimisation of section 5: the highest efficacy (equation 9) under constraints 10 to 12.

    ``assembly_ms`` is the time in which one more row is there (0.481 ms in the paper, from its
    link): a batch of b is assembled in C = b * assembly_ms. ``over_provision_pct`` is added to the
    share before it is deployed, "5-10 %" in the paper. The paper fits a function and descends it;
    shares and batches are few, so all are tried.
    """

    over_provision_pct: int = 5
    assembly_ms: float = 0.0

    def __call__(
        self, latency: Surface, slo_ms: float, shares_pct: Sequence[int], max_batch: int
    ) -> Size | None:
        """The best size among these shares; ``None`` if none meets the SLO.

        Shares below the smallest measured are passed over. Of equals the smaller share wins, then
        the larger batch.
        """
        least = latency.shares_pct[0]
        best: Size | None = None
        for share in sorted(share for share in shares_pct if share >= least):
            table = latency.table(share, max_batch)
            for batch in range(max_batch, 0, -1):
                run_ms = table[batch]
                if not self.feasible(batch, run_ms, slo_ms):
                    continue
                worth = efficacy(batch, run_ms, share)
                if best is None or worth > best.efficacy:
                    best = Size(batch, share, share, run_ms, worth)
        if best is None:
            return None
        return replace(best, deployed_pct=self.deployed_pct(best.share_pct, shares_pct))

    def feasible(self, batch: int, run_ms: float, slo_ms: float) -> bool:
        """Constraints 11 and 12: assembled and run within the SLO, run within half of it."""
        return run_ms + batch * self.assembly_ms <= slo_ms and run_ms <= slo_ms / 2.0

    def deployed_pct(self, share_pct: int, shares_pct: Sequence[int]) -> int:
        """The smallest legal share larger by the over-provision, or the largest there is."""
        wanted = min(share_pct + self.over_provision_pct, max(shares_pct))
        return min(share for share in shares_pct if share >= wanted)
