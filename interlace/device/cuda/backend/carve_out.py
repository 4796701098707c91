"""SMs that torch is told to leave free, so that libraries plan for those that a lane has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def carve_out(sms: int) -> Iterator[None]:
    """Have cuBLASLt plan for so many SMs fewer than the GPU has, for the whole process meanwhile.

    On a stream with fewer SMs it else plans waves for all of them. Torch passes this on for some
    matrix products alone, and versions of it differ in which; without that call nothing is told.
    """
    tell = getattr(torch._C, "_set_sm_carveout_experimental", None)
    if tell is None or sms <= 0:
        yield
        return
    tell(sms)
    try:
        yield
    finally:
        tell(None)
