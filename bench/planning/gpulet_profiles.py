"""Nine models shaped after gpulet's Table 4 and Figure 3: what the paper prints, and a formula."""

import argparse
import csv
import sys
from typing import Final

from interlace.core.profile import LatencyPoint, Profile

#: SLO in ms (Table 4), which the paper sets to twice the latency of 32 rows on a whole GPU; and
#: weights in MB (public sizes of these models in float32).
MODELS: Final = {
    "goo": (66.0, 27),
    "le": (5.0, 1),
    "res": (108.0, 102),
    "ssd": (202.0, 27),
    "vgg": (142.0, 553),
    "nas": (62.0, 18),
    "mob": (64.0, 14),
    "den": (202.0, 32),
    "be": (22.0, 438),
}
SHARES_PCT: Final = (20, 40, 50, 60, 80, 100)
BATCHES: Final = (1, 2, 4, 8, 16, 32)

_FIXED: Final = 0.15  #: part of the latency of 32 rows that one row pays too
_WIDTH: Final = 0.35  #: b rows can use 100 (b / 32)^0.35 % of the GPU
_SPEEDUP: Final = 0.9  #: twice the share makes what can use it 2^0.9 times as fast


def latency_ms(slo_ms: float, batch: int, share_pct: int) -> float:
    """L(b, p): steep in the share for large batches, nearly flat for small ones (Figure 3).

    L(32, 100 %) is half the SLO. A part of it is fixed; the rest grows with the rows, and with the
    lack of the share that so many rows could use.
    """
    full_ms = slo_ms / 2.0
    width_pct = 100.0 * (batch / 32.0) ** _WIDTH
    slower: float = max(1.0, width_pct / share_pct) ** _SPEEDUP
    return full_ms * (_FIXED + (1.0 - _FIXED) * batch / 32.0 * slower)


def profiles(shares_pct: tuple[int, ...] = SHARES_PCT) -> dict[str, Profile]:
    """The nine models as profiles."""
    found = {}
    for name, (slo_ms, weights_mb) in MODELS.items():
        points = {}
        for share in shares_pct:
            for batch in BATCHES:
                ms = latency_ms(slo_ms, batch, share)
                points[batch, share] = LatencyPoint(ms, ms, ms, 1)
        found[name] = Profile(name, "shaped", "2080ti", weights_mb * 10**6, 400 * 10**6, points)
    return found


def main() -> None:
    """Print them as a table that `interlace plan` reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu-kind", default="2080ti", help="what the rows are said to be of")
    parser.add_argument("--faster", type=float, default=1.0, help="divide every latency by this")
    asked = parser.parse_args()
    print("# Shaped after gpulet (USENIX ATC 2022), Table 4 and Figure 3; not measured.")
    if asked.faster != 1.0:
        print(f"# For {asked.gpu_kind} every latency is divided by {asked.faster:g}: made up.")
    out = csv.writer(sys.stdout, lineterminator="\n")
    columns = "gpu_kind model share_pct batch latency_ms weights_mb activation_mb"
    out.writerow(columns.split())
    for name, profile in profiles(tuple(range(10, 101, 10))).items():
        for (batch, share), point in profile.points.items():
            latency = f"{point.median_ms / asked.faster:.3f}"
            out.writerow([asked.gpu_kind, name, share, batch, latency, MODELS[name][1], 400])


if __name__ == "__main__":
    main()
