"""The file form of a profile: complete, readable, and checked when read."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import (
    LatencyPoint,
    LaunchOverhead,
    LayerProfile,
    MemoryContention,
    Profile,
)

SCHEMA: Final = 2


class PointRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured point."""

    batch: int
    share_pct: int
    median_ms: float
    p95_ms: float
    p99_ms: float
    samples: int
    gpu_ms: float = 0.0  #: absent from older files


class ExtrasRow(msgspec.Struct, frozen=True):
    """What is known of a (batch, share) beside its latency; ``None`` or empty if not measured."""

    batch: int
    share_pct: int
    pressure: tuple[float, float] | None = None
    strains: tuple[MemoryContention, ...] = ()


class ModelHeader(msgspec.Struct, frozen=True):
    """What was measured. ``sample`` and the two limits say how far the sweep had to go."""

    name: str
    version: int
    digest: str
    format: str
    max_batch: int
    limit_ms: float
    sample: dict[str, list[int]]
    values: str = ""  #: sample values as ``values_text`` has them; absent from older files


class DeviceHeader(msgspec.Struct, frozen=True):
    """What it was measured on."""

    kind: str
    units: int
    memory_bytes: int
    shares_pct: list[int]
    processor: str


class MethodHeader(msgspec.Struct, frozen=True):
    """When and how; ``samples`` is how many a point was allowed."""

    date: str
    samples: int
    description: str
    interlace: str
    libraries: dict[str, str]


class SchemaVersion(msgspec.Struct, frozen=True):
    """What must be known before the rest can be read."""

    schema: int


class ProfileRecord(msgspec.Struct, frozen=True):
    """A profile with everything needed to judge it."""

    schema: int
    model: ModelHeader
    device: DeviceHeader
    method: MethodHeader
    weights_bytes: int
    activation_bytes: int
    load_ms: float
    launch_ms: float
    wake_ms: float
    points: list[PointRow]
    more: list[ExtrasRow] = []  #: absent from older files
    layers: tuple[LayerProfile, ...] = ()
    cold_ms: float = 0.0
    interval: tuple[float, float] = (1.0, 1.0)  #: another one marks an estimate


def read_record(text: bytes) -> ProfileRecord:
    """The record in a file.

    Raises:
        msgspec.MsgspecError: it is none, or of another form.
    """
    form = msgspec.json.decode(text, type=SchemaVersion)
    if form.schema != SCHEMA:
        raise msgspec.ValidationError(f"written in form {form.schema}, this is form {SCHEMA}")
    return msgspec.json.decode(text, type=ProfileRecord)


def point_rows(profile: Profile) -> list[PointRow]:
    """Points by share and batch."""
    ordered = sorted(profile.points.items(), key=lambda item: (item[0][1], item[0][0]))
    return [
        PointRow(
            batch=batch,
            share_pct=share_pct,
            median_ms=round(point.median_ms, 4),
            p95_ms=round(point.p95_ms, 4),
            p99_ms=round(point.p99_ms, 4),
            samples=point.samples,
            gpu_ms=round(point.gpu_ms, 4),
        )
        for (batch, share_pct), point in ordered
    ]


def extras_rows(profile: Profile) -> list[ExtrasRow]:
    """What was measured beside latency, by share and batch."""
    keys = {*profile.pressure, *profile.strains}
    return [
        ExtrasRow(
            *key,
            pressure=profile.pressure.get(key),
            strains=profile.strains.get(key, ()),
        )
        for key in sorted(keys, key=lambda key: (key[1], key[0]))
    ]


def profile_of(record: ProfileRecord, key: str) -> Profile:
    """The profile in a record, under a deployment key of today."""
    return Profile(
        model=key,
        digest=record.model.digest,
        gpu_kind=record.device.kind,
        weights_bytes=record.weights_bytes,
        activation_bytes=record.activation_bytes,
        points={
            (row.batch, row.share_pct): LatencyPoint(
                row.median_ms, row.p95_ms, row.p99_ms, row.samples, row.gpu_ms
            )
            for row in record.points
        },
        overhead=LaunchOverhead(launch_ms=record.launch_ms, wake_ms=record.wake_ms),
        load_ms=record.load_ms,
        pressure={_key(one): one.pressure for one in record.more if one.pressure is not None},
        layers=record.layers,
        cold_ms=record.cold_ms,
        interval=record.interval,
        strains={_key(one): one.strains for one in record.more if one.strains},
    )


def _key(one: ExtrasRow) -> tuple[int, int]:
    return one.batch, one.share_pct


def misplaced(record: ProfileRecord, digest: str, gpu: Gpu) -> str | None:
    """Why a record is not of these files on this device; ``None`` if it is."""
    place = record.device
    if record.model.digest != digest:
        return "the model's files changed"
    if (place.kind, place.units) != (gpu.kind, gpu.units):
        return f"measured on {place.kind} with {place.units} units"
    if not set(gpu.shares_pct) <= set(place.shares_pct):
        return "the device offers shares that were not measured"
    return None if record.points else "it holds no points"


def values_text(model: Model) -> str:
    """What is given as sample values, shortened; empty where nothing is."""
    given = [(n, v.text, v.file and v.stamp, v.shape) for n, v in sorted(model.values.items())]
    return hashlib.sha256(repr(given).encode()).hexdigest()[:16] if given else ""


def outdated(record: ProfileRecord, model: Model, samples: int) -> str | None:
    """Why a record does not go as far as this model may, or as deep; ``None`` if it does."""
    subject = record.model
    if record.method.samples < samples:
        return "measured in haste, while others were served"
    if subject.sample != {name: list(sizes) for name, sizes in model.sample.items()}:
        return "the sample sizes changed"
    if subject.values != values_text(model):
        return "the sample values changed"
    if model.signature.max_batch > subject.max_batch:
        return f"measured up to batch {subject.max_batch}, now {model.signature.max_batch}"
    if model.terms.slo_ms > subject.limit_ms and _cut_short(record):
        return f"batches over {subject.limit_ms:g} ms were left out, the SLO is longer now"
    return None


def _cut_short(record: ProfileRecord) -> bool:
    largest: dict[int, int] = {}
    for row in record.points:
        largest[row.share_pct] = max(row.batch, largest.get(row.share_pct, 0))
    return min(largest.values()) < record.model.max_batch
