"""What a part is given: a GPU or what stands for one, how long it has, and what others found."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.gpu.rows import Row
from bench.gpu.switches import Switches, chosen
from interlace.device.cuda.backend.base import CudaBackend, LibraryContext, threads_for

Size = TypeVar("Size")


@dataclass(frozen=True, slots=True)
class Bench:
    """One part's stand. ``dry``: no GPU; the fake driver, host memory and tiny sizes instead.

    ``open_backend`` opens the driver of this process; ``end_s`` is when the part should have
    ended, on ``time.monotonic``'s clock; ``out`` is where the parts' findings lie; ``models`` are
    those that profiles and goodput are asked of, each part's own if there are none.
    """

    dry: bool
    out: Path
    end_s: float
    open_backend: Callable[[], CudaBackend]
    models: tuple[str, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.end_s - time.monotonic())

    def size(self, real: Size, dry: Size) -> Size:
        """A size on a GPU, and the one without."""
        return dry if self.dry else real

    @contextmanager
    def backend(self, context: LibraryContext | None = None) -> Iterator[CudaBackend]:
        """Driver, kernels and capture, closed afterwards. Libraries make their handles for green
        contexts in ``context``, as `preflight` chose if none is named."""
        backend = self.open_backend()
        threads = threads_for(context or self.switches.handle_context, backend.driver)
        backend = backend._replace(threads=threads)
        try:
            yield backend
        finally:
            backend.threads.close()
            backend.driver.unload_kernels(backend.kernels.module)
            backend.driver.close()

    @property
    def switches(self) -> Switches:
        """What the part `preflight` chose."""
        return chosen(self.out, self.dry)


Entry = Callable[[Bench], Iterable[Row] | AsyncIterator[Row]]
