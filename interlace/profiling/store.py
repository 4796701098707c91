"""Profiles kept as JSON files: one per model, version, digest and kind of device."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.version import __version__
from interlace.profiling.environment import libraries, processor
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
)
from interlace.profiling.sweep import SweepSettings

_log = logging.getLogger(__name__)


class StoredProfile(NamedTuple):
    """A stored profile, and the largest batch that was allowed when it was measured."""

    profile: Profile
    max_batch: int


class ProfileStore:
    """A folder of profiles. A file that cannot be read or written is a warning, never a stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, version: int, digest: str, gpu: Gpu) -> Path:
        """Where the profile of a model of that digest on this kind of device lies."""
        file = f"{quote(name, safe='')}-{version}-{digest[:16]}.json"
        return self.folder / quote(gpu.kind, safe="") / file

    def find(self, model: Model, gpu: Gpu, settings: SweepSettings) -> Profile | None:
        """The stored profile if it still describes this model here, at least that thoroughly."""
        path = self.path(model.name, model.version, model.digest, gpu)
        record = self._read(path, model.name, model.digest, gpu)
        if record is None:
            return None
        reason = outdated(record, model, settings.samples)
        if reason is not None:
            _log.warning("%s: %s; %s is to be measured again", path, reason, model.name)
            return None
        return profile_of(record, model.key)

    def recall(self, model: Model, gpu: Gpu) -> StoredProfile | None:
        """What is stored of a model that was not opened, so that its signature is not known."""
        path = self.path(model.name, model.version, model.digest, gpu)
        record = self._read(path, model.name, model.digest, gpu)
        if record is None:
            return None
        return StoredProfile(profile_of(record, model.key), record.model.max_batch)

    def _read(self, path: Path, name: str, digest: str, gpu: Gpu) -> ProfileRecord | None:
        try:
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
        reason = misplaced(record, digest, gpu)
        if reason is not None:
            _log.warning("%s: %s; %s is to be measured again", path, reason, name)
            return None
        return record

    def save(self, profile: Profile, model: Model, gpu: Gpu, settings: SweepSettings) -> bool:
        """Write a profile, whole or not at all. ``False``, after a warning, if it could not be."""
        path = self.path(model.name, model.version, model.digest, gpu)
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
            samples=settings.samples,
            description=settings.describe(),
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
    )
