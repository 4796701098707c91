"""The sweep of a model over batches and shares on a device, through the device contract alone."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from interlace.core.hardware import Gpu, Trait
from interlace.core.model import Format, Model
from interlace.core.profile import LatencyPoint, LaunchOverhead, Profile
from interlace.core.request import Timing
from interlace.perf.latency import doubtful
from interlace.profiling.rig import HangError, MeasureError, PartitionLostError, Rig, TimedWork
from interlace.profiling.samples import SampleInputs
from interlace.profiling.sweep import (
    THOROUGH,
    OnSweepStep,
    SweepSettings,
    SweepStep,
    TimeEstimate,
    batch_sizes,
    enough,
    no_progress,
    point,
)


class ShareVisit(NamedTuple):
    """One load: the share, the batch sizes to prepare, and whether its points are measured."""

    share_pct: int
    batches: tuple[int, ...]
    measured: bool = True


def share_visits(
    gpu: Gpu, sizes: Sequence[int], largest: Callable[[], int]
) -> Iterator[ShareVisit]:
    """The loads of a sweep over batches of these sizes, ascending.

    The largest share is measured first: if a model fails, it fails before the slow points. The
    first load is bare and the second ready for a large batch: the difference is what the model
    needs to run. Where batches run in graphs, every size is prepared at every share, so that no
    point is measured in a larger graph than its own. Elsewhere ``largest`` says, after the first
    share, which size is worth preparing.
    """
    first, *others = reversed(gpu.shares_pct)
    if Trait.GRAPHS in gpu.traits:
        yield ShareVisit(gpu.shares_pct[0], tuple(sizes[:1]), False)
        for share_pct in (first, *others):
            yield ShareVisit(share_pct, tuple(sizes))
        return
    yield ShareVisit(first, ())
    for share_pct in others:
        yield ShareVisit(share_pct, (largest(),))
    if not others:
        yield ShareVisit(first, (largest(),), False)


class ModelResidence:
    """A model on its way over the shares; what it held and how long it took, in bytes and ms.

    Where partitions share what was opened, the model is loaded in the next partition before the
    last one lets go of it: only graphs are made anew.
    """

    def __init__(self, rig: Rig, model: Model, timeout_s: float) -> None:
        self.bare_bytes = 0
        self.ready_bytes = 0
        self.load_ms = 0.0  #: from nothing to being ready
        self._rig = rig
        self._model = model
        self._timeout_s = timeout_s
        self._graphs = Trait.GRAPHS in rig.gpu.traits
        self._held: str | None = None
        self._loads = 0

    @asynccontextmanager
    async def over_all(self) -> AsyncIterator[ModelResidence]:
        """What is held at the end is let go of, unless its partition died, or all ends."""
        try:
            yield self
        except (PartitionLostError, asyncio.CancelledError):
            self._held = None
            raise
        finally:
            await self._leave()

    async def move(self, visit: ShareVisit) -> str:
        """Load it there, let go of it where it was, and return the partition.

        Raises:
            MeasureError: it does not load.
        """
        rig = self._rig
        partition = await rig.partition(visit.share_pct, self._timeout_s)
        if partition == self._held or not self._graphs:
            await self._leave()
        loaded = await self._load(partition, visit.batches)
        await self._leave()
        self._held = partition
        self._note(loaded.finished.resident_bytes, loaded.took_ms)
        return partition

    async def _load(self, partition: str, batches: tuple[int, ...]) -> TimedWork:
        try:
            return await self._rig.load(partition, self._model, batches, self._timeout_s)
        except MeasureError as error:
            if self._held is None or isinstance(error, PartitionLostError):
                raise
        # What was made at earlier shares may be what leaves no room: it goes with the last holder.
        await self._leave()
        return await self._rig.load(partition, self._model, batches, self._timeout_s)

    async def _leave(self) -> None:
        held, self._held = self._held, None
        if held is not None and self._rig.has(held):
            await self._rig.unload(held, self._model, self._timeout_s)

    def _note(self, resident_bytes: int, took_ms: float) -> None:
        """With graphs later loads count what earlier ones left on their partitions: two are enough.

        There the first load made one graph only, and the second adds the others.
        """
        self._loads += 1
        if self._loads == 1:
            self.bare_bytes, self.load_ms = resident_bytes, took_ms
        elif self._loads == 2 or not self._graphs:
            self.ready_bytes = max(self.ready_bytes, resident_bytes)
            self.load_ms += took_ms if self._graphs else 0.0


#: What any batch of a model that could not be measured is assumed to take, over its SLO. If rows
#: cost more, small batches may be planned, and then no request shows what larger ones take.
_GUESSED: Final = 0.05


class MeasuredModel(NamedTuple):
    """A model and its profile, or why there is none.

    With both, the model failed on sample values and the latencies are guessed. It is ``hung`` if
    an execution did not end within ``SweepSettings.run_s``.
    """

    model: Model
    profile: Profile | None
    error: str = ""
    hung: bool = False


async def profile_all(
    rig: Rig,
    models: Sequence[Model],
    settings: SweepSettings = THOROUGH,
    progress: OnSweepStep = no_progress,
) -> AsyncIterator[MeasuredModel]:
    """Measure registered models one after the other; one that fails does not stop the rest.

    One that fails where others ran before is tried in new partitions: code of theirs may have ended
    the process since.
    Each is handed out as soon as it is complete, so that it can be stored before the next starts.
    """
    pace = TimeEstimate(sum(_points(rig, model, settings) for model in models), settings.budget_s)
    for model in models:
        shared = rig.carved
        found = await _measured(_Sweep(rig, model, settings, progress, pace))
        if found.profile is None and shared:
            await rig.close()
            found = await _measured(_Sweep(rig, model, settings, progress, pace))
        yield found


async def _measured(sweep: _Sweep) -> MeasuredModel:
    model = sweep.model
    try:
        return MeasuredModel(model, await sweep.run())
    except MeasureError as error:
        return MeasuredModel(model, sweep.guess(), str(error), sweep.hung)
    except Exception as error:  # of its sizes or types: the others are measured all the same
        return MeasuredModel(model, None, f"{model.name} cannot be measured: {error!r}")


def _points(rig: Rig, model: Model, settings: SweepSettings) -> int:
    return len(rig.gpu.shares_pct) * len(batch_sizes(model.signature.max_batch, settings.factor))


@dataclass
class _Sweep:
    """One model's way through all shares and batches."""

    _rig: Rig
    model: Model
    _settings: SweepSettings
    _progress: OnSweepStep
    _pace: TimeEstimate

    def __post_init__(self) -> None:
        self._measured: dict[tuple[int, int], LatencyPoint] = {}  #: by batch and share
        self._overheads_ms: list[float] = []
        self._sizes = batch_sizes(self.model.signature.max_batch, self._settings.factor)
        self._holdings = ModelResidence(self._rig, self.model, self._settings.timeout_s)
        self._left = _points(self._rig, self.model, self._settings)
        self.hung = False  #: an execution did not end
        self._choked = False  #: the model runs, but not on the sample values

    async def run(self) -> Profile:
        inputs = self._inputs()
        try:
            await self._shares(inputs)
        except MeasureError as error:
            raise MeasureError(f"{self.model.name}: {error}") from None
        finally:
            inputs.release()
            self._skip(self._left)
        return self._profile()

    def guess(self) -> Profile | None:
        """A profile of a model that loads and fails on sample values; ``None`` of others.

        Latencies are parts of the SLO, so that first requests are let in: they tell the truth.
        """
        if not self._choked:
            return None
        known_ms = [one.p99_ms for one in self._measured.values()]
        guessed_ms = max(_GUESSED * self.model.terms.slo_ms, *known_ms, 0.0)
        guessed = LatencyPoint(guessed_ms, guessed_ms, guessed_ms, 0)
        for key in product((1, self._sizes[-1]), self._rig.gpu.shares_pct):
            self._measured.setdefault(key, guessed)
        return self._profile()

    async def _shares(self, inputs: SampleInputs) -> None:
        async with self._holdings.over_all() as holdings:
            for visit in share_visits(self._rig.gpu, self._sizes, self._largest):
                partition = await holdings.move(visit)
                if visit.measured:
                    await self._batches(partition, visit.share_pct, inputs)
            for _ in range(self._settings.retakes):
                for visit in self._again():
                    partition = await holdings.move(visit)
                    for batch in visit.batches:
                        await self._retake(partition, visit.share_pct, batch, inputs)

    def _again(self) -> Iterator[ShareVisit]:
        """Shares with points that others show to be disturbed."""
        found = doubtful(self._measured)
        for share_pct in sorted({share for _, share in found}):
            batches = sorted(batch for batch, share in found if share == share_pct)
            yield ShareVisit(share_pct, tuple(batches))

    async def _retake(
        self, partition: str, share_pct: int, batch: int, inputs: SampleInputs
    ) -> None:
        again = await self._point(partition, batch, inputs)
        before = self._measured[batch, share_pct]
        if again.median_ms < before.median_ms:
            self._measured[batch, share_pct] = again

    def _largest(self) -> int:
        return max(batch for batch, _ in self._measured)

    def _inputs(self) -> SampleInputs:
        try:
            return SampleInputs(self.model, self._rig.arena)
        except MemoryError as error:
            raise MeasureError(str(error)) from None

    async def _batches(self, partition: str, share_pct: int, inputs: SampleInputs) -> None:
        sizes = self._sizes
        worst_ms = self._settings.slo_multiple * self.model.terms.slo_ms
        for index, batch in enumerate(sizes):
            self._show(share_pct, batch)
            try:
                measured = await self._point_of_any(partition, batch, inputs)
            except MeasureError as error:
                self.hung = isinstance(error, HangError)
                died = isinstance(error, PartitionLostError) and not self.hung
                # Code that takes one request at a time is served so where a batch of several fails.
                code = self.model.format is Format.PYTHON
                self._choked = not died and (code or not self._measured)
                raise type(error)(f"batch {batch} at a share of {share_pct} %: {error}") from None
            self._measured[batch, share_pct] = measured
            self._left -= 1
            self._pace.advance()
            if measured.median_ms > worst_ms:
                self._skip(len(sizes) - index - 1)
                return

    def _skip(self, points: int) -> None:
        self._left -= points
        self._pace.skip(points)

    async def _point_of_any(self, partition: str, batch: int, inputs: SampleInputs) -> LatencyPoint:
        """A point on varied values, or on plain ones if the model cannot use those."""
        try:
            return await self._point(partition, batch, inputs)
        except PartitionLostError:
            raise
        except MeasureError:
            if not inputs.be_plain():
                raise
            return await self._point(partition, batch, inputs)

    async def _point(self, partition: str, batch: int, inputs: SampleInputs) -> LatencyPoint:
        if self._rig.idle is not None:
            await self._rig.idle()
        await self._warm_up(partition, batch, inputs)
        best = await self._take(partition, batch, inputs)
        for _ in range(self._settings.retakes):
            if not self._settings.disturbed(best):
                break
            again = await self._take(partition, batch, inputs)
            best = min(best, again, key=lambda taken: taken.p95_ms)
        return best

    async def _take(self, partition: str, batch: int, inputs: SampleInputs) -> LatencyPoint:
        latencies_ms: list[float] = []
        gpu_ms: list[float] = []
        while not enough(latencies_ms, sum(latencies_ms) / 1000.0, self._settings):
            took_ms, timing = await self._once(partition, batch, inputs)
            latencies_ms.append(took_ms)
            gpu_ms.append(timing.gpu_ms)
            if batch == 1:
                inside_ms = timing.input_ms + timing.infer_ms + timing.output_ms
                self._overheads_ms.append(max(0.0, took_ms - inside_ms))
        return point(latencies_ms, gpu_ms)

    async def _warm_up(self, partition: str, batch: int, inputs: SampleInputs) -> None:
        spent_ms = 0.0
        for _ in range(self._settings.warm_ups):
            took_ms, _ = await self._once(partition, batch, inputs)
            spent_ms += took_ms
            if spent_ms > self._settings.budget_s * 1000.0 / 4:
                return

    async def _once(self, partition: str, batch: int, inputs: SampleInputs) -> tuple[float, Timing]:
        work = inputs.batch(self._rig.next_id(), batch)
        done = await self._rig.run(partition, work, self._settings.run_s)
        for error in done.finished.errors:
            if error is not None:  # its code raises, or answers with an error
                raise MeasureError(f"run failed: {error.detail}")
        timing = done.finished.timing
        if timing.executed_rows not in (0, batch):  # where a device tells, it says so every time
            raise MeasureError(f"it ran in a graph of {timing.executed_rows} rows")
        return done.took_ms, timing

    def _show(self, share_pct: int, batch: int) -> None:
        pace = self._pace
        self._progress(
            SweepStep(self.model.name, share_pct, batch, pace.done, pace.total, pace.left_s)
        )

    def _profile(self) -> Profile:
        # Only the sum of both ways can be measured from here; they are alike, so each is half.
        half_ms = statistics.median(self._overheads_ms or (0.0,)) / 2.0
        return Profile(
            model=self.model.key,
            digest=self.model.digest,
            gpu_kind=self._rig.gpu.kind,
            weights_bytes=self._holdings.bare_bytes,
            activation_bytes=max(0, self._holdings.ready_bytes - self._holdings.bare_bytes),
            points=dict(self._measured),
            overhead=LaunchOverhead(launch_ms=half_ms, wake_ms=half_ms),
            load_ms=self._holdings.load_ms,
        )
