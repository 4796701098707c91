"""Layers told apart, their weights moved to the host and back, their times adding up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from interlace.core.profile import LayerProfile
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.green_contexts.lanes import GreenLanes
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.models.cold_layout import module_calls
from interlace.profiling.cuda.layers import BETWEEN, GraphTimer, measure_layers
from tests.device.cuda.fake.capture import on
from tests.device.cuda.fake.driver import FakeDriver


class Scaled(nn.Module):
    """A weight of its own beside a submodule that runs; the same ReLU twice; tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((4,), 2.0))
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU()
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.first(x) * self.gain)
        return self.relu(input=self.second(y)) + 1.0


@dataclass
class TableTimer:
    """ms by where the weights lie: 1 for a body, 2 more for each weight on the host."""

    host: Callable[[int], bool]
    module: nn.Module
    copies: list[int] = field(default_factory=list)

    def cold_ms(self, body: Callable[[], None]) -> float:
        body()
        return 1.0 + 2.0 * sum(self.host(one.data_ptr()) for one in self.module.parameters())

    def warm_ms(self, body: Callable[[], None]) -> float:
        body()
        return 10.0

    def copy_ms(self, target: int, source: int, nbytes: int) -> float:
        self.copies.append(nbytes)
        return nbytes / 64.0


@pytest.fixture
def gpu() -> Iterator[tuple[FakeDriver, CudaBackend, Lane]]:
    driver = FakeDriver()
    lanes = GreenLanes(driver)
    backend = on(driver)
    yield driver, backend, lanes.carve("measured", 100)
    lanes.close()
    driver.unload_kernels(backend.kernels.module)
    driver.close()  # raises if anything is left over


def test_steps_are_what_runs_in_order_with_whom_a_weight_belongs_to() -> None:
    module = Scaled().eval()
    found = module_calls(lambda: module(torch.ones(1, 4)))
    assert [step.name for step in found] == ["scaled", "first", "relu", "second", "relu#2"]
    assert [sum(t.nbytes for t in step.tensors) for step in found] == [16, 80, 0, 0, 0]
    assert [step.whole for step in found] == [False, True, True, True, True]
    assert found[4].keywords.keys() == {"input"}
    with torch.no_grad():
        for step in found:
            step.run()


def test_a_plain_sequence_has_a_step_a_part() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    found = module_calls(lambda: module(torch.ones(1, 3, 8, 8)))
    assert [step.name for step in found] == ["0", "1", "2"]
    total = sum(t.nbytes for t in [*module.parameters(), *module.buffers()])
    assert sum(t.nbytes for step in found for t in step.tensors) == total


def test_what_is_no_module_has_no_steps() -> None:
    assert module_calls(lambda: torch.ones(1)) == []


def test_times_add_up_and_weights_come_back(gpu: tuple[FakeDriver, CudaBackend, Lane]) -> None:
    _, backend, lane = gpu
    module, x = Scaled().eval(), torch.ones(1, 4)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    timer = TableTimer(lambda at: False, module)
    layers = measure_layers(backend, lane, timer, lambda: module(x))
    assert layers == (
        LayerProfile("scaled", 16, 0.25, 0.0, 0.25, "Scaled"),
        # Its weight, which the second has too, and bias.
        LayerProfile("first", 80, 1.25, 1.0, 2.25, "Linear"),
        LayerProfile("relu", 0, 0.0, 1.0, 1.0, "ReLU"),
        LayerProfile("second", 0, 0.0, 1.0, 1.0, "Linear"),
        LayerProfile("relu#2", 0, 0.0, 1.0, 1.0, "ReLU"),
        LayerProfile(BETWEEN, 0, 0.0, 6.0, 6.0),
    )
    assert sum(layer.run_ms for layer in layers) == 10.0
    assert timer.copies == [16, 80]
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.data_ptr() == places[name]


def test_a_table_alone_is_read_in_place(gpu: tuple[FakeDriver, CudaBackend, Lane]) -> None:
    """Whatever else is left on the host is copied by each execution, and told so."""
    driver, backend, lane = gpu
    module, x = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4)).eval(), torch.tensor([1])
    made: list[Any] = []
    allocate = driver.allocate_mapped

    def allocated(nbytes: int) -> Any:
        made.append(allocate(nbytes))
        return made[-1]

    driver.allocate_mapped = allocated  # type: ignore[method-assign]
    timer = TableTimer(lambda at: made[0].device <= at < made[0].device + made[0].nbytes, module)
    layers = measure_layers(backend, lane, timer, lambda: module(x))
    assert layers == (
        LayerProfile("0", 128, 2.0, 1.0, 3.0, "Embedding"),
        LayerProfile("1", 80, 1.25, 1.0, 2.25, "Linear"),
        LayerProfile(BETWEEN, 0, 0.0, 8.0, 8.0),
    )


def test_a_fault_while_weights_are_on_the_host_puts_them_back(
    gpu: tuple[FakeDriver, CudaBackend, Lane],
) -> None:
    _, backend, lane = gpu
    module = nn.Sequential(nn.Embedding(4, 4)).eval()
    place = module[0].weight.data_ptr()

    class Failing(TableTimer):
        def cold_ms(self, body: Callable[[], None]) -> float:
            if module[0].weight.data_ptr() != place:
                raise RuntimeError("a kernel refused")
            return 1.0

    with pytest.raises(RuntimeError, match="refused"):
        measure_layers(backend, lane, Failing(bool, Scaled()), lambda: module(torch.tensor([1])))
    assert module[0].weight.data_ptr() == place


def test_the_timer_measures_graphs_and_leaves_nothing(
    gpu: tuple[FakeDriver, CudaBackend, Lane],
) -> None:
    driver, backend, lane = gpu
    calls: list[int] = []
    timer = GraphTimer(backend, lane, repeats=4, takes=3, flush_bytes=1 << 10)
    assert timer.warm_ms(lambda: calls.append(1)) > 0.0
    # Once to warm up, four times captured, and in each of 1 + 3 launches.
    assert len(calls) == 1 + 4 + 4 * 4
    assert timer.cold_ms(lambda: None) >= 0.0
    mapped, device = driver.allocate_mapped(4096), driver.allocate(4096)
    assert timer.copy_ms(device, mapped.host, 4096) > 0.0
    driver.free(device)
    driver.free_mapped(mapped)


def test_a_model_is_measured_with_the_real_timer(gpu: tuple[FakeDriver, CudaBackend, Lane]) -> None:
    _, backend, lane = gpu
    module = Scaled().eval()
    timer = GraphTimer(backend, lane, repeats=2, takes=1, flush_bytes=1 << 10)
    layers = measure_layers(backend, lane, timer, lambda: module(torch.ones(1, 4)))
    assert [layer.name for layer in layers][-1] == BETWEEN
    assert all(layer.run_host_ms >= layer.run_ms >= 0.0 for layer in layers)
    assert sum(layer.weights_bytes for layer in layers) == 96
