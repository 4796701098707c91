"""The ways in which a model can be executed, and how close their results are to FP32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import torch

from interlace.core.model import Precision, ServiceTerms
from interlace.device.cuda.driver.api import CudaError

_TYPES: Final = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


class ModelVariant(NamedTuple):
    """One of them. ``precision`` is not ``AUTO``; ``channels_last`` is about convolutions' weights.

    Torch's convolutions follow the order of their weights, whatever that of their input is.
    """

    precision: Precision = Precision.FP32
    channels_last: bool = False
    compiled: bool = False

    @property
    def dtype(self) -> torch.dtype | None:
        """What FP32 is converted to; ``None`` if it stays."""
        return _TYPES.get(self.precision)

    def converted(self, dtype: torch.dtype, exact: bool = False) -> torch.dtype:
        """The type of a tensor of that type in this variant."""
        return self.dtype or dtype if dtype == torch.float32 and not exact else dtype

    def __str__(self) -> str:
        words = [self.precision.value]
        words += ["channels last"] * self.channels_last + ["compiled"] * self.compiled
        return " ".join(words)


def candidate_variants(terms: ServiceTerms, convolutions: bool) -> Sequence[ModelVariant]:
    """The variants that the operator allows, the first one as the model came if that is allowed."""
    precisions = [terms.precision]
    if terms.precision is Precision.AUTO:
        precisions = [Precision.FP32, Precision.FP16, Precision.BF16]
    return [
        ModelVariant(precision, channels_last, terms.compiled)
        for precision in precisions
        for channels_last in ((False, True) if convolutions else (False,))
    ]


#: Largest relative error of an output; docs/repository.md states it.
TOLERANCE: Final = 0.02

Outputs = Sequence[torch.Tensor]


class VariantResult(NamedTuple):
    """What trying a variant showed. ``error`` is relative to the first variant, 0 for itself.

    ``note`` says why it is out, if it is.
    """

    variant: ModelVariant
    error: float = math.inf
    run_ms: float = math.inf
    note: str = ""

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.variant}: {self.note}"
        time = f"{self.run_ms:.3f} ms" if math.isfinite(self.run_ms) else "not timed"
        text = f"{self.variant}: {time}, error {self.error:.2g}"
        return f"{text}, {self.note}" if self.note else text


class VariantTrial(NamedTuple):
    """The outputs of one execution for each sample, on the host, and the time of one, in ms."""

    outputs: Sequence[Outputs]
    run_ms: float


def compare_variants(
    variants: Sequence[ModelVariant],
    attempt: Callable[[ModelVariant], VariantTrial],
) -> tuple[VariantResult, ...]:
    """Try each variant; the first is what the others' results are held against.

    Raises:
        Exception: whatever the first raises. Where another one fails, its figure says so.
    """
    first = attempt(variants[0])
    figures = [VariantResult(variants[0], 0.0, first.run_ms)]
    for variant in variants[1:]:
        try:
            trial = attempt(variant)
        except Exception as error:  # a model whose code or file insists on a type
            if isinstance(error, MemoryError) or is_sticky(error):
                raise
            figures.append(VariantResult(variant, note=f"does not run ({first_line(error)})"))
            continue
        worst = max(map(relative_error, first.outputs, trial.outputs), default=0.0)
        note = "" if worst <= TOLERANCE else f"not close enough (at most {TOLERANCE:g})"
        figures.append(VariantResult(variant, worst, trial.run_ms, note))
    return tuple(figures)


def fastest(figures: Iterable[VariantResult]) -> VariantResult:
    """The fastest that may be served; of equals the first."""
    return min((one for one in figures if not one.note), key=lambda one: one.run_ms)


def relative_error(wanted: Outputs, found: Outputs) -> float:
    """The largest over the outputs of |found - wanted| / |wanted| (Euclidean norms).

    Infinite if results that are no floats differ, or if one is finite where the other is not.
    """
    return max(map(_error, wanted, found), default=0.0)


def _error(wanted: torch.Tensor, found: torch.Tensor) -> float:
    if wanted.shape != found.shape:
        return math.inf
    if not wanted.dtype.is_floating_point:
        return 0.0 if torch.equal(wanted, found) else math.inf
    finite = torch.isfinite(wanted)
    same = torch.equal(finite, torch.isfinite(found))
    if not same or not torch.equal(wanted[~finite].nan_to_num(), found[~finite].nan_to_num()):
        return math.inf
    exact = wanted[finite].double()
    difference = (found[finite].double() - exact).norm().item()
    return difference / norm if (norm := exact.norm().item()) else (math.inf if difference else 0.0)


def is_sticky(error: BaseException) -> bool:
    """Whether the GPU failed, so that nothing more can be tried on it."""
    return isinstance(error, CudaError) and error.sticky


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
