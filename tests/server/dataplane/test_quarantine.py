"""Inputs that ended their worker are known again, for a while, and not too many of them."""

from __future__ import annotations

import pytest

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Span, Tensor
from interlace.server.dataplane.quarantine import DEATHS, KEPT, KEPT_MS, Quarantine

MEMORY = bytearray(1 << 22)


def _view(span: Span) -> memoryview:
    return memoryview(MEMORY)[span.offset : span.offset + span.nbytes]


def _inputs(value: int, offset: int = 0, nbytes: int = 64) -> tuple[Tensor, ...]:
    MEMORY[offset : offset + nbytes] = value.to_bytes(4, "little") * (nbytes // 4)
    return (Tensor("x", "UINT8", (nbytes,), Span(1, offset, nbytes)),)


def _refused(one: Quarantine, inputs: tuple[Tensor, ...], now_ms: float = 0.0) -> bool:
    try:
        one.check("m/1#0", inputs, now_ms)
    except ServeError as error:
        assert error.reason is Reason.BACKEND and error.retry_after_ms is not None
        return True
    return False


def test_the_same_bytes_anywhere_are_refused_after_two_deaths_until_it_is_over() -> None:
    one = Quarantine(_view)
    assert not one.suspects("m/1#0")
    one.died("m/1#0", _inputs(7), 1, 0.0)
    assert one.suspects("m/1#0") and not one.suspects("m/1#1"), "a reload is another deployment"
    assert not _refused(one, _inputs(7))
    one.died("m/1#0", _inputs(7, 4096), DEATHS - 1, 10.0)
    assert _refused(one, _inputs(7, 128)) and not _refused(one, _inputs(8))
    assert not _refused(one, _inputs(7, nbytes=32)), "another shape is another request"
    assert _refused(one, _inputs(7), KEPT_MS)
    assert not _refused(one, _inputs(7), 10.0 + KEPT_MS) and not one.suspects("m/1#0")


@pytest.mark.parametrize("at", [0, (3 << 20) - 1])
def test_large_inputs_are_told_apart_by_their_ends(at: int) -> None:
    one = Quarantine(_view)
    large = _inputs(7, nbytes=3 << 20)
    one.died("m/1#0", large, DEATHS, 0.0)
    assert _refused(one, large)
    MEMORY[at] ^= 1
    assert not _refused(one, large)


def test_what_is_remembered_is_bounded() -> None:
    one = Quarantine(_view)
    for value in range(KEPT + 10):
        one.died("m/1#0", _inputs(value), DEATHS, 0.0)
    refused = sum(_refused(one, _inputs(value)) for value in range(KEPT + 10))
    assert refused == KEPT
