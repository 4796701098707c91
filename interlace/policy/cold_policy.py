"""More models than memory: four questions that go together, and the facts to answer them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from interlace.core.loading import LoadPlan
from interlace.policy.cold_curve import ColdCurve, ColdStart


class Holding(Protocol):
    """One model on one accelerator: what of it is held there. Live; not kept after a call."""

    @property
    def model(self) -> str: ...
    @property
    def curve(self) -> ColdCurve: ...
    @property
    def held(self) -> frozenset[int]:
        """Layers whose weights are there, or on their way."""

    @property
    def rate_rps(self) -> float:
        """Requests that arrive, those of a burst counted once (``GapEstimator``)."""

    @property
    def sure_rps(self) -> float:
        """What that is at least, as far as is known."""

    @property
    def last_start_ms(self) -> float: ...
    @property
    def fetching(self) -> bool: ...  #: weights of it are on their way
    @property
    def may_leave(self) -> bool:
        """False while it runs, is fetched, or has requests that were accepted; if it is pinned."""


class Eviction(Protocol):
    """Which weights leave when memory is short? Layers of models, in the order in which they go.

    At least ``need_bytes``, or all that may leave if that is less.
    """

    def __call__(
        self, need_bytes: int, holdings: Iterable[Holding], now_ms: float
    ) -> Sequence[tuple[str, tuple[int, ...]]]: ...


class Prefetch(Protocol):
    """What is loaded while a link is idle? A model and a plan that copies some of it, or nothing.

    ``holdings`` are all models that are partly resident, and of the others the one whose missing
    part is worth most (rate x milliseconds saved a byte). The plan may need more than
    ``free_bytes``: then other weights are evicted for it.
    """

    def __call__(
        self, free_bytes: int, holdings: Sequence[Holding], now_ms: float
    ) -> tuple[str, LoadPlan] | None: ...


class WaitingLoad(NamedTuple):
    """A model whose weights requests wait for, and nobody brings yet.

    ``deadline_ms`` is the earliest of theirs; ``link_ms`` how long the load has the link and
    ``end_ms`` when the first answer ends, both counted from its begin; ``evicts`` if others must
    leave for it, or for the next one like it.
    """

    model: str
    first_arrival_ms: float
    deadline_ms: float
    link_ms: float
    end_ms: float
    rate_rps: float
    evicts: bool


class LoadChoice(NamedTuple):
    """The model whose load begins now; or none, and when to ask again if nothing else happens."""

    model: str | None
    wake_ms: float | None = None


class LoadOrder(Protocol):
    """Which load is next on a link that has room for one?"""

    def __call__(self, waiting: Sequence[WaitingLoad], now_ms: float) -> LoadChoice: ...


@dataclass(frozen=True, slots=True)
class ColdPolicy:
    """One answer to each, under one name: what ``--cold`` names."""

    name: str
    cold_start: ColdStart
    eviction: Eviction
    prefetch: Prefetch
    order: LoadOrder
