"""Layers of every torch format, in the order of execution, their bytes and times complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from interlace.core.loading import DISK_LINK, HostLinks, LoadStep, WeightPath
from interlace.core.model import Format, Model
from interlace.core.profile import LayerProfile
from interlace.core.tensor import TensorSpec
from interlace.device.process.sandbox import why_unconfined
from interlace.formats.cold_weights import WeightWatcher
from interlace.formats.runner import Extent, WeightUse
from interlace.perf.cold_start import on_disk
from interlace.policy.cold_starts.frontier import frontier
from interlace.profiling.cpu import layer_bench
from interlace.profiling.cpu.layer_bench import BEFORE, UNREAD, LayerBench, LayeredModel
from interlace.profiling.cpu.process_main import measure_layers
from interlace.profiling.extra_metrics import CoresTask, take_apart
from tests.formats.making import (
    F32,
    a_model,
    identity_onnx,
    layers_onnx,
    served,
    write_exported,
    write_factory,
    write_torchscript,
)

SIGNATURE = served([TensorSpec("x", "FP32", (4,))], [TensorSpec("y", "FP32", (2,))])
#: The layer that is made first runs last; one is never run; two share a weight.
CODE = """
from torch import nn
INPUTS = {"x": ("FP32", (4,))}
OUTPUTS = {"y": ("FP32", (2,))}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.idle = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.first.weight
    def forward(self, x):
        return self.last(self.again(self.norm(self.first(x.relu()))))
def create_model():
    return Net()
"""


def _measured(model: Model, folder: Path) -> tuple[tuple[LayerProfile, ...], float]:
    found = measure_layers(model, 1, str(folder / "weights"), takes=2)
    return found.layers, found.cold_ms


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.first(x))
        return y


def test_layers_are_in_order_and_weigh_what_the_model_does(tmp_path: Path) -> None:
    model = a_model(Format.FACTORY, write_factory(tmp_path / "net", CODE), SIGNATURE)
    layers, cold_ms = _measured(model, tmp_path)
    assert cold_ms > 0.0
    assert [(one.name, one.kind, one.weights_bytes) for one in layers] == [
        (BEFORE, "", 0),
        ("first", "linear", 80),
        ("norm", "layer_norm", 32),
        ("last", "linear", 40),
        (UNREAD, "", 80),
    ]
    assert all(one.run_host_ms >= one.run_ms >= 0.0 for one in layers)
    assert all((one.copy_ms > 0.0) == (one.weights_bytes > 0) for one in layers[1:])
    assert len(list(tmp_path.glob("weights/*.safetensors"))) == 1


def _torchscript(folder: Path) -> Path:
    return write_torchscript(folder, Net())


def _frozen(folder: Path) -> Path:
    return write_torchscript(folder, Net(), freeze=True)


def _exported(folder: Path) -> Path:
    return write_exported(folder, Net(), (torch.ones(1, 4),))


@pytest.mark.parametrize(
    ("format", "write"),
    [
        (Format.TORCHSCRIPT, _torchscript),
        (Format.TORCHSCRIPT, _frozen),
        (Format.EXPORTED, _exported),
    ],
)
def test_formats_without_modules_have_layers_too(
    format: Format, write: Callable[[Path], Path], tmp_path: Path
) -> None:
    model = a_model(format, write(tmp_path / "net"), SIGNATURE)
    layers, _ = _measured(model, tmp_path)
    assert [(one.kind, one.weights_bytes) for one in layers] == [
        ("", 0),
        ("linear", 80),
        ("linear", 40),
    ]


def test_a_process_answers_for_each_model_and_names_what_does_not_open(tmp_path: Path) -> None:
    good = a_model(Format.FACTORY, write_factory(tmp_path / "net", CODE), SIGNATURE)
    bare = a_model(Format.ONNX, identity_onnx(tmp_path / "bare", F32, "N", 4), name="bare")
    task = CoresTask((0,), (bare, good), str(tmp_path), takes=1)
    refused, found = asyncio.run(take_apart(task, {}))
    assert "it has no weights to share" in refused.error
    assert (found.model, found.error, len(found.layers)) == (good.key, "", 5)


@pytest.mark.skipif(bool(why_unconfined()), reason=why_unconfined())
def test_the_process_reads_the_models_and_no_other_files(tmp_path: Path) -> None:
    for name in ("models", "weights"):
        (tmp_path / name).mkdir()
    (tmp_path / "key").write_text("secret")
    thief = f"open({str(tmp_path / 'key')!r}).read()\n{CODE}"
    models = (
        a_model(Format.FACTORY, write_factory(tmp_path / "models/net", CODE), SIGNATURE),
        a_model(Format.ONNX, layers_onnx(tmp_path / "models/onnx", (128, 384, 16)), name="onnx"),
        a_model(Format.FACTORY, write_factory(tmp_path / "models/thief", thief), name="thief"),
    )
    task = CoresTask((0,), models, str(tmp_path / "weights"), 1, str(tmp_path / "models"))
    honest, onnx, refused = asyncio.run(take_apart(task, {}))
    assert (honest.error, len(honest.layers)) == ("", 5)
    assert onnx.error == "" and onnx.layers
    assert "PermissionError" in refused.error


def test_a_folder_that_is_called_as_a_module_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not the real one')")
    monkeypatch.chdir(tmp_path)
    model = a_model(Format.FACTORY, write_factory(tmp_path / "net", CODE), SIGNATURE)
    task = CoresTask((0,), (model,), str(tmp_path), takes=1)
    (found,) = asyncio.run(take_apart(task, {}))
    assert not found.error


def test_onnx_has_layers_too(tmp_path: Path) -> None:
    folder = layers_onnx(tmp_path / "net", (128, 384, 256, 16))
    layers, cold_ms = _measured(a_model(Format.ONNX, folder), tmp_path)
    assert cold_ms > 0.0
    # The last weights are small, and come with those before.
    assert [(one.kind, one.weights_bytes) for one in layers] == [
        ("", 0),
        ("MatMul", 128 * 384 * 4),
        ("MatMul", 384 * 256 * 4),
        ("MatMul", 256 * 16 * 4),
    ]
    assert all(one.run_host_ms >= one.run_ms > 0.0 for one in layers[1:])


def test_the_watcher_tells_each_weight_once_before_it_is_read() -> None:
    net = Net()
    seen: list[WeightUse] = []

    def fill(use: WeightUse) -> None:
        seen.append(use)
        for name in use.weights:
            dict(net.named_parameters())[name].data.fill_(1.0)  # what a load does

    for tensor in net.parameters():
        tensor.data.fill_(float("nan"))
    with torch.inference_mode(), WeightWatcher(dict(net.named_parameters()), fill):
        out = net(torch.ones(1, 4))
        again = net(torch.ones(1, 4))
    assert [use.weights for use in seen] == [
        ("first.weight", "first.bias"),
        ("last.weight", "last.bias"),
    ]
    assert torch.equal(out, torch.full((1, 2), 21.0))
    assert torch.equal(again, out)


class _Started(LayerBench):
    """Starts that take as long as they are told to: with copies, and without."""

    def __init__(self, copied_ms: float, left_ms: float) -> None:
        self._takes = 3
        self._times_ms = copied_ms, left_ms

    def start_ms(self, steps: Sequence[LoadStep], cached: bool = True, *_: Any, **__: Any) -> float:
        copied_ms, left_ms = self._times_ms
        return copied_ms if any(step.via is WeightPath.COPY for step in steps) else left_ms


class _Measured(LayerBench):
    """Two layers; with all left in the file a start takes 10 ms, and from disk 30."""

    def __init__(self) -> None:
        uses = [WeightUse("linear", (f"{name}.weight",)) for name in "ab"]
        file = SimpleNamespace(
            tables=(),
            uses=uses,
            extents=[Extent(0, 8), Extent(8, 8)],
            weights_bytes=(8, 8),
            path=Path("/dev/null"),
        )
        cold = SimpleNamespace(file=file, leave=list, place=lambda places, memory: None)
        model = SimpleNamespace(
            run=lambda: None,
            resident_ms=lambda memory, takes: [[1.0, 1.0, 2.0]] * takes,
            mapped_ms=lambda takes: [[1.0, 2.0, 6.0]] * takes,
            from_disk_ms=lambda: [1.0, 40.0, 9.0],
        )
        self._model, self._cold, self._takes = cast("LayeredModel", model), cast(Any, cold), 2
        self.memory = memoryview(b"")

    def start_ms(self, steps: Sequence[LoadStep], cached: bool = True, *_: Any, **__: Any) -> float:
        return 14.0 if steps else 10.0 if cached else 30.0

    def _copies_ms(self) -> list[float]:
        return [1.0, 1.0]

    def _drop(self) -> bool:
        return True


def test_what_is_left_in_its_file_is_predicted_to_take_what_it_was_seen_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times by layer are watched, and of layers alone: more than a start takes in all."""
    monkeypatch.setattr(layer_bench, "took_ms", lambda run: 4.0)
    layers = _Measured().layers()
    assert sum(one.run_host_ms for one in layers) == pytest.approx(10.0)
    assert sum(one.run_host_ms for one in on_disk(layers, True)) == pytest.approx(30.0)


class _StartedOnceLate(_Started):
    """Starts of which the first by a plan takes far longer than those that follow."""

    def start_ms(self, steps: Sequence[LoadStep], cached: bool = True, *_: Any, **__: Any) -> float:
        took_ms = super().start_ms(steps)
        if took_ms == self._times_ms[0]:
            self._times_ms = 0.5, self._times_ms[1]
        return took_ms


def test_what_once_ended_later_than_all_left_in_the_file_is_not_planned() -> None:
    layers = LayerProfile(BEFORE, 0, 0.125, 0.125, 0.125), LayerProfile("a", 10**6, 1.0, 1.0, 4.0)
    links = HostLinks(takes_cores=True)
    assert frontier(layers, links).brought
    found, _ = _StartedOnceLate(9.0, 4.125).as_started(layers)
    assert not frontier(found, links).brought


def test_a_load_from_disk_is_planned_only_where_it_ended_first() -> None:
    """Copied while they run, the layers are predicted to end before they are read as they run."""
    layers = (
        LayerProfile(BEFORE, 0, 0.125, 0.125, 0.125),
        *(
            LayerProfile(name, 10**6, 0.5, 4.0, 4.0, copy_disk_ms=3.0, run_disk_ms=8.0)
            for name in "ab"
        ),
    )
    found, _ = _Started(20.0, 15.0).as_started(layers)
    assert frontier(on_disk(layers, True), DISK_LINK).brought
    assert not frontier(on_disk(found, True), DISK_LINK).brought
    found, _ = _Started(12.0, 30.0).as_started(layers)
    assert found == layers


@pytest.mark.parametrize(
    ("copied_ms", "begin_ms", "cold_ms"),
    [
        (2.25, 0.125, 2.25),  # as predicted
        (1.0, 0.125, 1.0),  # sooner: it may be chance
        (3.25, 1.125, 3.25),  # later, and still sooner than everything left in the file
        (5.25, 3.125, 4.125),  # later than that: nothing is begun any more
    ],
)
def test_a_load_is_predicted_to_gain_no_more_than_it_was_seen_to(
    copied_ms: float, begin_ms: float, cold_ms: float
) -> None:
    layers = LayerProfile(BEFORE, 0, 0.125, 0.125, 0.125), LayerProfile("a", 10**6, 1.0, 1.0, 4.0)
    found, took_ms = _Started(copied_ms, 4.125).as_started(layers)
    assert found == (replace(layers[0], copy_ms=begin_ms), layers[1])
    assert took_ms == cold_ms
    assert frontier(found, HostLinks(takes_cores=True)).end_ms == max(2.25, cold_ms)
