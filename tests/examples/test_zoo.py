"""The models are what their names say: parameters, work, shapes, and a repository to serve."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from interlace.apps.graph import read_ensemble
from interlace.core.model import Format
from interlace.formats.model_file import execute_file
from interlace.repository.digest import Digests
from interlace.repository.draft import read
from interlace.repository.folder import scan

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
#: Parameters, and 10^9 multiplications for one row, of torchvision's tables of models.
CONVOLUTIONAL = {
    "alexnet": (61_100_840, 0.71),
    "densenet121": (7_978_856, 2.83),
    "inception_v3": (23_834_568, 5.71),
    "lenet": (61_706, 0.0),
    "mobilenet_v2": (3_504_872, 0.30),
    "resnet18": (11_689_512, 1.81),
    "resnet50": (25_557_032, 4.09),
    "resnext50": (25_028_904, 4.23),
    "vgg19": (143_667_240, 19.63),
}
#: Parameters as transformers counts those of the published weights.
LANGUAGE = {"bert_base": 109_482_240, "gpt2": 124_439_808}


@cache
def code(name: str) -> Any:
    return execute_file(ZOO / name / "1" / "model.py", f"zoo_{name}")


def parameters(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def inputs(name: str, rows: int) -> list[torch.Tensor]:
    types = {"FP32": torch.float32, "INT64": torch.int64}
    declared = code(name).INPUTS.values()
    return [torch.ones((rows, *dims), dtype=types[datatype]) for datatype, dims in declared]


def check_shape(name: str, result: torch.Tensor, rows: int) -> None:
    [(datatype, dims)] = code(name).OUTPUTS.values()
    assert datatype == "FP32"
    assert result.shape == (rows, *dims)
    assert result.dtype == torch.float32


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutional_networks_have_the_published_size_and_work(name: str) -> None:
    count, billions = CONVOLUTIONAL[name]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module = code(name).create_model().eval()
        check_shape(name, module(*inputs(name, 2)), 2)
    assert parameters(module) == count
    assert counter.get_total_flops() / 2 / 2 / 1e9 == pytest.approx(billions, abs=0.0051)


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_have_the_published_size(name: str) -> None:
    with FakeTensorMode(), torch.no_grad():
        module = code(name).create_model().eval()
        check_shape(name, module(*inputs(name, 2)), 2)
    assert parameters(module) == LANGUAGE[name]


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_what_comes_out_follows_what_goes_in(name: str) -> None:
    # With weights that make activations die away, any precision would look exact.
    module = code(name).create_model().eval()
    with torch.no_grad():
        first, second = module(
            torch.rand(2, 3, 224, 224) * torch.tensor([1.0, 2.0])[:, None, None, None]
        )
    assert torch.isfinite(first).all()
    assert (first - second).std() > 0.01 * first.std()


def test_the_same_weights_come_every_time() -> None:
    first, second = (code("mobilenet_v2").create_model().state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_it_is_a_repository_of_models_and_apps_that_all_say_what_they_promise() -> None:
    drafts = {one.name: read(ZOO, one.name, 1, digests=Digests()) for one in scan(ZOO)}
    apps = {name for name, one in drafts.items() if one.format is Format.ENSEMBLE}
    assert apps == {"game", "traffic", "recog"}
    assert drafts.keys() - apps == {*CONVOLUTIONAL, *LANGUAGE, "crops"}
    assert all(draft.settings.slo_ms is not None for draft in drafts.values())
    for name in apps:
        members = read_ensemble(drafts[name]).members
        assert {drafts[one].format for one in members} == {Format.FACTORY}


@pytest.mark.parametrize("best", [0, 1, 5, 8])
def test_a_picture_holds_as_many_people_and_cars_as_its_scores_say(best: int) -> None:
    scores = torch.zeros(1000)
    scores[best] = 1.0
    found = code("crops").create_model()(torch.rand(3, 224, 224), scores)
    shapes = {name: tuple(crops.shape) for name, crops in found.items()}
    assert shapes == {"people": (best % 3, 3, 224, 224), "cars": (best // 3 % 3, 3, 224, 224)}


def test_a_change_of_shared_blocks_is_a_change_of_every_model_that_has_them(tmp_path: Path) -> None:
    blocks = tmp_path / "resnet50" / "1"
    linked = tmp_path / "resnet18" / "1"
    for folder in (blocks, linked):
        folder.mkdir(parents=True)
    (blocks / "residual.py").write_text("a = 1\n")
    (linked / "residual.py").symlink_to("../../resnet50/1/residual.py")
    before = Digests().of(linked)
    (blocks / "residual.py").write_text("a = 2\n")
    assert Digests().of(linked) != before
    for name in ("resnet18", "resnext50"):
        assert (ZOO / name / "1" / "residual.py").resolve() == ZOO / "resnet50/1/residual.py"
