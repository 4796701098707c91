"""A model of a repository taken apart in a process of its own, on the fake GPU."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.profile import LayerProfile, MemoryContention, Profile
from interlace.core.tensor import Signature, TensorSpec
from interlace.profiling.cuda.layers import BETWEEN
from interlace.profiling.extra_metrics import (
    BatchStrains,
    GpuTask,
    PartFindings,
    ReaderPlacement,
    reader_placements,
    take_apart,
    with_findings,
)
from interlace.profiling.rig import MeasureError

CODE = """
from torch import nn
INPUTS = {"x": ("FP32", (4,))}
OUTPUTS = {"y": ("FP32", (2,))}
def create_model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
LANES = "interlace.device.cuda.green_contexts.lanes:make_lanes"
BACKEND = "tests.device.cuda.fake.capture:at_once"


def model(folder: Path, name: str, code: str = CODE) -> Model:
    (folder / name).mkdir()
    (folder / name / "model.py").write_text(code)
    x, y = TensorSpec("x", "FP32", (4,)), TensorSpec("y", "FP32", (2,))
    signature = Signature((x,), (y,), True, 4)
    return Model(
        name, 1, Format.FACTORY, str(folder / name), name * 8, signature, ServiceTerms(50.0)
    )


def test_layers_come_back_and_a_broken_model_is_named(tmp_path: Path) -> None:
    good, bad = model(tmp_path, "good"), model(tmp_path, "bad", "def create_model(): return 1")
    task = GpuTask("", BACKEND, LANES, (bad, good), layers=True, flush_bytes=4096)
    broken, found = asyncio.run(take_apart(task, {}))
    assert (broken.model, broken.layers) == (bad.key, ())
    assert "create_model()" in broken.error
    assert (found.model, found.error) == (good.key, "")
    assert [layer.name for layer in found.layers] == ["0", "1", "2", BETWEEN]
    assert [layer.weights_bytes for layer in found.layers] == [160, 0, 72, 0]


def test_a_process_that_cannot_start_says_why() -> None:
    task = GpuTask("", "tests.nowhere:backend", LANES, ())
    with pytest.raises(MeasureError, match=r"No module named 'tests\.nowhere'"):
        asyncio.run(take_apart(task, {}))


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    slow = model(tmp_path, "slow", "import time\ntime.sleep(60)\n" + CODE)
    task = GpuTask("", BACKEND, LANES, (slow,), layers=True, flush_bytes=4096)
    with pytest.raises(MeasureError, match="did not end in"):
        asyncio.run(take_apart(task, {}, timeout_s=0.5))


@pytest.mark.parametrize("kind", ["h100", "v100", "a100-mig"])
def test_readers_stand_beside_models_legally(kind: str) -> None:
    gpu = GPU_KINDS[kind]
    found = reader_placements(gpu)
    assert len(found) >= 2
    for place in found:
        assert place.beside_pct
        assert all(gpu.legal(sorted((place.share_pct, one))) for one in place.beside_pct)
    assert reader_placements(Gpu("g", "k", 1, 1, (100,))) == ()


@given(st.floats(0, 1), st.floats(0, 1))
def test_what_was_known_stays(l2: float, dram: float) -> None:
    layers = (LayerProfile("a", 1, 1.0, 1.0, 1.0),)
    known = Profile("m", "d", "k", 0, 0, {}, pressure={(1, 50): (0.5, 0.5)}, layers=layers)
    seen = (MemoryContention("l2", 50, 0.1, l2, 1.0), MemoryContention("dram", 50, 0.1, dram, 1.0))
    found = PartFindings("m", (), (BatchStrains(4, 50, seen), BatchStrains(8, 50, seen[:1])))
    after = with_findings(known, found)
    assert after.pressure == {(1, 50): (0.5, 0.5), (4, 50): (l2, dram)}
    assert after.layers == layers
    assert after.strains == {(4, 50): seen, (8, 50): seen[:1]}
    assert replace(after, pressure={}, strains={}) == replace(known, pressure={}, strains={})


def test_the_smallest_and_the_largest_batch_are_set_beside_readers(tmp_path: Path) -> None:
    # At once on the fake: a reader has ended before a model could run beside it.
    task = GpuTask(
        "", BACKEND, LANES, (model(tmp_path, "m"),), places=(ReaderPlacement(48, (24, 48)),)
    )
    [found] = asyncio.run(take_apart(task, {}))
    assert found.error == ""
    assert [(at.batch, at.share_pct, at.strains) for at in found.strains] == [
        (1, 48, ()),
        (4, 48, ()),
    ]
