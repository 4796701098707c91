"""The parts of gpu-check in order, with the seconds that each can count on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: A borrowed GPU is often borrowed for ten minutes at a time.
MOST_S: Final = 560.0
#: Kept for the end of a run: a part that is ended, its daemons, the bundle.
END_S: Final = 8.0
#: A part gets at most this many times its seconds if other parts leave time.
_STRETCH: Final = 2.0


@dataclass(frozen=True, slots=True)
class Part:
    """One step, in a process of its own. ``seconds`` is what it should take on an H100; with less
    left it is not begun.

    ``entry`` is "module:function"; it is given a ``Bench`` and yields rows.
    """

    name: str
    seconds: float
    tells: str
    entry: str
    environment: Mapping[str, str] = field(default_factory=dict)  #: beside every child's own
    usual: bool = True  #: run where no part is named


#: By what a first look needs most, and what later parts read: whether the mechanism works at all,
#: what it is for, then why it is as fast as it is.
PARTS: Final[tuple[Part, ...]] = (
    Part(
        "preflight", 60, "whether the mechanism works at all, and which way of it",
        "bench.gpu.preflight.part:rows",
    ),
    Part(
        "versions", 10, "versions, tools and limits of the machine", "bench.gpu.versions:rows",
    ),
    Part(
        "profiles", 80, "latency of the ten models by batch and share", "bench.gpu.profiles:rows",
        usual=False,
    ),
    Part(
        "goodput", 240,
        "latency of five models, then goodput: ours, whole GPU, streams, processes",
        "bench.gpu.goodput:rows",
    ),
    Part(
        "isolation", 40, "p99 of a model beside kernels, copies and another model",
        "bench.gpu.isolation:rows",
    ),
    Part(
        "cold-start", 60, "swapped weights: the link, cold starts in every way",
        "bench.gpu.cold_start:rows",
    ),
    Part("changing", 30, "the gap when shares change under load", "bench.gpu.changing:rows"),
    Part(
        "contracts", 150, "the contract of devices on green, MPS and streams",
        "tests.bench.gpu_contract:rows", {"INTERLACE_TEST_WAIT_S": "120"}, usual=False,
    ),
    Part("twin", 40, "the simulator against this GPU", "bench.gpu.twin:rows", usual=False),
)  # fmt: skip


def granted_s(part: Part, later: Sequence[Part], left_s: float) -> float:
    """Return the seconds that a part gets: its own and what nobody needs, up to twice its own.

    ``later`` are the parts that follow: each that would fit after this one is left its own seconds.
    0 if there is too little for this one itself.
    """
    free_s = left_s - part.seconds
    if free_s < 0:
        return 0.0
    for one in later:
        if one.seconds <= free_s:
            free_s -= one.seconds
    return part.seconds + min(free_s, (_STRETCH - 1.0) * part.seconds)
