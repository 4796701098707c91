"""Python factories: declarations, mistakes named, models that write into their inputs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats import open_model
from interlace.formats.factory import with_fast_convolutions
from interlace.formats.runner import ModelRunner
from tests.formats.making import a_model, served, write_factory

HEAD = "import torch\n\n"
SAME = "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n"
CREATE = "def create_model():\n    return Net()\n"
INPUTS = 'INPUTS = {"x": ("FP32", (4,))}\n'
X = TensorSpec("x", "FP32", (4,))


def opened(
    folder: Path, code: str, signature: Signature | None = None, weights: Path | None = None
) -> ModelRunner:
    model = a_model(Format.FACTORY, write_factory(folder, HEAD + code))
    if signature is not None:
        model = a_model(Format.FACTORY, folder, signature)
    return open_model(model, 1, None if weights is None else str(weights))


def test_outputs_are_learnt_from_two_runs(tmp_path: Path) -> None:
    code = 'INPUTS = {"x": ("FP32", (3, -1))}\n' + SAME.replace(
        "return x", "return {'same': x, 'top': x.amax(2), 'n': x.new_zeros(len(x), 2).long()}"
    )
    signature = opened(tmp_path / "m", code + CREATE).signature
    assert signature.outputs == (
        TensorSpec("same", "FP32", (3, -1)),
        TensorSpec("top", "FP32", (3,)),
        TensorSpec("n", "INT64", (2,)),
    )


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = 1\n", r"no create_model\(\)"),
        ("def create_model():\n    return 7\n", "int; expected a torch.nn.Module"),
        (SAME + CREATE, "no description of the inputs"),
        (SAME + CREATE + 'INPUTS = {"x": ("FLOAT", (4,))}\n', r"'x': \('FLOAT', \(4,\)\)"),
        (SAME + CREATE + 'INPUTS = {"x": ("FP32", (-2,))}\n', r"'x': \('FP32', \(-2,\)\)"),
        (SAME + CREATE + "INPUTS = [1]\n", r"INPUTS: found \[1\]"),
        ("raise RuntimeError('no card')\n", "RuntimeError: no card"),
        ("def create_model(:\n", "SyntaxError"),
        (SAME.replace("x\n\n", "x[:1]\n\n") + CREATE + INPUTS, "rows first in every output"),
        (SAME.replace("x\n\n", "x.no\n\n") + CREATE + INPUTS, r"sample inputs of shape {'x': \(1"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, code: str, found: str) -> None:
    with pytest.raises(RepositoryError, match=found) as caught:
        opened(tmp_path / "m", code)
    assert str(tmp_path / "m") in caught.value.where


def test_inputs_may_be_read_only_even_if_the_model_writes_to_them(tmp_path: Path) -> None:
    code = INPUTS + SAME.replace("return x", "x += 1\n        return x") + CREATE
    runner = opened(tmp_path / "m", code)
    array = np.zeros((2, 4), np.float32)
    array.flags.writeable = False
    assert np.array_equal(runner.run({"x": array})["OUTPUT__0"], array + 1)
    assert not array.any()


def test_an_identity_copies_nothing(tmp_path: Path) -> None:
    runner = opened(tmp_path / "m", INPUTS + SAME + CREATE)
    array = np.ones((2, 4), np.float32)
    assert np.shares_memory(runner.run({"x": array})["OUTPUT__0"], array)


def test_bf16_travels_as_bits(tmp_path: Path) -> None:
    code = SAME.replace("return x", "return x * 2") + CREATE + 'INPUTS = {"x": ("BF16", (2,))}\n'
    runner = opened(tmp_path / "m", code)
    assert runner.signature.outputs[0].datatype == "BF16"
    bits = np.array([[0x3F80, 0xBF80]], np.uint16)  # 1, -1
    assert runner.run({"x": bits})["OUTPUT__0"].tolist() == [[0x4000, 0xC000]]


def test_bytes_reach_the_model_as_objects(tmp_path: Path) -> None:
    code = "import numpy as np\n" + SAME.replace(
        "return x", "return np.array([[e.upper() for e in row] for row in x], dtype=object)"
    )
    runner = opened(tmp_path / "m", code + CREATE + 'INPUTS = {"x": ("BYTES", (2,))}\n')
    assert runner.signature.outputs[0].datatype == "BYTES"
    array = np.array([[b"a", b"\xff"]], dtype=object)
    assert runner.run({"x": array})["OUTPUT__0"].tolist() == [[b"A", b"\xff"]]


def test_results_that_contradict_the_description_are_refused(tmp_path: Path) -> None:
    code = INPUTS + SAME.replace("return x", "return x.double() if x.sum() < 0 else x") + CREATE
    runner = opened(tmp_path / "m", code, served([X], [TensorSpec("y", "FP32", (4,))]))
    runner.run({"x": np.ones((1, 4), np.float32)})
    with pytest.raises(ValueError, match="output 'y' came as numpy float64"):
        runner.run({"x": -np.ones((1, 4), np.float32)})


def test_a_model_may_take_no_batches(tmp_path: Path) -> None:
    code = INPUTS + SAME.replace("return x", "return x.sum()") + CREATE + "BATCHED = False\n"
    runner = opened(tmp_path / "m", code)
    assert runner.signature.outputs == (TensorSpec("OUTPUT__0", "FP32", ()),)
    assert runner.run({"x": np.ones(4, np.float32)})["OUTPUT__0"] == 4.0


def test_model_py_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    folder = write_factory(tmp_path / "m", HEAD + "from .parts import Net\n" + INPUTS + CREATE)
    (folder / "parts.py").write_text(HEAD + SAME)
    assert open_model(a_model(Format.FACTORY, folder), 1, None).signature.inputs == (X,)


def test_unseeded_weights_are_one_model_for_all_workers(tmp_path: Path) -> None:
    code = INPUTS + CREATE.replace("Net()", "torch.nn.Linear(4, 4)")
    first, second = (opened(tmp_path / "m", code, None, tmp_path / "w") for _ in range(2))
    array = np.ones((1, 4), np.float32)
    assert np.array_equal(
        first.run({"x": array})["OUTPUT__0"], second.run({"x": array})["OUTPUT__0"]
    )


def test_another_models_weights_are_not_taken(tmp_path: Path) -> None:
    opened(
        tmp_path / "m", INPUTS + CREATE.replace("Net()", "torch.nn.Linear(4, 4)"), None, tmp_path
    )
    (entry,) = tmp_path.glob("*.safetensors")
    other = opened(
        tmp_path / "m", INPUTS + CREATE.replace("Net()", "torch.nn.Linear(4, 3)"), None, tmp_path
    )
    assert other.shared_bytes == 0
    assert f"{entry}: tensor weight is not the model's" in other.warnings[0]


class Shaped(nn.Module):
    """A convolution, batch norm, and what ``after`` does with the result."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        match self.after:
            case "view":  # fails on channels-last memory
                return y.view(len(y), -1)
            case "branch":  # cannot be traced
                return y if y.sum() > 0 else -y
            case "again":  # the convolution has another user
                return y + self.conv(x)
            case "nan":
                return y / 0 * 0
        return y


def sample() -> torch.Tensor:
    return torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))


def made(after: str) -> nn.Module:
    torch.manual_seed(0)
    module = Shaped(after)
    module.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    module.norm.running_var.uniform_(1, 2)  # type: ignore[union-attr]
    return module.eval()


@pytest.mark.parametrize("after", ["", "branch", "again"])
def test_results_stay_the_same(after: str) -> None:
    module = made(after)
    with torch.no_grad():
        wanted = module(sample())
        fast = with_fast_convolutions(module, lambda part: part(sample()))
        assert torch.allclose(fast(sample()), wanted, atol=1e-5)
    assert fast is not module
    norms = [part for part in fast.modules() if isinstance(part, nn.BatchNorm2d)]
    assert bool(norms) == (after != "")
    for part in fast.modules():
        if isinstance(part, nn.Conv2d):
            assert part.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("after", ["view", "nan"])
def test_what_does_not_work_is_left_as_it_was(after: str) -> None:
    module = made(after)
    assert with_fast_convolutions(module, lambda part: part(sample())) is module
    assert module.conv.weight.is_contiguous()  # type: ignore[union-attr, operator]


def test_modules_without_convolutions_are_not_touched() -> None:
    module = nn.Linear(2, 2)
    assert with_fast_convolutions(module, lambda part: part(torch.ones(1, 2))) is module


def test_modules_without_batch_norm_are_not_traced() -> None:
    """Tracing writes to every class of modules: 8 MB that workers share until then."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3))
    fast = with_fast_convolutions(module, lambda part: part(sample()))
    assert type(fast) is nn.Sequential and fast is not module
