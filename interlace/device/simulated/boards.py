"""What each kind of GPU brings to a simulation beside its profiles: host link and mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from interlace.core.hardware import Gpu, Trait
from interlace.device.simulated.physics import MECHANISMS, HostLink, Physics, Transfer


class BoardSpec(NamedTuple):
    """Bytes per ms of one copy engine, one for each direction, and how the GPU is cut."""

    link_bytes_per_ms: float
    mechanism: str


#: PCIe 3.0 x16 brings 15.75 GB/s at most and 10.87 to a V100 for BERT-Base (DeepPlan Table 2 and
#: section 3.2). The other boards with that link are taken to be alike (link: NVIDIA's data sheets).
_PCIE3: Final = 10.87e6
#: Twice and four times the rate by the standard; that the same part of it is reached is assumed.
_PCIE4: Final = 2 * _PCIE3
_PCIE5: Final = 4 * _PCIE3

#: By ``Gpu.kind``. A kind that is not here has no copies and the costs of "uncut".
BOARDS: Final[Mapping[str, BoardSpec]] = MappingProxyType(
    {
        **{
            kind: BoardSpec(_PCIE3, "mps") for kind in ("p100", "v100", "t4", "titan-rtx", "2080ti")
        },
        **{
            kind: BoardSpec(_PCIE4, "mps")
            for kind in ("a10", "a30", "a100", "a100-40gb", "l40s", "rtx-3090", "rtx-4090")
        },
        "l4": BoardSpec(_PCIE3, "mps"),  # PCIe 4.0 x8
        "rtx-pro-6000": BoardSpec(_PCIE5, "mps"),
        "a100-mig": BoardSpec(_PCIE4, "mig"),
        "h100": BoardSpec(_PCIE5, "green"),
        "h200": BoardSpec(_PCIE5, "green"),
        "b200": BoardSpec(_PCIE5, "green"),
    }
)

#: What each request of its own adds to a copy (E2bird section 5.3, Figure 7, Titan RTX).
_START_MS: Final = 0.0039
#: Bytes per ms of gathering on the host: 2,506,216 cycles for 8 images (primitives paper, section
#: V-B) at 2.4 GHz, its processor's base clock, taking images as 3 x 224 x 224 floats.
_GATHER: Final = 8 * 602_112 / (2_506_216 / 2.4e6)


def physics_of(gpu: Gpu, transfers: Mapping[str, Transfer] | None = None) -> Physics:
    """What is known of a kind: its mechanism, and copies for models with ``transfers``.

    ``Trait.GATHER_DMA`` saves gathering inputs on the host. Host costs are left to profiles, which
    hold those of the server they were measured in. No interference and no jitter: those are
    measured for models.
    """
    board = BOARDS.get(gpu.kind)
    if board is None:
        return Physics(costs=MECHANISMS["uncut"])
    gather = float("inf") if Trait.GATHER_DMA in gpu.traits else _GATHER
    link = HostLink(board.link_bytes_per_ms, _START_MS, gather)
    return Physics(MECHANISMS[board.mechanism], link=link, transfers=transfers or {})
