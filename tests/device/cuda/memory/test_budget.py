"""Who holds how much of a GPU's memory, and the words when there is too little."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.device.cuda.driver.api import CudaError, DeviceProperties
from interlace.device.cuda.memory.budget import DeviceMemoryError, MemoryBudget
from interlace.device.process.error_text import MemoryLimitError
from tests.device.cuda.fake.driver import FakeDriver

MIB = 1 << 20
NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
SMALL = DeviceProperties("Small", "GPU-small", (9, 0), 132, 1000 * MIB, 13000)


class OutOfMemoryError(RuntimeError):
    """What a framework raises."""


@pytest.fixture
def small() -> Iterator[FakeDriver]:
    driver = FakeDriver(SMALL)
    yield driver
    driver.close()


def test_what_a_model_holds_is_what_the_driver_lost(small: FakeDriver) -> None:
    budget = MemoryBudget(small)
    with budget.loading("a", 100 * MIB, None) as change:
        weights = small.allocate(300 * MIB)
    assert change.grown_bytes == budget.held_bytes("a") == 300 * MIB
    assert str(change) == "1000.0 MiB free before, 700.0 MiB free after, of 1000.0 MiB"
    with budget.growing("a"):
        graph = small.allocate(50 * MIB)
    assert budget.models == {"a": 350 * MIB}
    with budget.shrinking("a"):
        small.free(graph)
    assert budget.models == {"a": 300 * MIB}
    with budget.unloading("a") as change:
        small.free(weights)
    assert (change.grown_bytes, budget.models) == (-300 * MIB, {})
    assert budget.held_bytes("a") == 0


def test_a_limit_is_enforced_before_and_after(small: FakeDriver) -> None:
    budget = MemoryBudget(small)
    with (
        pytest.raises(MemoryLimitError, match=r"needs 200\.0 MiB on the GPU, .* limit is 100\.0"),
        budget.loading("a", 200 * MIB, 100 * MIB),
    ):
        pytest.fail("it was let in")
    weights = 0
    with (
        pytest.raises(MemoryLimitError, match=r"model a: it needs 150\.0 MiB"),
        budget.loading("a", 50 * MIB, 100 * MIB),
    ):
        weights = small.allocate(150 * MIB)
    assert budget.models == {}
    small.free(weights)
    with budget.loading("a", 50 * MIB, 100 * MIB):
        weights = small.allocate(80 * MIB)
    with pytest.raises(MemoryLimitError, match=r"110\.0 MiB"), budget.growing("a", 30 * MIB):
        pytest.fail("it was let in")
    graph = 0
    with pytest.raises(MemoryLimitError, match=r"110\.0 MiB"), budget.growing("a"):
        graph = small.allocate(30 * MIB)
    assert budget.models == {"a": 80 * MIB}
    small.free(graph)
    small.free(weights)


def test_what_is_not_there_is_told_with_what_is(small: FakeDriver) -> None:
    budget = MemoryBudget(small)
    with budget.loading("large", 0, None):
        weights = small.allocate(500 * MIB)
    small.others(200 * MIB)
    with pytest.raises(DeviceMemoryError) as caught, budget.loading("new", 350 * MIB, None):
        pytest.fail("it was let in")
    assert str(caught.value) == (
        "model new: it needs at least 350.0 MiB on the GPU, 300.0 MiB of 1000.0 MiB are there; "
        "held by large: 500.0 MiB; unload a model or use smaller ones"
    )
    assert budget.models == {"large": 500 * MIB}
    small.free(weights)


@pytest.mark.parametrize(
    "error", [CudaError("cuMemAlloc", NO_MEMORY), OutOfMemoryError("tried to allocate")]
)
def test_memory_that_ends_while_loading_is_told_the_same_way(
    small: FakeDriver, error: Exception
) -> None:
    budget = MemoryBudget(small)
    with (
        pytest.raises(DeviceMemoryError, match=r"at least 10\.0 MiB .* 1000\.0 MiB of") as caught,
        budget.loading("a", 10 * MIB, None),
    ):
        raise error
    assert caught.value.__cause__ is error
    with budget.loading("a", 0, None):
        pass
    with (
        pytest.raises(DeviceMemoryError, match="needs more memory on the GPU"),
        budget.growing("a"),
    ):
        raise error
    assert budget.models == {"a": 0}


def test_other_errors_pass_and_leave_no_account(small: FakeDriver) -> None:
    budget = MemoryBudget(small)
    with pytest.raises(ZeroDivisionError), budget.loading("a", 0, None):
        raise ZeroDivisionError
    with pytest.raises(CudaError, match="INVALID_VALUE"), budget.loading("a", 0, None):
        small.free(1)
    small.fail("memory", "CUDA_ERROR_INVALID_CONTEXT")
    with pytest.raises(CudaError, match="INVALID_CONTEXT"), budget.loading("a", 0, None):
        pytest.fail("it was let in")
    with budget.loading("a", 0, None):
        pass
    with pytest.raises(ValueError, match="loaded already"), budget.loading("a", 0, None):
        pytest.fail("it was let in twice")
    assert budget.models == {"a": 0}
    with pytest.raises(ZeroDivisionError), budget.unloading("a"):
        raise ZeroDivisionError
    assert budget.models == {}
    for step in (budget.growing, budget.shrinking, budget.unloading):
        with pytest.raises(KeyError), step("a"):
            pytest.fail("there is no such model")


def test_changes_are_measured_one_at_a_time(small: FakeDriver) -> None:
    budget = MemoryBudget(small)
    trying = threading.Event()

    def load_beside() -> None:
        trying.set()
        with budget.loading("b", 0, None):
            small.allocate(30 * MIB)

    beside = threading.Thread(target=load_beside)
    with budget.loading("a", 0, None):
        beside.start()
        assert trying.wait(5)
        beside.join(0.05)  # it waits
        small.allocate(10 * MIB)
    beside.join()
    assert budget.models == {"a": 10 * MIB, "b": 30 * MIB}
    with (
        pytest.raises(AssertionError, match="inside another"),
        budget.loading("c", 0, None),
        budget.growing("a"),
    ):
        pass
    for address in (one.begin for one in small._memory._ranges):
        small.free(address)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-4, 8)), max_size=30))
def test_accounts_add_up_to_what_is_gone(changes: list[tuple[str, int]]) -> None:
    driver = FakeDriver(SMALL)
    budget = MemoryBudget(driver)
    pieces: dict[str, list[int]] = {}
    for model, size in changes:
        there = pieces.setdefault(model, [])
        if model not in budget.models:
            with budget.loading(model, 0, None):
                there.append(driver.allocate(MIB))
        elif size > 0:
            with budget.growing(model, size * MIB):
                there.append(driver.allocate(size * MIB))
        elif size == 0:
            with budget.unloading(model):
                while there:
                    driver.free(there.pop())
        elif there:
            with budget.shrinking(model):
                driver.free(there.pop())
        memory = driver.memory()
        assert sum(budget.models.values()) == memory.total_bytes - memory.free_bytes
    for address in (one for there in pieces.values() for one in there):
        driver.free(address)
    driver.close()
