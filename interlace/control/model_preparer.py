"""Prepares models for deployment: reads, opens and profiles them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Final, Protocol

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.loading import link_of
from interlace.core.model import Description, Format, Model, TrustedModels
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.device.base import LEARNED
from interlace.formats import on_gpus_alone
from interlace.perf.cold_start import as_allowed
from interlace.perf.latency import doubts, surface
from interlace.profiling.corun import NeighbourSlowdowns
from interlace.profiling.profile_file import values_text
from interlace.profiling.profiler import profile_all
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.store import (
    FillResult,
    ProfileStore,
    SignatureStore,
    fill_by_parts,
    joined,
    one_of_each,
)
from interlace.profiling.sweep import (
    QUICK,
    THOROUGH,
    OnSweepStep,
    SweepSettings,
    no_progress,
    telling,
)
from interlace.repository.config_json import config_json
from interlace.repository.digest import Digests
from interlace.repository.draft import Draft, read
from interlace.repository.environment import unpacked
from interlace.repository.folder import ModelFolder, folder_names, scan_folder
from interlace.repository.model import complete
from interlace.runtime.event_loop import StorageReader
from interlace.server.limits import GenerationalCache

_log = logging.getLogger(__name__)

_GUESSED: Final = (
    "%s: its sample values do not suit it; it is served, and its latency is learned from the first "
    "requests; to measure it, give values under [sample] in interlace.toml, or model_warmup"
)

#: On cores, models that were measured within this time are served before the others are measured.
_PART_S: Final = 5.0
_ASSUMED: Final = (
    "%s: nobody set its SLO: planned for %g ms, a request may take %g ms; slo_ms in interlace.toml "
    "sets both"
)
#: An SLO that nobody set is at least this many times what one row takes.
_ROWS: Final = 10
#: What so many models said of themselves is remembered.
_SIGNATURES: Final = 256


#: Opens a model in another process, which says what it is.
Describe = Callable[[Model], Awaitable[Description]]


class LayerMeasurement(Protocol):
    """Measures layers into profiles; collects failures."""

    failures: list[str]

    async def measure(self, models: Sequence[Model], profiles: dict[str, Profile]) -> object: ...


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model with what is needed to deploy and to describe it."""

    model: Model
    profile: Profile
    config: Mapping[str, object]
    asked: Demand | None = None  #: to plan for, where ensembles ask it, too


@dataclass(eq=False)
class ModelPreparer:
    """Prepares models of one repository; one at a time is profiled.

    ``layers`` measures layers for swapped weights. Only ``trusted`` models may be code.
    """

    root: Path
    _describe: Describe
    _rig: Rig
    _store: ProfileStore
    _trusted: TrustedModels
    _layers: LayerMeasurement | None = None
    _renew: Callable[[], Path] | None = None  #: fetches a repository elsewhere: its new root
    #: By key: served by profiles that were measured quickly.
    hasty: dict[str, Model] = field(default_factory=dict)
    measured: frozenset[str] = frozenset()  #: names of models being measured now

    def __post_init__(self) -> None:
        self._storage = StorageReader()
        self._digests = Digests()
        self._known: GenerationalCache[Hashable, Description] = GenerationalCache(_SIGNATURES)
        self._kept = SignatureStore(self._store.folder / "signatures")
        self._beside = NeighbourSlowdowns(self._store.folder, self._rig.gpu.kind)
        self._measuring, self._renewing = asyncio.Lock(), asyncio.Lock()
        self._on_cores = link_of(self._rig.gpu.kind).takes_cores
        self._hurried = 0  #: models that are waiting to be measured quickly
        self._told_cached: set[str] = set()

    async def look_again(self) -> None:
        """Fetch what changed in a repository elsewhere; a local one is read as it is.

        Raises:
            RepositoryError: it cannot be read.
        """
        if self._renew is not None:
            async with self._renewing:
                self.root = await asyncio.to_thread(self._renew)

    async def names(self) -> list[str]:
        """What may be model folders.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        return await self._storage.read(str(self.root), partial(folder_names, self.root), _one_step)

    async def found(self, name: str) -> ModelFolder | None:
        """One model folder; ``None`` if there is none of that name.

        Raises:
            RepositoryError: no folder may have that name, or storage does not answer.
        """
        look = partial(scan_folder, self.root, name)
        found = await self._storage.read(str(self.root / name[:200]), look, _one_step)
        if found is None:
            self._digests.forget(self.root / name)
        return found

    async def draft(
        self, name: str, version: int, config: str | None = None, root: Path | None = None
    ) -> Draft:
        """What the files of one version say, in another ``root`` if one is given.

        Raises:
            RepositoryError: file, key, found, expected.
        """
        root = root or self.root
        digests = self._digests if root is self.root else Digests()
        work = partial(read, root, name, version, config, digests)
        return await self._storage.read(
            str(root / name / str(version)), work, lambda: digests.steps
        )

    async def open(self, draft: Draft, generation: int, sent: bool = False) -> Model:
        """The complete model; opened unless the same files were before, described the same way.

        A model that was ``sent`` by a client is code only if it is trusted by its name.

        Raises:
            RepositoryError: files and model contradict each other, or it is code and not trusted.
            ServeError: the model cannot be opened.
        """
        self._trusted.check(draft.name, draft.format, draft.path, sent)
        model = await self._with_environment(draft.provisional())
        files = _described_by(model)
        known = self._known.get(files) or self._kept.find(model)
        if known is None:
            known = await self._described(model)
            self._kept.save(model, known)
        self._known.put(files, known)
        opened = complete(draft, known.signature, generation)
        return replace(opened, architecture=known.architecture, environment=model.environment)

    async def _described(self, model: Model) -> Description:
        if model.format is not Format.TENSORRT:
            return await self._describe(model)
        if self._on_cores:
            raise on_gpus_alone(model.path)
        if not (model.signature.inputs and model.signature.outputs):
            expected = "input [ { name data_type dims } ] and output [ ... ] in config.pbtxt"
            raise RepositoryError(model.path, "a TensorRT plan without a description", expected)
        return Description(model.signature)  # only a GPU can open it; it is compared there

    async def _with_environment(self, model: Model) -> Model:
        """The model; its environment is a folder that a worker can run in."""
        if not model.environment:
            return model
        cache = self._store.folder / "environments"
        folder = await asyncio.to_thread(unpacked, model.environment, cache)
        return replace(model, environment=folder)

    async def profiles(
        self, models: Sequence[Model], progress: OnSweepStep = no_progress
    ) -> FillResult:
        """Profiles of registered models beside each other, before anything is served."""
        return joined([part async for part in self._filled(models, THOROUGH, progress)])

    def profiles_by_parts(
        self, models: Sequence[Model], progress: OnSweepStep
    ) -> AsyncIterator[FillResult]:
        """Profiles of registered models, some at a time, so that those can be served meanwhile.

        On cores each is measured quickly, and again when there is time (``measure_again``).
        """
        if self._on_cores:
            return self._filled(models, QUICK, progress, _PART_S)
        return self._filled(models, THOROUGH, progress)

    async def profile_quickly(self, model: Model) -> FillResult:
        """The profile of one registered model, measured while others serve if need be."""
        self._hurried += 1
        try:
            return joined([part async for part in self._filled([model], QUICK, no_progress)])
        finally:
            self._hurried -= 1

    async def measure_again(self, model: Model, idle: Callable[[], bool]) -> Profile | None:
        """The thorough profile of a model that was measured in haste.

        ``None`` once the server is not ``idle``, and of a model that cannot be measured.
        """
        interrupted = False

        async def turn() -> None:
            nonlocal interrupted
            interrupted = self._hurried > 0 or not idle()
            if interrupted:
                raise MeasureError("the server is not idle")

        async with self._measuring:
            self._rig.idle = turn
            try:
                (found,) = [one async for one in profile_all(self._rig, [model], THOROUGH)]
            finally:
                self._rig.idle = None
                await self._rig.close()
        if interrupted:
            return None
        self.hasty.pop(model.key, None)
        before = self._store.find(model, self._rig.gpu, QUICK)
        if found.profile is None or found.error or before is None:
            _log.warning("%s is not measured again: %s", model.name, found.error)
            return None
        profile = replace(found.profile, layers=before.layers, cold_ms=before.cold_ms)
        await asyncio.to_thread(self._store.save, profile, model, self._rig.gpu, THOROUGH)
        return self._beside.busy([model], {model.key: profile})[model.key]

    async def _filled(
        self,
        models: Sequence[Model],
        how: SweepSettings,
        progress: OnSweepStep,
        part_s: float = inf,
    ) -> AsyncIterator[FillResult]:
        async with self._measuring:
            self.measured = frozenset(model.name for model in models)
            try:
                async for found in fill_by_parts(
                    self._rig, models, self._store, how, progress, part_s=part_s
                ):
                    yield await self._completed(models, found)
            finally:
                self.measured = frozenset()
                await self._rig.close()

    async def _completed(self, models: Sequence[Model], found: FillResult) -> FillResult:
        """The profiles with layers, if those are wanted, and beside busy neighbours."""
        for reason in found.guessed.values():
            if reason.endswith(LEARNED):  # other values would not help
                _log.info("%s", reason)
            else:
                _log.warning(_GUESSED, reason)
        for key, profile in found.profiles.items():
            if said := doubts(key, profile):
                _log.warning("%s", said)
        some = [model for model in models if model.key in found.profiles]
        if self._layers is not None:
            await self._take_apart(self._layers, some, found)
        for model in some:
            # Code is not run again for this: it may load other models, or write files.
            code, guessed = model.format is Format.PYTHON, model.key in found.guessed
            if not (code or guessed or self._store.is_thorough(model, self._rig.gpu)):
                self.hasty[model.key] = model
        return replace(found, profiles=self._beside.busy(some, found.profiles))

    def _warn_of_cached(self, known: Sequence[Model], found: FillResult) -> None:
        """Warn once of models whose stored layers have copy times from the page cache alone.

        If the repository lies in memory (tmpfs), measuring again finds no disk times either.
        """
        cached = [
            model.name
            for model in known
            if link_of(self._rig.gpu.kind).takes_cores
            and model.name not in self._told_cached
            and (layers := found.profiles[model.key].layers)
            and not any(layer.copy_disk_ms for layer in layers)
        ]
        self._told_cached.update(cached)
        if cached:
            _log.warning(
                "%d profiles (the first: %s) have no times from disk: cold starts are planned as "
                "from the page cache; measure again: interlace profile %s --layers --force",
                len(cached),
                cached[0],
                self.root,
            )

    async def _take_apart(
        self, layers: LayerMeasurement, models: Sequence[Model], found: FillResult
    ) -> None:
        """Add layers to the profiles that have none."""
        known = [model for model in models if model.key in found.profiles]
        self._warn_of_cached(known, found)
        whole = [model for model in known if not found.profiles[model.key].layers]
        apart = one_of_each([model for model in whole if model.format is not Format.PYTHON])
        if apart:
            doing = f"measuring the layers of {', '.join(model.name for model in apart)}"
            async with telling(_log, lambda: doing):
                await layers.measure(apart, found.profiles)
        taken = {model.architecture: found.profiles[model.key].layers for model in apart}
        for model in whole:
            if model.architecture in taken and model.architecture:
                one = found.profiles[model.key]
                found.profiles[model.key] = replace(one, layers=taken[model.architecture])
        for failure in layers.failures:
            _log.warning("not by layer: %s", failure)
        layers.failures.clear()
        for model in whole:
            if not found.profiles[model.key].layers:
                _log.info("%s stays in memory: its weights cannot be brought by layer", model.name)


def _one_step() -> int:
    """The progress of short reads: they end in time, or they hang."""
    return 0


def _described_by(model: Model) -> Hashable:
    """What a model's signature depends on: its files, and the tensors that settings declare."""
    told = model.signature
    return (
        model.digest,
        told.inputs,
        told.outputs,
        told.batched,
        tuple(model.sample.items()),
        values_text(model),
    )


def failure_text(error: Exception) -> str:
    """Why a model is not served, as text; unexpected errors are logged with a traceback."""
    if not isinstance(error, RepositoryError | ServeError):
        _log.error("a model could not be prepared", exc_info=error)
    return str(error) or repr(error)


def prepared_model(draft: Draft, model: Model, filled: FillResult) -> PreparedModel:
    """Join a model with its profile and the ModelConfig that clients read.

    Raises:
        ServeError: it could not be profiled.
        RepositoryError: fewer of its weights may be in memory than it needs to run.
    """
    if model.key not in filled.profiles:
        raise ServeError(Reason.BACKEND, filled.failures.get(model.key, "it has no profile"))
    try:
        allowed = as_allowed(filled.profiles[model.key], model.terms)
    except ValueError as error:
        where = draft.settings.where("memory.max_mb")
        raise RepositoryError(where, str(error), "at least as much, or no max_mb") from error
    model, before_ms = with_assumed_slo(model, allowed), model.terms.slo_ms
    if model.limit_ms > before_ms:
        _log.info(_ASSUMED, model.name, model.terms.slo_ms, model.limit_ms)
    return PreparedModel(model, allowed, config_json(model, draft.config))


def with_assumed_slo(model: Model, profile: Profile) -> Model:
    """The model; one whose SLO nobody set has at least ten times what one row takes alone."""
    if not model.terms.slo_assumed:
        return model
    slo_ms = float(ceil(_ROWS * surface(profile).latency_ms(1, 100)))
    return replace(model, terms=replace(model.terms, slo_ms=max(model.terms.slo_ms, slo_ms)))
