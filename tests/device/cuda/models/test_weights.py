"""Weights in one allocation: each tensor once, aligned, and the same in other processes."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.model import Precision
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.models.precision import ModelVariant
from interlace.device.cuda.models.weights import DeviceWeights, lay_out
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.models.rig import borrow

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
types = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool])
variants = st.builds(
    ModelVariant, st.sampled_from([Precision.FP32, Precision.FP16, Precision.BF16]), st.booleans()
)


@given(st.lists(st.tuples(shapes, types, st.booleans()), max_size=8), variants)
def test_every_tensor_comes_back(
    wanted: list[tuple[tuple[int, ...], torch.dtype, bool]], variant: ModelVariant
) -> None:
    tensors = {
        f"t{place}": torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        for place, (shape, dtype, _) in enumerate(wanted)
    }
    exact = frozenset(f"t{place}" for place, (_, _, kept) in enumerate(wanted) if kept)
    originals = {name: tensor.clone() for name, tensor in tensors.items()}
    layout = lay_out(tensors, variant, exact)
    spans = sorted(
        (one.offset, one.offset + torch.Size(one.shape).numel() * one.dtype.itemsize)
        for one in layout.places.values()
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(begin % 256 == 0 and end <= layout.nbytes for begin, end in spans)
    driver = FakeDriver()
    weights = DeviceWeights.allocate(driver, layout)
    weights.fill(originals, "cpu")
    weights.adopt(tensors, "cpu")
    for name, tensor in tensors.items():
        kept = name in exact or originals[name].dtype != torch.float32
        assert tensor.dtype == (originals[name].dtype if kept else variant.dtype or torch.float32)
        assert torch.equal(tensor, originals[name].to(tensor.dtype))
        if variant.channels_last and tensor.dim() == 4 and tensor.numel():
            assert tensor.is_contiguous(memory_format=torch.channels_last)
    weights.close()
    driver.close()


def test_tied_weights_stay_tied() -> None:
    weight = torch.randn(8, 8)
    head = torch.nn.Parameter(weight)
    tensors = {"embedding": weight, "head": head.data, "view": weight[:4]}
    layout = lay_out(tensors, ModelVariant(), frozenset())
    assert layout.places["embedding"] == layout.places["head"]
    assert layout.nbytes == 8 * 8 * 4 + 256  # the view, rounded up


def test_what_was_needed_and_what_there_was() -> None:
    driver = FakeDriver()
    driver.others(driver.memory().free_bytes - 1000)
    layout = lay_out({"w": torch.zeros(1000)}, ModelVariant(), frozenset())
    with pytest.raises(MemoryError, match=r"needs 4096 bytes for its weights, and \d+ of the"):
        DeviceWeights.allocate(driver, layout)
    driver.close()


def test_another_process_reads_the_same_weights() -> None:
    tensor = torch.arange(300.0)
    driver, variant = FakeDriver(), ModelVariant(Precision.BF16)
    weights = DeviceWeights.allocate(driver, lay_out({"w": tensor}, variant, frozenset()))
    weights.fill({"w": tensor}, "cpu")
    total = tensor.bfloat16().double().sum().item()
    assert borrow("tensor", weights.share(variant)) == [str(total), "0", "torch.bfloat16"]
    weights.close()
    driver.close()


def test_other_weights_are_refused() -> None:
    driver = FakeDriver()
    layout = lay_out({"w": torch.zeros(300)}, ModelVariant(), frozenset())
    other = lay_out({"w": torch.zeros(301)}, ModelVariant(), frozenset())
    weights = DeviceWeights.allocate(driver, layout)
    with pytest.raises(ValueError, match="not laid out as here"):
        DeviceWeights.open(driver, other, weights.share(ModelVariant()))
    with pytest.raises(CudaError):  # CUDA opens no handle in the process that made it
        DeviceWeights.open(driver, layout, weights.share(ModelVariant()))
    weights.close()
    driver.close()
