"""An analytic model of a DNN on SMs (D-STACK section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

from interlace.core.profile import LatencyPoint, Profile


class KernelMemory(NamedTuple):
    """What each kernel fetches, and the bandwidth of one SM.

    Equation 3 as printed, ``d S / M``, grows with the SMs, against its own text ("bandwidth
    increases with the proportion to the number of SMs"); ``d / (S M)`` is what the text says.
    """

    data_bytes: tuple[float, ...]
    bytes_per_ms: float
    as_printed: bool = False

    def wait_ms(self, kernel: int, sms: int) -> float:
        """E_m of equation 3 for kernel ``kernel``, counted from 0."""
        alone_ms = self.data_bytes[kernel] / self.bytes_per_ms
        return alone_ms * sms if self.as_printed else alone_ms / sms


@dataclass(frozen=True, slots=True)
class Dnn:
    """A DNN of ``kernels`` kernels in sequence (D-STACK section 4.3, Table 4).

    The first has ``parallelism`` operations (p) for one row, each next p / Kmax fewer.
    ``op_ms`` is t_p, ``serial_ms`` t_np. ``repetitions`` are R_i, all 1 if empty. ``floored``
    rounds N_i down at each step, which is one reading of the bars in equation 1; where equation 1
    is exact they change nothing.
    """

    kernels: int
    parallelism: float
    op_ms: float
    serial_ms: float
    repetitions: tuple[int, ...] = ()
    memory: KernelMemory | None = None
    floored: bool = False

    def operations(self, batch: int = 1) -> tuple[float, ...]:
        """N_i: the operations of each kernel that may run side by side (equation 1)."""
        first = self.parallelism * batch
        found = [first]
        for index in range(1, self.kernels):
            if self.floored:
                found.append(float(floor(abs(found[-1] - first / self.kernels))))
            else:
                found.append(first * (self.kernels - index) / self.kernels)
        return tuple(found)

    def serial_total_ms(self, sms: int, batch: int = 1) -> float:
        """W_se: starting kernels and waiting for their data (equations 3 and 4)."""
        total_ms = 0.0
        for index, count in enumerate(self._counts()):
            wait_ms = self.memory.wait_ms(index, sms) if self.memory else 0.0
            total_ms += count * (self.serial_ms + wait_ms)
        return batch * total_ms

    def latency_ms(self, sms: int, batch: int = 1) -> float:
        """E_t: the time of one batch on that many SMs (equations 2 and 5).

        Raises:
            ValueError: fewer than one SM, or fewer than one row.
        """
        if sms < 1 or batch < 1:
            raise ValueError(f"a DNN runs on at least 1 SM and 1 row, not {sms} and {batch}")
        parallel_ms = sum(
            count * wide * self.op_ms / max(1.0, min(sms, wide))
            for count, wide in zip(self._counts(), self.operations(batch), strict=True)
        )
        return self.serial_total_ms(sms, batch) + parallel_ms

    def _counts(self) -> tuple[int, ...]:
        return self.repetitions or (1,) * self.kernels


def generated_profile(
    dnn: Dnn, units: int, batches: Sequence[int], shares_pct: Sequence[int], model: str = "dnn"
) -> Profile:
    """The profile that measuring ``dnn`` on an accelerator of ``units`` SMs would give."""
    points = {}
    for share in shares_pct:
        for batch in batches:
            run_ms = dnn.latency_ms(max(1, ceil(share * units / 100)), batch)
            points[batch, share] = LatencyPoint(run_ms, run_ms, run_ms, 1)
    return Profile(model, "generated", "analytic", 0, 0, points)
