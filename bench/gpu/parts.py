"""The parts of a run in order, with the seconds each can count on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Final

#: A borrowed GPU is often borrowed for ten minutes at a time.
MOST_S: Final = 560.0
#: At the end of a run: a part that is ended, its daemons, summary and bundle.
END_S: Final = 8.0
#: What a part may take beyond its seconds if others have left time: one that hangs takes no more.
_STRETCH: Final = 2.0


@dataclass(frozen=True, slots=True)
class Part:
    """One step, in a process of its own. ``seconds`` is what it should take on an H100; with less
    left it is not begun.

    ``entry`` is "module:function"; it is given a ``Bench`` and yields rows.
    """

    name: str
    group: str
    seconds: float
    tells: str
    entry: str
    environment: Mapping[str, str] = field(default_factory=dict)  #: beside every child's own
    usual: bool = True  #: asked where no part is named


def _part(
    group: str, name: str, seconds: float, tells: str, module: str = "", usual: bool = True
) -> Part:
    """``module`` is in this folder, and named as the part if nothing is said."""
    return Part(name, group, seconds, tells, f"bench.gpu.{module or name}:rows", usual=usual)


_compared = partial(_part, "comparisons")

#: By what a first look needs most, and what later parts read: whether the mechanism works at all,
#: what it is for, then why it is as fast as it is.
PARTS: Final[tuple[Part, ...]] = (
    _part(
        "preflight", "preflight", 60, "whether the mechanism works at all, and which way of it",
        "preflight.part",
    ),
    _part("checks", "versions", 10, "versions, tools and limits of the machine"),
    _part(
        "profiles", "profiles", 80, "latency of the ten models by batch and share", usual=False
    ),
    _compared(
        "goodput", 240, "latency of five models, then goodput: ours, whole GPU, streams, processes"
    ),
    _compared("isolation", 40, "p99 of a model beside kernels, copies and another model"),
    _compared(
        "cold-start", 60, "swapped weights: the link, cold starts in every way",
        "cold_start",
    ),
    _compared("changing", 30, "the gap when shares change under load"),
    Part(
        "contracts", "contracts", 150, "the contract of devices on green, MPS and streams",
        "tests.bench.gpu_contract:rows", {"INTERLACE_TEST_WAIT_S": "120"}, usual=False,
    ),
    _compared("twin", 40, "the simulator against this GPU", usual=False),
)  # fmt: skip

GROUPS: Final = tuple(dict.fromkeys(part.group for part in PARTS))


def granted_s(part: Part, later: Sequence[Part], left_s: float) -> float:
    """The seconds that a part gets: its own and what nobody needs, up to twice its own.

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


def with_seconds(parts: Sequence[Part], said: Sequence[str]) -> list[Part]:
    """The parts with what they can count on as ``PART=SECONDS`` says.

    Raises:
        KeyError: that is not said of a part; the message says what is expected.
    """
    seconds: dict[str, float] = {}
    for one in said:
        name, _, number = one.partition("=")
        if name not in {part.name for part in PARTS} or not number.isdigit():
            raise KeyError(f"--seconds {one}: expected PART=SECONDS, such as goodput=200")
        seconds[name] = float(number)
    return [replace(one, seconds=seconds.get(one.name, one.seconds)) for one in parts]


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of those names or groups, in their order; the usual ones if none is named.

    Raises:
        KeyError: nothing has that name; the message says what there is.
    """
    known = [part.name for part in PARTS]
    for name in names:
        if name not in (*known, *GROUPS):
            near = get_close_matches(name, [*known, *GROUPS], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise KeyError(f"no part '{name}'{hint}; there are: {', '.join([*known, *GROUPS])}")
    if not names:
        return [part for part in PARTS if part.usual]
    return [part for part in PARTS if {part.name, part.group} & set(names)]
