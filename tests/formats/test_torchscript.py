"""TorchScript models: arguments by name or order, what must be described, shared weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Format, SampleValue
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cuda.models.opening import open_portable
from interlace.formats import open_model
from interlace.formats.runner import ModelRunner
from tests.formats.making import UNKNOWN, Net, a_model, served, write_torchscript

X, MASK = TensorSpec("x", "FP32", (8,)), TensorSpec("mask", "FP32", (8,))
DESCRIBED = Signature((X, MASK), (), True, 8)


def opened(folder: Path, signature: Signature) -> ModelRunner:
    return open_model(a_model(Format.TORCHSCRIPT, folder, signature), 1, None)


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal((3, 8), np.float32) for name in ("x", "mask")}


def wanted(inputs: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        result = Net().eval()(*(torch.from_numpy(inputs[name]) for name in ("x", "mask")))
    return result["y"].numpy()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            (),
            r'forward\(x, mask\), which says neither .* name: "x" data_type: TYPE_FP32',
        ),
        ((X,), r"inputs \['x'\] described; expected one for each"),
        (
            (TensorSpec("x", "INT64", (8,)), MASK),
            "a model that failed on sample inputs of shape",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, inputs: tuple[TensorSpec, ...], said: str) -> None:
    folder = write_torchscript(tmp_path / "net", Net())
    signature = Signature(inputs, (), True, 8) if inputs else UNKNOWN
    with pytest.raises(RepositoryError, match=said):
        opened(folder, signature)


@pytest.mark.parametrize(
    "names", [("x", "mask"), ("mask", "x"), ("INPUT__0", "INPUT__1"), ("first", "second")]
)
def test_inputs_go_to_their_arguments(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = write_torchscript(tmp_path / "net", Net())
    signature = Signature(tuple(TensorSpec(n, "FP32", (8,)) for n in names), (), True, 8)
    runner = opened(folder, signature)
    inputs = arrays()
    by_argument = names if set(names) != {"x", "mask"} else ("x", "mask")
    given = dict(zip(by_argument, inputs.values(), strict=True))
    assert np.allclose(runner.run(given)["y"], wanted(inputs), atol=1e-5)


def test_clients_have_other_dims_than_the_module(tmp_path: Path) -> None:
    """Triton's ``reshape``, with outputs learnt and described, on cores and as on a GPU."""
    folder = write_torchscript(tmp_path / "net", Net())
    shaped = tuple(TensorSpec(n, "FP32", (2, 4), False, (8,)) for n in ("x", "mask"))
    learnt = opened(folder, Signature(shaped, (), True, 8)).signature
    assert learnt.inputs == (X, MASK)
    assert learnt.outputs[0].dims == (8,)
    outputs = (TensorSpec("y", "FP32", (4, 2), False, (8,)),)
    model = a_model(Format.TORCHSCRIPT, folder, Signature(shaped, outputs, True, 8))
    inputs = arrays()
    sent = {name: array.reshape(3, 2, 4) for name, array in inputs.items()}
    found = open_model(model, 1, None).run(sent)["y"]
    assert np.allclose(found, wanted(inputs).reshape(3, 4, 2), atol=1e-5)
    tensors = {name: torch.from_numpy(array) for name, array in sent.items()}
    with torch.no_grad():
        (moved,) = open_portable(model, "cpu").outputs(tensors)
    assert np.allclose(moved.numpy(), found, atol=1e-5)


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_of_torch_save_is_named(tmp_path: Path, whole: bool) -> None:
    module = torch.nn.Linear(2, 2)
    torch.save(module if whole else module.state_dict(), tmp_path / "model.pt")
    with pytest.raises(RepositoryError, match=r"found a file of torch.save: .*torch.jit.script"):
        opened(tmp_path, DESCRIBED)


class Sums(torch.nn.Module):
    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": features["x"] + features["mask"]}


class Shouts(torch.nn.Module):
    def forward(self, texts: list[str]) -> list[str]:
        found: list[str] = []
        for text in texts:
            found.append(text + "!")
        return found


def test_a_dict_takes_all_inputs_by_name(tmp_path: Path) -> None:
    folder = write_torchscript(tmp_path / "sums", Sums())
    runner = opened(folder, DESCRIBED)
    inputs = arrays()
    assert np.array_equal(runner.run(inputs)["sum"], inputs["x"] + inputs["mask"])


@pytest.mark.parametrize("words", [["a", "ü"], []])
def test_lists_of_strings_are_bytes(tmp_path: Path, words: list[str]) -> None:
    folder = write_torchscript(tmp_path / "shouts", Shouts())
    described = Signature((TensorSpec("texts", "BYTES", (-1,)),), (), False, 1)
    learnt = opened(folder, described).signature
    assert learnt.outputs == (TensorSpec("OUTPUT__0", "BYTES", (-1,)),)
    runner = opened(folder, learnt)
    sent = np.array([word.encode() for word in words], dtype=object)
    found = runner.run({"texts": sent})["OUTPUT__0"]
    assert found.tolist() == [f"{word}!".encode() for word in words]
    with pytest.raises(ServeError, match="input 'texts': TorchScript takes UTF-8"):
        runner.run({"texts": np.array([b"\xff"], dtype=object)})


def test_outputs_are_learnt_and_may_be_renamed(tmp_path: Path) -> None:
    folder = write_torchscript(tmp_path / "net", Net())
    learnt = opened(folder, DESCRIBED).signature
    assert learnt.outputs == (TensorSpec("y", "FP32", (8,)), TensorSpec("sum", "FP32", ()))
    renamed = [TensorSpec("a", "FP32", (8,)), TensorSpec("b", "FP32", ())]
    runner = opened(folder, served([X, MASK], renamed))
    assert runner.signature.outputs == tuple(renamed)
    assert list(runner.run(arrays())) == ["a", "b"]


@pytest.mark.parametrize("freeze", [False, True])
def test_shared_weights_give_the_same_numbers(tmp_path: Path, freeze: bool) -> None:
    folder = write_torchscript(tmp_path / "net", Net(), freeze)
    model = a_model(Format.TORCHSCRIPT, folder, DESCRIBED)
    private, shared = (open_model(model, 1, where) for where in (None, str(tmp_path / "weights")))
    assert shared.shared_bytes == shared.resident_bytes >= 8 * 8 * 4
    inputs = arrays()
    assert np.allclose(private.run(inputs)["y"], shared.run(inputs)["y"], atol=1e-5)


class Found(torch.nn.Module):
    """As many boxes as there are values above a half; none of what is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("x must be positive")
        return torch.ones(int((x > 0.5).sum().item()), 4)


@pytest.mark.parametrize("declared", [(), (TensorSpec("boxes", "FP32", (-1, 4)),)])
def test_values_decide_how_large_an_output_is(
    tmp_path: Path, declared: tuple[TensorSpec, ...]
) -> None:
    """A dim declared free stays free; of others two trial runs show one size, and it may change."""
    folder = write_torchscript(tmp_path / "found", Found())
    described = Signature((TensorSpec("x", "FP32", (8,)),), declared, False, 1)
    learnt = opened(folder, described).signature
    assert learnt.outputs == declared or not declared
    runner = opened(folder, learnt)
    for high in range(3):
        x = np.array([0.9] * high + [0.1] * (8 - high), np.float32)
        (boxes,) = runner.run({"x": x}).values()
        assert boxes.shape == (high, 4)


def test_a_model_that_fails_on_sample_values_is_as_it_is_described(tmp_path: Path) -> None:
    folder = write_torchscript(tmp_path / "found", Found())
    inputs, outputs = (TensorSpec("x", "FP32", (8,)),), (TensorSpec("boxes", "FP32", (-1, 4)),)
    bad = {"x": SampleValue("[-1]")}
    model = a_model(Format.TORCHSCRIPT, folder, Signature(inputs, outputs, False, 1))
    runner = open_model(replace(model, values=bad), 1, None)
    assert runner.signature.outputs == outputs
    assert runner.run({"x": np.ones(8, np.float32)})["boxes"].shape == (8, 4)
    unknown = a_model(Format.TORCHSCRIPT, folder, Signature(inputs, (), False, 1))
    with pytest.raises(RepositoryError, match="x must be positive") as told:
        open_model(replace(unknown, values=bad), 1, None)
    assert "{ value = ... }" in str(told.value) and "output [ {" in str(told.value)
