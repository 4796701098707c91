"""Stored profiles, and the measuring of those that are missing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from interlace.core.hardware import Gpu
from interlace.core.model import Description, Model
from interlace.core.profile import Profile
from interlace.core.version import __version__
from interlace.formats.machine import processor_name
from interlace.profiling.profile_file import (
    SCHEMA,
    DeviceHeader,
    MethodHeader,
    ModelHeader,
    ProfileRecord,
    extras_rows,
    misplaced,
    outdated,
    point_rows,
    profile_of,
    read_record,
    values_text,
)
from interlace.profiling.profiler import profile_all
from interlace.profiling.rig import Rig
from interlace.profiling.sweep import THOROUGH, OnSweepStep, SweepSettings, no_progress

_log = logging.getLogger(__name__)


class SignatureStore:
    """A folder of what models said, by files, declared tensors and library versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries = repr((__version__, sorted(libraries().items())))

    def find(self, model: Model) -> Description | None:
        """What a model of these files, described this way, said of itself."""
        try:
            return msgspec.json.decode(self._path(model).read_bytes(), type=Description)
        except (OSError, msgspec.MsgspecError):
            return None  # it is opened, and says it again

    def save(self, model: Model, said: Description) -> None:
        """Keep it, whole or not at all."""
        path = self._path(model)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, msgspec.json.encode(said))
        except OSError as error:
            _log.warning(
                "%s: the signature of %s is not kept: %s", path, model.name, error.strerror
            )

    def _path(self, model: Model) -> Path:
        told = model.signature
        known: tuple[object, ...] = (told.inputs, told.outputs, told.batched)
        known += (sorted(model.sample.items()),)
        if model.values:
            known += (values_text(model),)
        text = f"{self._libraries} {model.format.value} {model.digest} {known!r}"
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


_ESTIMATED: Final = "estimated from the model's graph, not measured; see interval"
_LIBRARIES: Final = ("numpy", "torch", "onnxruntime", "transformers", "safetensors")


def processor() -> str:
    """The processor's name, or its architecture where the kernel tells no name."""
    return processor_name() or platform.processor() or platform.machine()


def libraries() -> dict[str, str]:
    """Installed versions of what executes models; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class StoredProfile(NamedTuple):
    """A stored profile, and the largest batch that was allowed when it was measured."""

    profile: Profile
    max_batch: int


class _Read(NamedTuple):
    """A file as it was read, and when it was written."""

    stamp: tuple[int, int, int]
    record: ProfileRecord
    profile: Profile


class ProfileStore:
    """A folder of profiles. A file that cannot be read or written is a warning, never a stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reads: dict[Path, _Read] = {}  #: of architectures: many models share them

    def path(self, model: Model, gpu: Gpu) -> Path:
        """Where the profile of a model, or of its architecture, on this kind of device lies."""
        file = f"{quote(model.name, safe='')}-{model.version}-{model.digest[:16]}.json"
        if model.architecture:
            file = f"architecture-{model.architecture[:32]}.json"
        return self.folder / quote(gpu.kind, safe="") / file

    def find(self, model: Model, gpu: Gpu, settings: SweepSettings) -> Profile | None:
        """The stored profile if it still describes this model here, at least that thoroughly."""
        read = self._read(model, gpu)
        if read is None:
            return None
        reason = outdated(read.record, model, settings.samples)
        if reason is not None:
            text = "%s: %s; %s is to be measured again"
            _log.warning(text, self.path(model, gpu), reason, model.name)
            return None
        return replace(read.profile, model=model.key, digest=model.digest)

    def is_thorough(self, model: Model, gpu: Gpu) -> bool:
        """Whether what is stored was measured as thoroughly as ``interlace profile`` does."""
        read = self._read(model, gpu)
        return read is not None and outdated(read.record, model, THOROUGH.samples) is None

    def recall(self, model: Model, gpu: Gpu) -> StoredProfile | None:
        """What is stored of a model that was not opened, so that its signature is not known."""
        read = self._read(model, gpu)
        if read is None:
            return None
        profile = replace(read.profile, model=model.key, digest=model.digest)
        return StoredProfile(profile, read.record.model.max_batch)

    def _read(self, model: Model, gpu: Gpu) -> _Read | None:
        path, name = self.path(model, gpu), model.name
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if path in self._reads and self._reads[path].stamp == stamp:
                return self._reads[path]
            record = read_record(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            text = "%s: cannot be read (%s); %s is to be measured again"
            _log.warning(text, path, error.strerror, name)
            return None
        except msgspec.MsgspecError as error:
            _log.warning("%s: not a profile (%s); %s is to be measured again", path, error, name)
            return None
        digest = record.model.digest if model.architecture else model.digest
        reason = misplaced(record, digest, gpu)
        if reason is not None:
            _log.warning("%s: %s; %s is to be measured again", path, reason, name)
            return None
        found = _Read(stamp, record, profile_of(record, model.key))
        if model.architecture:
            self._reads[path] = found
        return found

    def save(self, profile: Profile, model: Model, gpu: Gpu, settings: SweepSettings) -> bool:
        """Write a profile, whole or not at all. ``False``, after a warning, if it could not be."""
        path = self.path(model, gpu)
        text = msgspec.json.format(msgspec.json.encode(_record(profile, model, gpu, settings)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, text + b"\n")
        except OSError as error:
            _log.warning(
                "%s: the profile of %s could not be kept (%s); it is used now and measured again "
                "at the next start",
                path,
                model.name,
                error.strerror,
            )
            return False
        return True


def _replace(path: Path, text: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _record(profile: Profile, model: Model, gpu: Gpu, settings: SweepSettings) -> ProfileRecord:
    return ProfileRecord(
        schema=SCHEMA,
        model=ModelHeader(
            name=model.name,
            version=model.version,
            digest=model.digest,
            format=model.format.value,
            max_batch=model.signature.max_batch,
            limit_ms=settings.slo_multiple * model.terms.slo_ms,
            sample={name: list(sizes) for name, sizes in model.sample.items()},
            values=values_text(model),
        ),
        device=DeviceHeader(
            kind=gpu.kind,
            units=gpu.units,
            memory_bytes=gpu.memory_bytes,
            shares_pct=list(gpu.shares_pct),
            processor=processor(),
        ),
        method=MethodHeader(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            samples=0 if profile.estimated else settings.samples,
            description=_ESTIMATED if profile.estimated else settings.describe(),
            interlace=__version__,
            libraries=libraries(),
        ),
        weights_bytes=profile.weights_bytes,
        activation_bytes=profile.activation_bytes,
        load_ms=round(profile.load_ms, 3),
        launch_ms=round(profile.overhead.launch_ms, 4),
        wake_ms=round(profile.overhead.wake_ms, 4),
        points=point_rows(profile),
        more=extras_rows(profile),
        layers=profile.layers,
        cold_ms=profile.cold_ms,
        interval=profile.interval,
    )


@dataclass(frozen=True, slots=True)
class FillResult:
    """Profiles and failures by deployment key; ``measured`` names the keys that were not stored.

    ``guessed`` says of profiles that are not measured why: they are not stored either.
    """

    profiles: dict[str, Profile] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    guessed: dict[str, str] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)

    def enter(self, key: str, profile: Profile | None, error: str) -> None:
        """Enter the result of one measurement."""
        self.measured.append(key)
        if profile is None:
            self.failures[key] = error
            return
        self.profiles[key] = profile
        if error:
            self.guessed[key] = error


async def fill(
    rig: Rig,
    models: Sequence[Model],
    store: ProfileStore,
    settings: SweepSettings = THOROUGH,
    progress: OnSweepStep = no_progress,
    force: bool = False,
) -> FillResult:
    """A profile for each registered model, as ``fill_by_parts`` measures them."""
    parts = fill_by_parts(rig, models, store, settings, progress, force)
    return joined([part async for part in parts])


def joined(parts: Sequence[FillResult]) -> FillResult:
    """All parts in one."""
    found = FillResult()
    for part in parts:
        found.profiles.update(part.profiles)
        found.failures.update(part.failures)
        found.guessed.update(part.guessed)
        found.measured.extend(part.measured)
    return found


async def fill_by_parts(
    rig: Rig,
    models: Sequence[Model],
    store: ProfileStore,
    settings: SweepSettings = THOROUGH,
    progress: OnSweepStep = no_progress,
    force: bool = False,
    part_s: float = inf,
) -> AsyncIterator[FillResult]:
    """Yield a profile for each registered model; what is measured is stored at once.

    What was stored comes first, and then, after ``part_s`` each, what was measured in that time.
    Of models of one architecture one is measured. ``force`` measures everything again. A model that
    cannot be measured is in ``failures``. One that takes longer than ``settings.run_s`` does not
    keep the others waiting: it comes last, and may take ``settings.timeout_s``.
    """
    part, since_s = FillResult(), monotonic()
    slow: list[Model] = []
    if not force:
        part.profiles.update(await asyncio.to_thread(_stored, store, models, rig, settings))
    missing = [model for model in models if model.key not in part.profiles]
    if missing and part.profiles and part_s < inf:
        yield part
        part = FillResult()
    while missing:
        tried: set[str] = set()
        some = one_of_each(missing)
        async for model, profile, error, hung in profile_all(rig, some, settings, progress):
            tried.add(model.key)
            if hung and settings.run_s < settings.timeout_s:
                slow.append(model)
                continue
            part.enter(model.key, profile, error)
            if profile is not None and not error:
                # Beside the loop: a disk that is busy takes its time.
                await asyncio.to_thread(store.save, profile, model, rig.gpu, settings)
            if monotonic() - since_s >= part_s:
                yield part
                part, since_s = FillResult(), monotonic()
        left = [model for model in missing if model.key not in tried]
        alike = await asyncio.to_thread(_stored, store, left, rig, settings)
        part.profiles.update(alike)
        missing = [model for model in left if model.key not in alike]
    yield part
    if slow:
        patient = replace(settings, run_s=settings.timeout_s)
        async for part in fill_by_parts(rig, slow, store, patient, progress, force, part_s):
            yield part


def one_of_each(models: Sequence[Model]) -> list[Model]:
    """Of models that are alike but for their weights the one that may do most; else all."""
    alike: dict[str, Model] = {}
    for model in models:
        other = alike.setdefault(model.architecture or model.key, model)
        if _reach(model) > _reach(other):
            alike[model.architecture] = model
    return list(alike.values())


def _reach(model: Model) -> tuple[int, float]:
    return model.signature.max_batch, model.terms.slo_ms


def _stored(
    store: ProfileStore, models: Sequence[Model], rig: Rig, settings: SweepSettings
) -> dict[str, Profile]:
    found = {model.key: store.find(model, rig.gpu, settings) for model in models}
    return {key: profile for key, profile in found.items() if profile is not None}
