"""D-STACK's ideal scheduler, slot by slot: kernels are preempted at will (section 6.2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS: Final = 1e-9


class Kernel(NamedTuple):
    """One kernel of a model: its knee, and its time at that share."""

    share_pct: float
    run_ms: float


@dataclass(frozen=True, slots=True)
class IdealSchedule:
    """Part of the accelerator in use, 0..1, and inferences per second of each model."""

    utilisation: float
    rows_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SlottedSchedule:
    """What the slots held: ``chosen[i]`` maps models to the index of the kernel in slot i.

    ``late`` is the part of each model's inferences that ended after their deadlines.
    """

    ideal: IdealSchedule
    chosen: Sequence[Mapping[str, int]]
    late: Mapping[str, float]


@dataclass(slots=True)
class _Progress:
    """One model's inference: its kernel, what is left of it, and when it is to end."""

    kernels: Sequence[Kernel]
    slo_ms: float
    deadline_ms: float
    at: int = 0
    left_ms: float = 0.0
    done: int = 0
    late: int = 0

    def need_ms(self) -> float:
        """What is left of the inference."""
        return self.left_ms + sum(one.run_ms for one in self.kernels[self.at + 1 :])

    def advance(self, slot_ms: float, now_ms: float) -> None:
        """Run for a slot that ends now; the next inference is released when one ends."""
        self.left_ms -= slot_ms
        if self.left_ms > _ROUNDING_MS:
            return
        self.at = (self.at + 1) % len(self.kernels)
        self.left_ms = self.kernels[self.at].run_ms
        if self.at == 0:
            self.done += 1
            self.late += now_ms > self.deadline_ms + _ROUNDING_MS
            self.deadline_ms = now_ms + self.slo_ms


def slotted(
    kernels: Mapping[str, Sequence[Kernel]],
    slos_ms: Mapping[str, float],
    slot_ms: float,
    slots: int,
) -> SlottedSchedule:
    """In each slot the set of models' next kernels that uses most of the accelerator.

    Every model runs again and again, its kernels in order (equation 14), one at a time. Of the sets
    of at most 100 % all are tried and the fullest is taken (equation 13), of equal ones that with
    the earliest deadlines. A model that has to run in every slot from now on to be in time comes
    before that, in the order of deadlines, as far as there is room: maximal use alone would let
    some never run. A kernel keeps a slot to the slot's end.

    Raises:
        ValueError: a kernel needs more than the accelerator or no time, or there are no models.
    """
    _check(kernels)
    going = {
        model: _Progress(ones, slos_ms[model], slos_ms[model], left_ms=ones[0].run_ms)
        for model, ones in sorted(kernels.items())
    }
    chosen: list[Mapping[str, int]] = []
    used_pct = 0.0
    for index in range(slots):
        now_ms = index * slot_ms
        models = _fullest(going, now_ms, slot_ms)
        chosen.append({model: going[model].at for model in models})
        for model in models:
            one = going[model]
            used_pct += one.kernels[one.at].share_pct
            one.advance(slot_ms, now_ms + slot_ms)
    span_s = slots * slot_ms / 1000.0
    rates = {model: one.done / span_s for model, one in going.items()}
    late = {model: one.late / max(1, one.done) for model, one in going.items()}
    return SlottedSchedule(IdealSchedule(used_pct / slots / 100.0, rates), chosen, late)


def _fullest(going: Mapping[str, _Progress], now_ms: float, slot_ms: float) -> tuple[str, ...]:
    """The set that fits and uses most, among those with everyone who cannot wait."""
    urgent = _urgent(going, now_ms, slot_ms)
    return max(
        (one for one in _sets(going) if urgent <= set(one)),
        key=lambda one: (
            round(_used_pct(going, one), 6),
            sorted((-going[model].deadline_ms for model in one), reverse=True),
        ),
    )


def _urgent(going: Mapping[str, _Progress], now_ms: float, slot_ms: float) -> set[str]:
    """Those that would be late if they waited for a slot, as many as fit by deadline."""
    tight = [
        model
        for model, one in going.items()
        if one.deadline_ms - now_ms - one.need_ms() < slot_ms - _ROUNDING_MS
    ]
    taken: set[str] = set()
    for model in sorted(tight, key=lambda model: going[model].deadline_ms):
        if _used_pct(going, (*taken, model)) <= 100.0:
            taken.add(model)
    return taken


def _sets(going: Mapping[str, _Progress]) -> Iterator[tuple[str, ...]]:
    for size in range(1, len(going) + 1):
        for one in combinations(going, size):
            if _used_pct(going, one) <= 100.0:
                yield one


def _used_pct(going: Mapping[str, _Progress], models: Sequence[str]) -> float:
    return sum(going[model].kernels[going[model].at].share_pct for model in models)


def _check(kernels: Mapping[str, Sequence[Kernel]]) -> None:
    """Every model has kernels, and each fits an accelerator and takes some time.

    Raises:
        ValueError: it is not so.
    """
    if not kernels:
        raise ValueError("an ideal schedule needs at least one model")
    for model, ones in kernels.items():
        if not ones or any(not (0 < k.share_pct <= 100 and k.run_ms > 0) for k in ones):
            raise ValueError(f"kernels of {model}: expected shares in (0, 100] % and times above 0")
