"""Exported programs: they describe themselves; archives that would fill memory are refused."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.core.tensor import TensorSpec
from interlace.formats import open_model
from tests.formats.making import Net, a_model, write_exported


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch = torch.export.Dim("batch", min=1, max=16)
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    return write_exported(
        tmp_path_factory.mktemp("pt2") / "net",
        Net(),
        (torch.randn(2, 8),),
        kwargs={"mask": torch.ones(2, 8)},
        dynamic_shapes=shapes,
    )


def test_everything_is_read_from_the_program(folder: Path) -> None:
    signature = open_model(a_model(Format.EXPORTED, folder), 1, None).signature
    assert signature.inputs == (TensorSpec("x", "FP32", (8,)), TensorSpec("mask", "FP32", (8,)))
    assert signature.outputs == (TensorSpec("y", "FP32", (8,)), TensorSpec("sum", "FP32", ()))
    assert signature.batched
    assert signature.max_batch == 16


def test_a_free_dim_without_a_limit_means_batches_of_any_size(tmp_path: Path) -> None:
    shapes = [{0: torch.export.Dim("rows")}]
    layer = torch.nn.Sequential(torch.nn.Linear(4, 2))
    folder = write_exported(tmp_path / "net", layer, (torch.ones(2, 4),), dynamic_shapes=shapes)
    signature = open_model(a_model(Format.EXPORTED, folder), 1, None).signature
    assert (signature.batched, signature.max_batch) == (True, 0)


def test_fixed_shapes_mean_no_batches(tmp_path: Path) -> None:
    arguments = torch.randn(2, 8), torch.ones(2, 8)
    fixed = write_exported(tmp_path / "fixed", Net(), arguments)
    signature = open_model(a_model(Format.EXPORTED, fixed), 1, None).signature
    assert not signature.batched
    assert signature.inputs[0].dims == (2, 8)


def test_results_are_the_modules_and_those_of_shared_weights(folder: Path, tmp_path: Path) -> None:
    model = a_model(Format.EXPORTED, folder)
    private, shared = (open_model(model, 1, where) for where in (None, str(tmp_path)))
    assert shared.shared_bytes == shared.resident_bytes > 0
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal((5, 8), np.float32) for name in ("x", "mask")}
    with torch.no_grad():
        wanted = Net().eval()(torch.from_numpy(inputs["x"]), torch.from_numpy(inputs["mask"]))
    assert np.allclose(private.run(inputs)["y"], wanted["y"].numpy(), atol=1e-6)
    assert np.allclose(private.run(inputs)["y"], shared.run(inputs)["y"], atol=1e-5)


@pytest.mark.parametrize(
    ("form", "file"), [(Format.EXPORTED, "model.pt2"), (Format.TORCHSCRIPT, "model.pt")]
)
def test_an_archive_that_unpacks_to_far_more_is_refused_before_it_is(
    form: Format, file: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("m/data/weights/weight_0", bytes(80_000_000))
    assert (tmp_path / file).stat().st_size < 1_000_000
    with pytest.raises(RepositoryError, match="unpacks to 80 MB; expected 67 MB at most"):
        open_model(a_model(form, tmp_path), 1, None)


def test_something_else_is_no_archive(tmp_path: Path) -> None:
    for name, content in (("text", b"no archive"), ("empty", b"")):
        other = tmp_path / name
        other.mkdir()
        (other / "model.pt2").write_bytes(content)
        with pytest.raises(RepositoryError, match=r"expected an archive"):
            open_model(a_model(Format.EXPORTED, other), 1, None)
