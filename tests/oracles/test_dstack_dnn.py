"""D-STACK section 4: Figure 4b, and what the printed equations give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.dstack.v100 import Dnn, KernelMemory, generated_profile
from interlace.perf.latency import surface
from interlace.perf.sizing import knee, knee_pct


def _knee(dnn: Dnn) -> int:
    return knee({sms: dnn.latency_ms(sms) for sms in range(1, 81)})


@pytest.mark.parametrize(("first", "floored", "sms"), [
    (20, False, 10), (40, False, 20), (60, False, 30),
    (20, True, 9), (40, True, 20), (60, True, 24),
])  # fmt: skip
def test_figure_4b_from_the_equations_as_printed(first: int, floored: bool, sms: int) -> None:
    assert _knee(Dnn(50, first, 40.0, 10.0, floored=floored)) == sms


def test_figure_4b_of_the_paper_needs_repetitions_of_their_own_in_each_case() -> None:
    # With the same R_i, E_t depends on S / N1 alone and the knee is a fixed part of N1. The paper
    # reads 0.45, 0.6 and 0.517 of N1. Repeating the wider kernels moves the knee up, the narrower
    # ones down, so each of its three readings is within reach.
    assert _knee(Dnn(50, 20, 40.0, 10.0, tuple(1 + (i > 35) for i in range(50)))) <= 9
    assert _knee(Dnn(50, 40, 40.0, 10.0, tuple(1 + 3 * (i < 25) for i in range(50)))) >= 24
    assert _knee(Dnn(50, 60, 40.0, 10.0, tuple(1 + (i < 25) for i in range(50)))) >= 31


@given(st.lists(st.integers(1, 9), min_size=50, max_size=50), st.sampled_from([2, 3]))
def test_the_knee_scales_with_the_parallelism(counts: list[int], times: int) -> None:
    small = Dnn(50, 100, 40.0, 10.0, tuple(counts))
    large = Dnn(50, 100 * times, 40.0, 10.0, tuple(counts))
    # N_i < 1 only in kernels too narrow to matter: there are none at N1 >= Kmax
    assert large.latency_ms(40 * times) == pytest.approx(small.latency_ms(40))


@given(st.integers(2, 60), st.integers(1, 200), st.integers(1, 79), st.integers(1, 8))
def test_more_sms_are_never_slower_and_more_rows_never_faster(
    kernels: int, wide: int, sms: int, batch: int
) -> None:
    dnn = Dnn(kernels, wide, 4.0, 1.0, memory=KernelMemory((9.0,) * kernels, 3.0))
    assert dnn.latency_ms(sms + 1, batch) <= dnn.latency_ms(sms, batch) * (1 + 1e-12)
    assert dnn.latency_ms(sms, batch + 1) >= dnn.latency_ms(sms, batch)


def test_equation_3_as_printed_grows_with_the_sms() -> None:
    assert KernelMemory((6.0,), 3.0, as_printed=True).wait_ms(0, 10) == 20.0
    assert KernelMemory((6.0,), 3.0).wait_ms(0, 10) == pytest.approx(0.2)


def test_larger_batches_have_larger_knees() -> None:
    # Figure 4d: about 10, 20, 40 and 50 % for batches 1, 2, 4 and 8 of Mobilenet
    dnn = Dnn(50, 16, 40.0, 10.0)
    profile = generated_profile(dnn, 80, (1, 2, 4, 8), tuple(range(5, 101, 5)))
    knees = [knee_pct(surface(profile), batch) for batch in (1, 2, 4, 8)]
    assert knees[0] <= 15 and knees == sorted(set(knees))


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 SM"):
        Dnn(5, 5, 1.0, 1.0).latency_ms(0)
    with pytest.raises(ValueError, match="at least one share"):
        knee({})
