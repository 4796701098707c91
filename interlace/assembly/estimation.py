"""Profiles that follow from models' files alone, for GPUs that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote

from interlace.assembly.machine import drafts, find_models
from interlace.core.errors import RepositoryError
from interlace.core.gpu_kinds import GPU_KINDS, GPU_RATES
from interlace.core.hardware import Gpu
from interlace.core.model import Model, Precision, TrustedModels
from interlace.core.plan import Demand, as_rows_per_s
from interlace.core.profile import Profile
from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError, UserError
from interlace.core.work import ModelWork
from interlace.formats import count_work
from interlace.perf.estimate import EstimateCorrection, estimated_profile, latency_ms, scaled
from interlace.perf.law_constants import CHECKED_KINDS, INTERVALS, LAWS, TAIL
from interlace.planning.scenario import Scenario
from interlace.profiling.profile_csv import ProfileTableError, read_profiles
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import THOROUGH

_DEFAULT_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class EstimateTask:
    """What is estimated: models of ``root``, or the named ones, on these kinds of GPU.

    ``root`` is a repository, or one model's file, which is named as the file is.
    ``folder`` has stored profiles, ``measured`` are tables of measured points (profile_csv).
    """

    root: Path
    kinds: Sequence[str]
    names: Sequence[str] = ()
    folder: Path = Path()
    measured: Sequence[Path] = ()
    trust_models: str = "all"


@dataclass(frozen=True, slots=True)
class CountedModel:
    """A model, the work of one row, and its largest batch."""

    name: str
    model: Model
    work: ModelWork
    max_batch: int

    @property
    def half(self) -> bool:
        """Whether it computes in two bytes a value."""
        return self.work.half or self.model.terms.precision is not Precision.FP32

    @property
    def precision(self) -> str:
        """The law's name."""
        return "half" if self.half else "single"

    def checked(self, kind: str) -> bool:
        """Whether other models' measurements on this kind of GPU checked the law."""
        return kind in CHECKED_KINDS[self.precision]

    @property
    def unread(self) -> str:
        """What of its work is not known, in words; empty if all is."""
        if not self.work.unread:
            return ""
        shown, count = "; ".join(self.work.unread[:3]), len(self.work.unread)
        share = f"{count} of {count + len(self.work.layers)} kernels"
        return f"{share}: {shown}{f'; and {count - 3} more' if count > 3 else ''}"


@dataclass(slots=True)
class Estimates:
    """Profiles by kind and model name, measured or estimated; what each rests on, in words.

    Plans use ``beside``, where an estimated share has no more of DRAM than its part. ``measured``
    has kind and name of each profile with a measured point.
    """

    models: list[CountedModel]
    profiles: dict[str, dict[str, Profile]]
    beside: dict[str, dict[str, Profile]]
    measured: set[tuple[str, str]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def kinds_of(text: str) -> list[str]:
    """Kinds of GPU from a list with commas.

    Raises:
        InputError: one is not known.
    """
    kinds = [one.strip() for one in text.split(",") if one.strip()]
    for kind in kinds:
        if kind not in GPU_RATES:
            hint = did_you_mean(kind, GPU_RATES)
            raise InputError(
                f"--gpu {kind}: no such kind of GPU{hint}; known: {', '.join(GPU_RATES)}"
            )
    if not kinds:
        raise InputError("--gpu: found no kind; expected one or more such as l4,a100")
    return list(dict.fromkeys(kinds))


def estimate(task: EstimateTask) -> Estimates:
    """Profiles of all models on all kinds: measured where there are some, else estimated.

    Raises:
        RepositoryError: there is no such repository.
        UserError: it does not hold what is named, or nothing in it can be read.
        InputError: a table of measured points cannot be read.
    """
    if task.root.is_file():
        with TemporaryDirectory(prefix="interlace-") as folder:
            place = Path(folder, task.root.stem, "1", f"model{task.root.suffix}")
            place.parent.mkdir(parents=True)
            place.symlink_to(task.root.resolve())
            try:
                found = estimate(replace(task, root=Path(folder)))
            except UserError as error:  # in words of the file that was named
                text = f"{error}".replace(f"{place}", f"{task.root}")
                raise UserError(text.replace(folder, f"{task.root}")) from None
            return found
    found = Estimates([], {kind: {} for kind in task.kinds}, {kind: {} for kind in task.kinds})
    trusted = TrustedModels.of(task.trust_models)
    for draft in drafts(task.root, find_models(task.root, task.names), found.failures):
        model = draft.provisional()
        try:
            trusted.check(draft.name, draft.format, draft.path)
            work = count_work(model)
        except (RepositoryError, MemoryError) as error:
            found.failures.append(f"{draft.name}: {error}")
            continue
        if work.unread and not work.layers:
            found.failures.append(f"{draft.name}: nothing of its work is known: {work.unread[0]}")
            continue
        batch = _DEFAULT_BATCH if draft.asked_batch is None else draft.asked_batch
        found.models.append(CountedModel(draft.name, model, work, max(1, batch)))
    if not found.models:
        raise UserError(f"no model of {task.root} can be estimated: {'; '.join(found.failures)}")
    tables = _tables(task)
    for one in found.models:
        _estimate(one, task, tables, found)
    return found


def _tables(task: EstimateTask) -> dict[str, dict[str, Profile]]:
    """Measured points by model name and kind."""
    points: dict[str, dict[str, Profile]] = {}
    try:
        for path in task.measured:
            for kind in GPU_RATES:
                for name, profile in read_profiles(path, kind).profiles.items():
                    points.setdefault(name, {})[kind] = profile
    except OSError as error:
        raise InputError(f"--measured {path}: {error.strerror}") from None
    except ProfileTableError as error:
        raise InputError(f"--measured: {error}") from None
    return points


def _estimate(
    one: CountedModel,
    task: EstimateTask,
    tables: Mapping[str, Mapping[str, Profile]],
    found: Estimates,
) -> None:
    """Put a profile of the model for each kind, and say what it rests on."""
    measured = {**_stored(one.model, task.folder), **tables.get(one.name, {})}
    if one.work.assumed:
        taken = ", ".join(one.work.assumed)
        where = "state sizes in config.pbtxt, or in [sample] of interlace.toml"
        found.notes.append(f"{one.name}: the graph leaves sizes open, taken: {taken}; {where}")
    if one.unread:
        found.notes.append(f"{one.name}: part of the work is not known, {one.unread}")
    for kind in task.kinds:
        gpu = GPU_KINDS[kind]
        profile = measured.get(kind)
        if profile is not None:
            found.measured.add((kind, one.name))
        if profile is not None and _complete(profile, gpu):
            found.profiles[kind][one.name] = found.beside[kind][one.name] = profile
            found.notes.append(f"{one.name} on {kind}: measured")
            continue
        correction = _correction(one, gpu, measured)
        for beside, profiles in ((False, found.profiles), (True, found.beside)):
            made = estimated_profile(
                one.work,
                gpu,
                one.half,
                one.max_batch,
                LAWS[one.precision],
                correction,
                TAIL,
                beside,
            )
            points = made.points if profile is None else {**made.points, **profile.points}
            profiles[kind][one.name] = replace(
                made, model=one.name, digest=one.model.digest, points=points
            )
        found.notes.append(
            f"{one.name} on {kind}: {correction.source}, true latency within "
            f"{correction.interval.low:.2f} to {correction.interval.high:.2f} of it for 8 of 10"
        )


def _stored(model: Model, folder: Path) -> dict[str, Profile]:
    """Measured profiles of these files by kind; folders have the names that drivers tell."""
    found: dict[str, Profile] = {}
    store = ProfileStore(folder)
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        kinds = [kind for kind in GPU_RATES if f"{unquote(place.name)}-".startswith(f"{kind}-")]
        if kinds:
            kind = max(kinds, key=len)
            gpu = replace(GPU_KINDS[kind], kind=unquote(place.name), shares_pct=())
            stored = store.recall(model, gpu)
            if stored is not None and not stored.profile.estimated:
                found[kind] = replace(stored.profile, gpu_kind=kind)
    return found


def _complete(profile: Profile, gpu: Gpu) -> bool:
    """Whether a planner needs no more points: the largest share and more than one batch."""
    batches = {batch for batch, _ in profile.points}
    shares = {share for _, share in profile.points}
    return len(batches) > 1 and set(gpu.shares_pct) <= shares


def _correction(one: CountedModel, gpu: Gpu, measured: Mapping[str, Profile]) -> EstimateCorrection:
    """What measured points say: the same kind's if there are some, else all others'."""
    law = LAWS[one.precision]
    here = {kind: profile for kind, profile in measured.items() if kind == gpu.kind}
    off = [
        log(point.median_ms / latency_ms(one.work, GPU_KINDS[kind], one.half, *key, law))
        for kind, profile in (here or measured).items()
        for key, point in profile.points.items()
    ]
    if not off:
        known = INTERVALS[one.precision, "graph" if one.checked(gpu.kind) else "unseen"]
        return EstimateCorrection(1.0, known, "estimated from its graph alone")
    factor = exp(sum(off) / len(off))
    known = INTERVALS["any", "same_gpu"] if here else INTERVALS["half", "other_gpu"]
    where = ", ".join(here or measured)
    source = f"estimated, corrected by {factor:.2f} ({len(off)} points on {where})"
    return EstimateCorrection(factor, known, source)


def save(found: Estimates, folder: Path) -> None:
    """Keep each estimate in ``folder/estimated``, where no server takes it for a measurement."""
    store = ProfileStore(folder / "estimated")
    for kind, profiles in found.profiles.items():
        for one in found.models:
            if profiles[one.name].estimated:
                store.save(profiles[one.name], one.model, GPU_KINDS[kind], THOROUGH)


def scenarios(
    found: Estimates,
    kind: str,
    rates_rps: Mapping[str, float],
    slos_ms: Mapping[str, float],
    price_per_hour: float | None = None,
) -> tuple[Scenario, Scenario]:
    """The capacity question on estimated latencies, and on those of the pessimistic end.

    Raises:
        InputError: a name is not of a model, or models have no rate.
    """
    names = {one.name for one in found.models}
    for name in (*rates_rps, *slos_ms):
        if name not in names:
            raise InputError(f"there is no model '{name}'{did_you_mean(name, names)}")
    rates = {one.name: rates_rps.get(one.name, one.model.terms.rate_rps) for one in found.models}
    if unknown := [name for name, rate in rates.items() if rate is None]:
        options = " ".join(f"--rate {name}=RPS" for name in unknown)
        raise InputError(f"every model needs a rate with --gpu: say {options}")
    demand = []
    for one in found.models:
        rate = rates[one.name] or 0.0
        slo = slos_ms.get(one.name, one.model.terms.slo_ms)
        demand.append(Demand(one.name, as_rows_per_s(rate), slo, one.max_batch))
    central = Scenario(
        tuple(demand), GPU_KINDS[kind], found.beside[kind], price_per_hour=price_per_hour
    )
    slow = {name: scaled(one, one.interval[1]) for name, one in found.beside[kind].items()}
    return central, replace(central, profiles=slow)


def worth_measuring(found: Estimates, kind: str, rates_rps: Mapping[str, float]) -> str:
    """The model whose measurement narrows the plan most: GPU time that is not known.

    Empty where every model has a measured point.
    """
    unknown = {}
    for one in found.models:
        if (kind, one.name) in found.measured:
            continue
        profile = found.profiles[kind][one.name]
        rate = rates_rps.get(one.name, one.model.terms.rate_rps or 0.0)
        row_ms = min(p.median_ms / batch for (batch, s), p in profile.points.items() if s == 100)
        unknown[one.name] = rate * row_ms * (profile.interval[1] - profile.interval[0])
    return max(unknown, key=lambda each: unknown[each], default="")
