"""The ways in which one model can be executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from interlace.core.model import Precision, ServiceTerms

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
