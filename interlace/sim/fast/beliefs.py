"""What the engine predicts and how it learns: ``engine.beliefs``, compiled."""

from __future__ import annotations

from typing import Final

from interlace.engine import latency_estimator
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.layout import World

# The engine's own constants: there is one place to change them.
_QUANTILE: Final = latency_estimator._QUANTILE
_STEP: Final = latency_estimator._STEP
_LOW: Final = latency_estimator._LOW
_HIGH: Final = latency_estimator._HIGH
_WEIGHT: Final = latency_estimator._SPREAD_WEIGHT
_WIDE: Final = latency_estimator._WIDE
_ODDS: Final = latency_estimator._ODDS
_STALE_MS: Final = latency_estimator._STALE_MS
_BRIGHTEN: Final = latency_estimator._BRIGHTEN


@compiled
def latency_ms(world: World, slot: int, rows: int) -> float:
    """Predicted time of a batch of requests."""
    one = world.slots[slot]
    model = world.models[one.model]
    factor = model.factor if model.known else model.overall
    return float(world.believed_ms[one.table + rows] * factor)


@compiled
def plain_ms(world: World, slot: int, rows: int) -> float:
    """Predicted time of a batch of no shape in particular."""
    one = world.slots[slot]
    return float(world.believed_ms[one.table + rows] * world.models[one.model].overall)


@compiled
def followed(value: float, spread: float, ratio: float) -> tuple[float, float]:
    """A correction and its spread after one more ratio of seen over predicted."""
    off = ratio - value
    spread += _WEIGHT * (abs(off) - spread)
    size = min(value, _WIDE * spread)
    if off > 0.0:
        value += _STEP * _QUANTILE * max(size, min(off, 10.0 * value))
    else:
        value -= _STEP * (1.0 - _QUANTILE) * size
    return min(max(value, _LOW), _HIGH), spread


@compiled
def learn(world: World, slot: int, rows: int, seen_ms: float) -> None:
    """Enter one execution."""
    model = world.models[world.slots[slot].model]
    model.learned_ms = world.state[0].now_ms
    before = model.factor if model.known else model.overall
    ratio = seen_ms / latency_ms(world, slot, rows) * before
    if not model.known:
        model.known = 1
        model.factor, model.spread = model.overall, model.overall_spread
    model.factor, model.spread = followed(model.factor, model.spread, ratio)
    model.overall, model.overall_spread = followed(model.overall, model.overall_spread, ratio)


@compiled
def doubt(world: World, index: int) -> None:
    """A request was refused because even alone it seemed too slow."""
    model = world.models[index]
    if not world.state[0].now_ms - model.learned_ms > _STALE_MS:
        return
    if model.known:
        model.factor = max(_LOW, model.factor * _BRIGHTEN)
    else:
        model.overall = max(_LOW, model.overall * _BRIGHTEN)


@compiled
def judge(world: World, index: int, arrived_ms: float, in_time: bool) -> None:
    """Steer the margin by what became of an accepted request."""
    model = world.models[index]
    if in_time:
        model.margin_ms = max(model.least_ms, model.margin_ms - model.step_ms / _ODDS)
    elif arrived_ms >= model.widened_ms:
        model.margin_ms = min(model.most_ms, model.margin_ms + model.step_ms)
        model.widened_ms = world.state[0].now_ms
