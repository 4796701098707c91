"""A model on a GPU: weights once, programs by lane and batch size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import most_rows, sample_dims
from interlace.device.cuda.graphs.cache import GraphCache, GraphPreparation, is_capture_error
from interlace.device.cuda.graphs.program import BatchProgram, GraphProgram, LaneContext
from interlace.device.cuda.lanes import CaptureStream, Lane, Stopwatch, graph_ms
from interlace.device.cuda.memory.budget import MemoryBudget, MemoryChange
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models.opening import OpenTorch, open_portable
from interlace.device.cuda.models.precision import VariantResult, candidate_variants, first_line
from interlace.device.cuda.models.swapped_weights import LaneModel, SwappedWeights, WindowProgram
from interlace.device.cuda.models.variant_choice import (
    VariantChooser,
    borrow_weights,
    place_weights,
    swapped_weights,
)
from interlace.device.cuda.models.weights import DeviceWeights, WeightsHandle, lay_out
from interlace.formats import open_torch
from interlace.formats.machine import release_free_memory
from interlace.perf.buckets import choose_buckets


class LoadContext(NamedTuple):
    """What models of one process are loaded with.

    ``flag`` gives the word of a lane (by its index) as the GPU sees it; ``note`` informs operators.
    ``cold_eager_because`` is the reason if graphs do not wait for swapped weights, else empty.
    ``stopwatch`` is ``None`` where times mean nothing. ``lent`` gives the weights of a model that
    another process has on this GPU, and keeps there as long as this one has the model. ``choices``
    is a folder for the variants that were chosen. ``quiet`` is false while requests are served.
    """

    backend: CudaBackend
    memory: MappedMemory
    budget: MemoryBudget
    flag: Callable[[int], int]
    note: Callable[[str], None]
    stopwatch: Stopwatch | None = graph_ms
    open_model: OpenTorch = open_torch
    lent: Callable[[Model], WeightsHandle | None] = lambda model: None
    choices: Path | None = None
    quiet: Callable[[], bool] = lambda: True
    weights: WeightsMemory | None = None  #: for swapped weights
    cold_eager_because: str = ""


class LoadedModel:
    """One model for all lanes of a process.

    ``prepare`` and ``close`` belong to the thread that loads, which may be another one than that
    which calls ``program`` and launches; the rest is for both.
    """

    def __init__(self, context: LoadContext, model: Model, cold: bool = False) -> None:
        """Open it on the host; the GPU is not used yet. The weights of a ``cold`` one come later.

        Raises:
            RepositoryError: it does not open, or a tensor has no fixed size.
            ValueError: there is no memory for swapped weights.
        """
        self._memory = context.weights if cold else None
        if cold and not self._memory:
            raise ValueError(f"{model.key}: this GPU has no budget for weights that come and go")
        self.model = model
        self._runs = False
        self.figures: Sequence[VariantResult] = ()
        self._context = context
        self._portable = open_portable(model, context.backend.torch_device, context.open_model)
        self.eager_because = self._portable.eager_because
        if cold:
            self.eager_because = self.eager_because or context.cold_eager_because
        self._dims = sample_dims(model, self.signature)
        self._preparation = GraphPreparation(context.backend, model.key, self._dims, context.note)
        self._weights: DeviceWeights | SwappedWeights | None = None
        self._caches: dict[Lane, GraphCache] = {}
        self._capture_streams: set[CaptureStream] = set()

    @property
    def signature(self) -> Signature:
        return self._portable.signature

    def runs(self) -> bool:
        """Whether it has run on any values, a client's or the sample's."""
        return self._runs

    def answered(self) -> None:
        """It was launched for a client without an error."""
        self._runs = True

    @property
    def weights_bytes(self) -> int:
        return 0 if self._weights is None else self._weights.own_bytes

    @property
    def cold(self) -> SwappedWeights | None:
        """Its weights, if they are swapped."""
        return self._weights if isinstance(self._weights, SwappedWeights) else None

    @property
    def resident_bytes(self) -> int:
        """Device memory it took, as the driver counts it; shared pools count to the first user."""
        return self._context.budget.held_bytes(self.model.key)

    def ready(self, lane: Lane, batches: Sequence[int]) -> bool:
        """Whether it can run at those batch sizes on that lane now."""
        cache = self._caches.get(lane)
        if cache is None:
            return False
        return bool(self.eager_because) or set(self._buckets(batches)) <= set(cache.buckets)

    def prepare(self, lane: Lane, batches: Sequence[int]) -> None:
        """Make it ready there: weights and variant the first time, then graphs.

        Without ``batches``, those are captured that waste little. A model that cannot be captured
        runs eagerly from then on, and says why.

        Raises:
            MemoryLimitError: it takes more than its operator allows.
            MemoryError, DeviceMemoryError: the GPU has no room.
            Exception: the model fails in the only variant that is allowed.
        """
        job = partial(self._prepare, lane, batches)
        cache, made = self._context.backend.threads.run(lane.green, job)
        cache.add(made)
        self._caches[lane] = cache

    def _prepare(
        self, lane: Lane, batches: Sequence[int]
    ) -> tuple[GraphCache, Sequence[GraphProgram]]:
        with ExitStack() as undo:
            if self._weights is None:
                with self._loading(undo) as change:
                    self._settle(self._capture_stream(lane, undo), max(self._buckets(batches)))
                    cache, made = self._made(lane, batches, undo)
                self._context.note(f"{self.model.key} loaded, {self._how(made)}: {change}")
            else:
                with self._context.budget.growing(self.model.key):
                    cache, made = self._made(lane, batches, undo)
            undo.pop_all()
        return cache, made

    def program(self, lane: Lane, rows: int, dims: Mapping[str, tuple[int, ...]]) -> BatchProgram:
        """What runs a batch of so many rows on a lane; ``dims`` are shapes with the rows, if any.

        Raises:
            ValueError: an input is longer than the model allows.
        """
        given = {name: tuple(shape[1:]) for name, shape in dims.items()}
        if not self.signature.batched:
            given = {name: tuple(shape) for name, shape in dims.items()}
        for name, shape in given.items():
            most = self._portable.longest.get(name)
            if most is not None and shape and shape[-1] > most:
                raise ValueError(f"input '{name}' of length {shape[-1]}: at most {most}")
        program, there = self._caches[lane].program(rows, given), self._caches[lane].model
        return WindowProgram(program, there) if isinstance(there, LaneModel) else program

    def share(self) -> WeightsHandle:
        """What another process of this GPU reads the weights with, while they are here.

        Raises:
            ValueError: it is not ready on any lane.
            CudaError: the platform has no CUDA IPC.
        """
        if self._weights is None:
            raise ValueError(f"the weights of {self.model.key} are not on the GPU")
        return self._weights.share(self._portable.variant)

    def leave_lanes(self, held: Collection[str]) -> Callable[[], None] | None:
        """Forget what it has on lanes of other partitions than these; a job that gives it back.

        The job is for the thread that loads. ``None`` if there is nothing.
        """
        left = [lane for lane in self._caches if lane.name not in held]
        caches = [self._caches.pop(lane) for lane in left]
        return partial(self._close_caches, caches) if caches else None

    def close(self) -> None:
        """Destroy its graphs, then give its memory back. Nothing of it runs."""
        key, budget = self.model.key, self._context.budget
        if key in budget.models:
            with budget.unloading(key) as change:
                self._give_back()
            self._context.note(f"{key} unloaded: {change}")
        else:
            self._give_back()

    # ---------------------------------------------------------------------------------- inside
    def _how(self, made: Sequence[GraphProgram]) -> str:
        if self.eager_because:
            return f"{self._portable.variant}, run eagerly ({self.eager_because})"
        rows = ", ".join(str(program.rows) for program in reversed(made))
        return f"{self._portable.variant}, as graphs of {rows} rows"

    def _loading(self, undo: ExitStack) -> AbstractContextManager[MemoryChange]:
        portable, terms = self._portable, self.model.terms
        undo.callback(self._give_back)
        least = min(
            lay_out(portable.originals, variant, portable.exact).nbytes
            for variant in candidate_variants(terms, portable.has_convolutions)
        )
        return self._context.budget.loading(self.model.key, least, terms.memory_limit_bytes)

    def _buckets(self, batches: Sequence[int]) -> tuple[int, ...]:
        most = most_rows(self.signature)
        return tuple(sorted({min(rows, most) for rows in batches})) or choose_buckets(most)

    def _capture_stream(self, lane: Lane, undo: ExitStack) -> CaptureStream:
        stream = lane.captures_on(self._context.backend)
        undo.callback(stream.leave)
        self._capture_streams.add(stream)
        return stream

    def _settle(self, stream: CaptureStream, rows: int) -> None:
        """Choose the variant, have the weights in it on the GPU, and try it once."""
        context, portable = self._context, self._portable
        chooser = VariantChooser(self.model, portable, context.backend, stream, rows)
        lent = context.lent(self.model)
        if lent is not None:
            self._weights = borrow_weights(portable, lent, context.backend)
        else:
            variant, self.figures = chooser.choose(context.stopwatch, context.choices)
            for figure in self.figures:
                context.note(f"{self.model.key}: {figure}")
            there, memory = (portable, variant, context.backend, stream.handle), self._memory
            if memory is None:
                self._weights = place_weights(*there)
            else:
                self._weights = swapped_weights(*there, memory, self._dims)
        portable.settle()
        release_free_memory()

    def _made(
        self, lane: Lane, batches: Sequence[int], undo: ExitStack
    ) -> tuple[GraphCache, Sequence[GraphProgram]]:
        """The lane's cache, and graphs to be added to it."""
        stream = self._capture_stream(lane, undo)
        cache = self._caches.get(lane)
        if cache is None:
            context = self._context
            flag = context.flag(lane.index)
            there = LaneContext(context.backend, context.memory, lane, stream, flag)
            model = LaneModel(self.cold, lane) if self.cold else self._portable
            cache = GraphCache(there, model, self._dims)
            undo.callback(self._off, cache)
        buckets = self._buckets(batches)
        known = frozenset(rows for one in self._caches.values() for rows in one.buckets)
        if self.eager_because:
            self._runs |= self._preparation.run_eagerly(cache, buckets, known)
            return cache, ()
        try:
            graphs = self._preparation.graphs(cache, buckets, known, undo)
            self._runs |= bool(graphs)
            return cache, graphs
        except Exception as error:
            if not is_capture_error(error):
                raise
            if not cache.graphs:
                cache.close()  # its inputs have no use
            self.eager_because = first_line(error)
            if self._caches:
                self._context.note(f"{self.model.key} runs eagerly: {self.eager_because}")
        self._runs |= self._preparation.run_eagerly(cache, buckets, known)
        return cache, ()

    def _close_caches(self, caches: Sequence[GraphCache]) -> None:
        with self._context.budget.shrinking(self.model.key) as change, ExitStack() as steps:
            steps.callback(self._trim)
            for cache in caches:
                self._capture_streams.discard(cache.capture_stream)
                steps.callback(cache.capture_stream.leave)
                steps.callback(self._off, cache)
        self._context.note(f"{self.model.key} left {len(caches)} lane(s): {change}")

    def _off(self, cache: GraphCache) -> None:
        """Destroy what a lane has of it."""
        with ExitStack() as steps:
            if self.cold is not None:
                steps.callback(self.cold.leave, cache.lane)
            steps.callback(cache.close)

    def _trim(self) -> None:
        """Give memory back to the driver unless requests are served: they would wait."""
        if self._context.quiet():
            self._context.backend.capturer.trim()

    def _give_back(self) -> None:
        with ExitStack() as steps:
            steps.callback(self._trim)
            if self._weights is not None:
                steps.callback(self._weights.close)
            for stream in self._capture_streams:
                steps.callback(stream.leave)
            for cache in self._caches.values():
                steps.callback(self._off, cache)
        self._weights = None
        self._capture_streams.clear()
        self._caches.clear()
        self._portable.close()
