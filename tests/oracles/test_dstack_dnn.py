"""D-STACK section 4: Figure 4b, and what the printed equations give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.dstack.v100 import Dnn
from interlace.perf.sizing import knee


def _knee(dnn: Dnn, batch: int = 1) -> int:
    return knee({sms: dnn.latency_ms(sms, batch) for sms in range(1, 81)})


@pytest.mark.parametrize(("first", "sms"), [(20, 10), (40, 20), (60, 30)])
def test_figure_4b_from_the_equations_as_printed(first: int, sms: int) -> None:
    assert _knee(Dnn(50, first, 40.0, 10.0)) == sms


@given(st.integers(2, 60), st.integers(1, 200), st.integers(1, 79), st.integers(1, 8))
def test_more_sms_are_never_slower_and_more_rows_never_faster(
    kernels: int, wide: int, sms: int, batch: int
) -> None:
    dnn = Dnn(kernels, wide, 4.0, 1.0)
    assert dnn.latency_ms(sms + 1, batch) <= dnn.latency_ms(sms, batch) * (1 + 1e-12)
    assert dnn.latency_ms(sms, batch + 1) >= dnn.latency_ms(sms, batch)


def test_larger_batches_have_larger_knees() -> None:
    # Figure 4d: about 10, 20, 40 and 50 % for batches 1, 2, 4 and 8 of Mobilenet
    knees = [_knee(Dnn(50, 16, 40.0, 10.0), batch) for batch in (1, 2, 4, 8)]
    assert knees[0] <= 12 and knees == sorted(set(knees))


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 SM"):
        Dnn(5, 5, 1.0, 1.0).latency_ms(0)
    with pytest.raises(ValueError, match="at least one share"):
        knee({})
