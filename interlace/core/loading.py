"""How a cold model's weights reach an accelerator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import inf
from typing import Final


class WeightPath(Enum):
    """The path of one layer's weights."""

    KEEP = "keep"  #: they are there, or there are none
    COPY = "copy"  #: copied over the accelerator's own link
    HOST = "host"  #: read where they lie, by each execution
    PEER = "peer"  #: copied to another accelerator over its link, and from there


OVER_LINKS: Final = (WeightPath.COPY, WeightPath.PEER)


@dataclass(frozen=True, slots=True)
class HostLinks:
    """What weights can come over: the accelerator's own link, and those of ``peers`` others.

    A layer's ``copy_ms`` is its time on any one of these links; peers pass on what they got at
    ``peer_bytes_per_ms`` (NVLink). Where a copy ``takes_cores``, it is made by what executes, which
    stands still meanwhile: cores that copy from the page cache. Where it ``carries_reads``, what an
    execution reads where it lies comes over the own link, too: a disk. ``names`` tell which link
    the own one and each peer's are, where several accelerators share one: those of a PCIe switch.
    """

    peers: int = 0
    peer_bytes_per_ms: float = inf
    takes_cores: bool = False
    names: tuple[str, ...] = ()
    carries_reads: bool = False

    @property
    def alone(self) -> HostLinks:
        """The own link without peers."""
        return replace(self, peers=0, names=self.names[:1])


@dataclass(frozen=True, slots=True)
class HostTier:
    """Memory of a host for weights, and how fast its disk brings what is not in it."""

    memory_bytes: int
    disk_bytes_per_ms: float

    def read_ms(self, nbytes: int) -> float:
        """How long the disk reads so many bytes."""
        return nbytes / self.disk_bytes_per_ms


#: The one disk among the names of links, and as a link: cores do other work while it reads.
DISK: Final = "disk"
DISK_LINK: Final = HostLinks(carries_reads=True)

#: An accelerator with a link of its own.
OWN_LINK: Final = HostLinks()


def link_of(gpu_kind: str) -> HostLinks:
    """The own link of an accelerator of that kind: a GPU's, or none but the cores themselves."""
    return HostLinks(takes_cores=gpu_kind.startswith("cpu"))


@dataclass(frozen=True, slots=True)
class LoadStep:
    """The path of a layer's weights; ``link`` is 0 for the own link, else the peer's number."""

    layer: str
    via: WeightPath
    link: int = 0


@dataclass(frozen=True)
class LoadPlan:
    """A step a layer, in the order of execution.

    ``overlapped``: layers run as soon as their weights are there; else all are brought first.
    ``end_ms`` is when the first execution is predicted to end, counted from the begin of the load;
    ``bound_ms`` what no choice of paths can go below on these links.
    """

    steps: tuple[LoadStep, ...]
    overlapped: bool
    end_ms: float
    bound_ms: float

    @cached_property
    def brought(self) -> tuple[int, ...]:
        """The layers whose weights it copies, over whatever link."""
        return tuple(index for index, step in enumerate(self.steps) if step.via in OVER_LINKS)
