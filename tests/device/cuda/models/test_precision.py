"""The fastest that is close to FP32 wins; figures say why; weights take what they must."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.model import Format, Model, Precision, ServiceTerms
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.models.precision import (
    TOLERANCE,
    ModelVariant,
    VariantTrial,
    candidate_variants,
    compare_variants,
    fastest,
    relative_error,
)
from interlace.device.cuda.models.weights import DeviceWeights, lay_out
from interlace.formats import open_model
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.models.rig import bench, borrow
from tests.device.cuda.models.test_formats import CONVOLUTIONS, KINDS, case
from tests.formats.making import a_model, write_factory

FP32, FP16, BF16 = (ModelVariant(one) for one in (Precision.FP32, Precision.FP16, Precision.BF16))
AUTO = ServiceTerms(100.0, precision=Precision.AUTO)


@given(st.dictionaries(st.sampled_from([FP32, FP16, BF16]), st.tuples(
    st.floats(0.1, 9.0), st.floats(0.0, 0.1)), min_size=3))  # fmt: skip
def test_the_fastest_that_is_close_wins(found: dict[ModelVariant, tuple[float, float]]) -> None:
    def attempt(variant: ModelVariant) -> VariantTrial:
        run_ms, error = found[variant]
        off = 0.0 if variant == FP32 else error
        return VariantTrial([[torch.tensor([1.0 + off])]], run_ms)

    figures = compare_variants([FP32, FP16, BF16], attempt)
    chosen = fastest(figures)
    close = [one for one in found if one == FP32 or found[one][1] < TOLERANCE - 1e-6]
    assert chosen.error <= TOLERANCE
    assert chosen.run_ms <= min(found[one][0] for one in close)


def test_one_that_fails_is_out_and_says_why() -> None:
    def attempt(variant: ModelVariant) -> VariantTrial:
        if variant == FP16:
            raise RuntimeError("expected Float\nand more")
        return VariantTrial([[torch.ones(2)]], 1.0)

    figures = compare_variants([FP32, FP16], attempt)
    assert str(figures[1]) == "fp16: does not run (RuntimeError: expected Float)"
    assert fastest(figures).variant == FP32
    with pytest.raises(RuntimeError):
        compare_variants([FP16, FP32], attempt)


def test_a_gpu_that_failed_ends_it() -> None:
    def attempt(variant: ModelVariant) -> VariantTrial:
        if variant == FP16:
            raise CudaError("cuStreamSynchronize", "CUDA_ERROR_LAUNCH_FAILED")
        return VariantTrial([[torch.ones(2)]], 1.0)

    with pytest.raises(CudaError):
        compare_variants([FP32, FP16], attempt)


@pytest.mark.parametrize(
    ("wanted", "found", "error"),
    [
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([0.0], [0.0], 0.0),
        ([0.0], [1e-9], math.inf),
        ([1.0, math.inf], [1.0, math.inf], 0.0),
        ([1.0, math.inf], [1.0, 65504.0], math.inf),
        ([1.0, math.inf], [1.0, -math.inf], math.inf),
        ([1.0], [math.nan], math.inf),
    ],
)
def test_errors(wanted: list[float], found: list[float], error: float) -> None:
    measured = relative_error([torch.tensor(wanted)], [torch.tensor(found)])
    assert measured == pytest.approx(error)


def test_results_that_are_no_floats_must_be_equal() -> None:
    labels = torch.tensor([1, 2])
    assert relative_error([labels], [labels.clone()]) == 0.0
    assert relative_error([labels], [torch.tensor([1, 3])]) == math.inf


def test_candidates_are_what_the_operator_allows() -> None:
    assert candidate_variants(ServiceTerms(1.0), False) == [FP32]
    assert candidate_variants(ServiceTerms(1.0, precision=Precision.BF16), False) == [BF16]
    assert candidate_variants(AUTO, False) == [FP32, FP16, BF16]
    assert len(candidate_variants(AUTO, True)) == 6
    assert candidate_variants(ServiceTerms(1.0, compiled=True), False) == [
        FP32._replace(compiled=True)
    ]


def times(by_dtype: dict[torch.dtype, float], seen: list[torch.dtype]):  # type: ignore[no-untyped-def]
    """A stopwatch that gives times by the type that the model computes in."""

    def stopwatch(backend: object, side: object, run: object) -> float:
        model = run.__closure__[0].cell_contents._model  # type: ignore[attr-defined]
        dtype = model.variant.dtype or torch.float32
        seen.append(dtype)
        return by_dtype[dtype]

    return stopwatch


def with_terms(model: Model, **terms: object) -> Model:
    return replace(model, terms=replace(model.terms, **terms))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*KINDS, "bert"])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_the_users_choice_keeps_the_datatypes(
    kind: str, precision: Precision, tmp_path: Path
) -> None:
    model, inputs = case(kind, tmp_path)
    wanted = open_model(model, 1, None).run(inputs)
    with bench() as gpu:
        lane = gpu.carve("a")
        full = gpu.load(model, lane, batches=(4,))
        full_bytes = full.weights_bytes
        full.close()
        loaded = gpu.load(with_terms(model, precision=precision), lane, batches=(4,))
        found = gpu.run(loaded, lane, inputs)
        assert str(loaded._portable.variant) == precision.value
        assert loaded.weights_bytes <= full_bytes  # half of it, rounded up tensor by tensor
        worst = 0.0
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            worst = max(worst, float(np.abs(found[name] - array).max()))
        assert 0.0 < worst < 0.1  # it was really computed in fewer bits


def test_auto_takes_the_fastest_and_shows_the_figures(tmp_path: Path) -> None:
    model, inputs = case("factory", tmp_path)
    seen: list[torch.dtype] = []
    watch = times({torch.float32: 3.0, torch.float16: 2.0, torch.bfloat16: 1.0}, seen)
    wanted = open_model(model, 1, None).run(inputs)
    with bench(stopwatch=watch) as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(with_terms(model, precision=Precision.AUTO), lane, batches=(4,))
        assert seen == [torch.float32, torch.float16, torch.bfloat16]
        assert str(loaded._portable.variant) == "bf16"
        assert [note.split(": ")[1] for note in gpu.notes[:3]] == ["fp32", "fp16", "bf16"]
        assert "3.000 ms, error 0" in gpu.notes[0]
        found = gpu.run(loaded, lane, inputs)
        assert np.allclose(found["y"], wanted["y"], atol=0.1)


def test_auto_passes_over_what_is_not_close(tmp_path: Path) -> None:
    code = """
import torch
INPUTS = {"x": ("FP32", (4,))}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((4,), 300.0))
    def forward(self, x):
        return (self.w * self.w * (1 + x)).sum(-1, keepdim=True)  # 90000 is no FP16
def create_model():
    return Model()
"""
    model = with_terms(
        a_model(Format.FACTORY, write_factory(tmp_path / "m", code)), precision=Precision.AUTO
    )
    watch = times({torch.float32: 3.0, torch.float16: 1.0, torch.bfloat16: 2.0}, [])
    with bench(stopwatch=watch) as gpu:
        loaded = gpu.load(model, gpu.carve("a"), batches=(4,))
        assert str(loaded._portable.variant) == "bf16"
        assert "not close enough" in gpu.notes[1]


def test_layouts_of_convolutions_are_timed(tmp_path: Path) -> None:
    model = a_model(Format.FACTORY, write_factory(tmp_path / "conv", CONVOLUTIONS))
    image = {"image": np.random.default_rng(0).random((2, 3, 8, 8), np.float32)}
    wanted = open_model(model, 1, None).run(image)
    times_ms = iter([2.0, 1.0])
    with bench(stopwatch=lambda *_: next(times_ms)) as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(model, lane, batches=(2,))
        assert str(loaded._portable.variant) == "fp32 channels last"
        found = gpu.run(loaded, lane, image)
        assert all(np.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


def test_compiling_leaves_graphs_to_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compiled(call: object, **options: object) -> object:
        asked.append(options)
        return call

    monkeypatch.setattr(torch, "compile", compiled)
    model, inputs = case("factory", tmp_path)
    with bench() as gpu:
        lane = gpu.carve("a")
        loaded = gpu.load(with_terms(model, compiled=True), lane, batches=(4,))
        gpu.run(loaded, lane, inputs)
        assert asked == [{"mode": "max-autotune-no-cudagraphs", "dynamic": False}]
        assert str(loaded._portable.variant) == "fp32 compiled"


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


def test_what_was_needed_and_what_there_was(driver: FakeDriver) -> None:
    driver.others(driver.memory().free_bytes - 1000)
    layout = lay_out({"w": torch.zeros(1000)}, ModelVariant(), frozenset())
    with pytest.raises(MemoryError, match=r"needs 4096 bytes for its weights, and \d+ of the"):
        DeviceWeights.allocate(driver, layout)


def test_another_process_reads_the_same_weights(driver: FakeDriver) -> None:
    tensor = torch.arange(300.0)
    variant = ModelVariant(Precision.BF16)
    weights = DeviceWeights.allocate(driver, lay_out({"w": tensor}, variant, frozenset()))
    weights.fill({"w": tensor}, "cpu")
    total = tensor.bfloat16().double().sum().item()
    assert borrow("tensor", weights.share(variant)) == [str(total), "0", "torch.bfloat16"]
    weights.close()


def test_other_weights_are_refused(driver: FakeDriver) -> None:
    layout = lay_out({"w": torch.zeros(300)}, ModelVariant(), frozenset())
    other = lay_out({"w": torch.zeros(301)}, ModelVariant(), frozenset())
    weights = DeviceWeights.allocate(driver, layout)
    with pytest.raises(ValueError, match="not laid out as here"):
        DeviceWeights.open(driver, other, weights.share(ModelVariant()))
    with pytest.raises(CudaError):  # CUDA opens no handle in the process that made it
        DeviceWeights.open(driver, layout, weights.share(ModelVariant()))
    weights.close()
