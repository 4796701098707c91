"""Nodes: machines that run one server each, what they publish and what they receive."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

import msgspec

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile

#: Names go into headers, logs, metrics and paths; "/" parts a node from its accelerators.
_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.:%@\[\]-]{1,253}")


def check_node_name(name: str, other: str = "") -> None:
    """Refuse what cannot be a node's name, or ``other`` that belongs to it.

    Raises:
        ValueError: it has other characters than ``_NAME``.
    """
    text = other or name
    if not _NAME.fullmatch(text):
        raise ValueError(f"node {name!r}: {text!r} must have 1 to 253 letters, digits and _.:%@[]-")


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node listens, by its name in the fleet.

    ``service`` is the name in its certificate, "" for ``host``.

    Raises:
        ValueError: the name or an address has other characters than ``_NAME``.
    """

    name: str
    host: str
    http_port: int
    grpc_port: int = 0
    service: str = ""

    def __post_init__(self) -> None:
        check_node_name(self.name)
        for text in (self.host, self.service):
            check_node_name(self.name, text)

    @property
    def tls_name(self) -> str:
        """What its certificate has to name."""
        return self.service or self.host


#: Numbers of peers: what is larger is no count, and some of it no file name or float.
#: Accelerators of one node: sixteen GPUs of seven slices, twice. Plans take time for each.
GPUS_MAX: Final = 256
#: Models of one node: routers read of each, many times a second.
MODELS_MAX: Final = 4096
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Duration = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]  #: in ms


@dataclass(frozen=True, slots=True)
class ModelOutlook:
    """How soon a node would answer a model's next request.

    ``wait_ms`` is the predicted time from the arrival of a request of one row until its answer.
    ``alone_ms`` of it are for its execution, and ``cold_ms`` for loading its weights. Each row
    before it adds ``row_ms``. ``arrived`` counts the model's requests since the node began, for
    rates. ``lent``: the model has no partition of its own there, and runs in time that others leave
    in theirs. ``stateful``: its requests belong to sequences, whose states are at one node each.
    """

    wait_ms: Duration
    alone_ms: Duration
    row_ms: Duration
    slo_ms: Duration
    cold_ms: Duration = 0.0
    waiting_rows: Number = 0
    arrived: Number = 0
    lent: bool = False
    stateful: bool = False


class Revision(NamedTuple):
    """The place of an assignment among all: those of a later term come after any of an earlier one.

    ``term`` is the number of the lease under which it was given, ``number`` counts within it.
    """

    term: Number
    number: Number


#: Before any assignment.
UNASSIGNED: Final = Revision(0, 0)


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node says of itself to routers and controllers; old by as long as it was under way.

    ``number`` counts the node's states since it ``began`` (a random number), ``models`` are those
    that answer, by public name. ``revision`` is that of the assignment which it follows, and
    ``settled`` if each of its models is loaded in all of its partitions, but for ``failures``,
    which could not be brought up, and why. ``files`` is the digest of the ``FilesOrder`` whose
    models are at hand, again but for ``failures``.
    """

    began: Number
    number: Number
    models: Annotated[dict[str, ModelOutlook], msgspec.Meta(max_length=MODELS_MAX)]
    revision: Revision = UNASSIGNED
    files: str = ""
    accepting: bool = True
    settled: bool = True
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The facts about a node that stay while it runs; ``began`` as in ``NodeState``.

    ``assigned``: the fleet's controller assigns its models. Nodes of the same ``zone`` fail
    together. Answers of ``emulated`` accelerators are made up.
    """

    name: str
    zone: str
    began: Number
    version: str
    assigned: bool
    gpus: Annotated[tuple[Gpu, ...], msgspec.Meta(max_length=GPUS_MAX)]
    emulated: bool = False


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A model that a node could serve, loaded or not, by its public name: what a plan needs of it.

    ``digest`` covers its files; ``profile`` is that on the node's accelerators. ``apps`` are those
    that it is a member of, each with all of its members.
    """

    demand: Demand
    digest: str
    profile: Profile
    apps: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model folder: bytes and SHA-256 of each file by its path there; ``digest`` covers all."""

    digest: str
    files: dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class FilesOrder:
    """Have these models at hand: ``source`` says which, and gives their files.

    It is HOST:PORT, or https://HOST:PORT. ``digest`` covers all of them, ``term`` is that of the
    controller.
    """

    term: Number
    digest: str
    source: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node's part of the fleet's plan: partitions of its own accelerators.

    ``models`` are all that it is to serve, each with the digest of its files.
    """

    revision: Revision
    plan: Plan
    models: dict[str, str]
