"""Models of one architecture take turns with one module; whatever differs else keeps them apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from bench.cold.variants import variants
from interlace.core.model import Format, Model
from interlace.formats import open_model, shared_architecture
from interlace.formats.runner import ModelRunner, TakesTurns
from interlace.repository.draft import read
from interlace.repository.model import complete
from tests.formats.making import a_model, write_factory

WIDTH = 6
X = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
CODE = """
import torch
from pathlib import Path
INPUTS = {{"x": ("FP32", ({width},))}}
HERE = Path(__file__).parent
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear({width}, {width})
        {state}
    def forward(self, x):
        {each}
        return self.part(x) {then}
def create_model():
    from safetensors.torch import load_file
    net = Net()
    net.load_state_dict(load_file(HERE / "weights.safetensors"), strict=False)
    return net
{more}
"""


SEEN = "self.register_buffer('seen', torch.zeros(()))"


def factory(folder: Path, number: int, said: str, parts: dict[str, str]) -> Model:
    """A model of weights of its own, with a text beside it that its code may read."""
    filled = {"width": WIDTH, "state": "", "each": "", "then": "", "more": ""} | parts
    folder.parent.mkdir(exist_ok=True)
    code = write_factory(folder, CODE.format(**filled))
    import torch

    made = torch.Generator().manual_seed(number)
    weights = {"part.weight": torch.randn((WIDTH, WIDTH), generator=made)}
    save_file(weights | {"part.bias": torch.zeros(WIDTH)}, code / "weights.safetensors")
    (code / "told.txt").write_text(said)
    return replace(a_model(Format.FACTORY, code), digest=f"{folder.name}{number}" * 4)


def two(folder: Path, said: tuple[str, str], **parts: str) -> list[tuple[Model, ModelRunner]]:
    found = []
    for number, text in enumerate(said):
        model = factory(folder / f"m{number}", number, text, parts)
        runner = open_model(model, 1, str(folder / "weights"))
        found.append((replace(model, signature=runner.signature), runner))
    return found


def keys(models: list[tuple[Model, ModelRunner]]) -> list[str]:
    return [runner.architecture for _, runner in models if isinstance(runner, TakesTurns)]


def test_those_that_differ_in_weights_alone_take_turns(tmp_path: Path) -> None:
    """Each gives its own answers, to the bit, whoever ran before it."""
    models = two(tmp_path, ("1", "1"))
    (first, second), own = models, [runner.run({"x": X}) for _, runner in models]
    assert keys(models)[0] == keys(models)[1] != ""
    lead = first[1]
    assert isinstance(lead, TakesTurns)
    other = lead.of_another(second[0], str(tmp_path / "weights"))
    for _ in range(3):
        for runner, values in ((other, own[1]), (lead, own[0])):
            got = runner.run({"x": X})
            assert {k: v.tolist() for k, v in got.items()} == {
                k: v.tolist() for k, v in values.items()
            }
    lead.close()
    assert other.run({"x": X})["OUTPUT__0"].tolist() == own[1]["OUTPUT__0"].tolist()
    other.close()


def test_whose_file_was_cut_short_has_no_answer_and_not_anothers(tmp_path: Path) -> None:
    """However often it is asked; the others go on, and once its file is whole it does."""
    models = two(tmp_path, ("1", "1"))
    (_, lead), (model, alone) = models
    assert isinstance(lead, TakesTurns)
    own, right = (runner.run({"x": X})["OUTPUT__0"].tolist() for runner in (lead, alone))
    folder = tmp_path / "weights"
    (file,) = folder.glob(f"{model.digest}-*")
    whole = file.read_bytes()
    other = lead.of_another(model, str(folder))
    file.write_bytes(whole[:-40])
    with pytest.raises(ValueError, match="it is damaged"):
        lead.of_another(model, str(folder))
    for _ in range(3):
        with pytest.raises(ValueError, match="it is not the file that was written"):
            other.run({"x": X})
        assert other.cold is not None
        other.cold.leave(range(2))  # what was said of it is no end of its process
    assert lead.run({"x": X})["OUTPUT__0"].tolist() == own
    assert shared_architecture(model, str(folder)) != lead.architecture
    again = open_model(model, 1, str(folder))  # lays it out anew
    assert file.read_bytes() == whole
    for runner in (again, other):
        assert runner.run({"x": X})["OUTPUT__0"].tolist() == right


@pytest.mark.parametrize(
    "parts",
    [
        {"state": "self.scale = float((HERE / 'told.txt').read_text())", "then": "* self.scale"},
        {"more": "SCALE = float((HERE / 'told.txt').read_text())", "then": "* SCALE"},
        {
            "state": "self.scales = [float((HERE / 'told.txt').read_text())]",
            "then": "* self.scales[0]",
        },
    ],
    ids=["attribute", "global", "container"],
)
def test_those_that_differ_in_more_do_not(tmp_path: Path, parts: dict[str, str]) -> None:
    same, other = (
        two(tmp_path / "same", ("2", "2"), **parts),
        two(tmp_path / "other", ("2", "3"), **parts),
    )
    assert keys(same)[0] == keys(same)[1] != ""
    assert keys(other)[0] != keys(other)[1]


@pytest.mark.parametrize(
    "parts",
    [
        {
            "state": "k = len((HERE / 'told.txt').read_text()); self.act = lambda y: y * k",
            "then": "* 1",
        },
        {"state": "self.calls = 0", "each": "self.calls += 1"},
        {"state": "self.register_buffer('seen', torch.zeros(()))", "each": "self.seen += 1"},
        {
            "state": "self.register_buffer('seen', torch.zeros(()))",
            "each": "self.seen = self.seen + 1",
        },
        {
            "each": "self.memo = getattr(self, 'memo', self.part.weight.sum())",
            "then": "+ self.memo",
        },
        {"state": "self.list = [torch.ones(1)]", "then": "* self.list[0]"},
    ],
    ids=[
        "closure",
        "count",
        "written buffer",
        "replaced buffer",
        "memo of weights",
        "hidden tensor",
    ],
)
def test_what_cannot_be_told_apart_stays_alone(tmp_path: Path, parts: dict[str, str]) -> None:
    models = two(tmp_path, ("1", "1"), **parts)
    assert keys(models) == ["", ""]
    (model, runner), _ = models
    assert isinstance(runner, TakesTurns)
    with pytest.raises(ValueError, match="cannot take turns"):
        runner.of_another(model, str(tmp_path / "weights"))


def test_variants_of_transformers_and_of_factories(tmp_path: Path) -> None:
    variants(tmp_path / "models", 4, hidden=32)
    weights = str(tmp_path / "weights")
    found: dict[str, list[int]] = {}
    for number in range(4):
        draft = read(tmp_path / "models", f"v{number:04d}", 1)
        runner = open_model(draft.provisional(), 1, weights)
        model = complete(draft, runner.signature, 0)
        found.setdefault(shared_architecture(model, weights), []).append(number)
    assert "" not in found
    assert sorted(found.values()) == [[0, 2], [1, 3]]


def test_nothing_is_known_before_weights_are_laid_out(tmp_path: Path) -> None:
    model = factory(tmp_path / "m", 0, "1", {})
    assert shared_architecture(model, str(tmp_path / "weights")) == ""
    assert shared_architecture(model, None) == ""
    assert shared_architecture(replace(model, format=Format.ONNX), str(tmp_path)) == ""
