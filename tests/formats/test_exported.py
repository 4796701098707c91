"""Exported programs: they describe themselves; archives with pickles or code are refused."""

import io
import json
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


class Evil:
    """Unpickled, it would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def rewritten(source: Path, target: Path, changes: dict[str, bytes]) -> Path:
    """The archive with some entries replaced or added."""
    target.mkdir()
    with (
        zipfile.ZipFile(source / "model.pt2") as old,
        zipfile.ZipFile(target / "model.pt2", "w") as new,
    ):
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            new.writestr(name, changes.pop(name.partition("/")[2], None) or old.read(name))
        for name, content in changes.items():
            new.writestr(f"{root}/{name}", content)
    return target


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_pickles_and_compiled_code_are_refused(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with zipfile.ZipFile(folder / "model.pt2") as archive:
        name = next(n for n in archive.namelist() if n.endswith("model_weights_config.json"))
        config = json.loads(archive.read(name))
    config["config"]["layer.weight"]["use_pickle"] = True
    evil = pickled(Evil(mark))
    cases = {
        "sample inputs that are more": {"data/sample_inputs/model.pt": evil},
        "'layer.weight' stored as a pickle": {
            "data/weights/model_weights_config.json": json.dumps(config).encode(),
            "data/weights/weight_0": evil,
        },
        r"a pickle \(.*data/weights/model.pt\)": {"data/weights/model.pt": evil},
        r"a pickle \(.*opaque_obj_0\)": {"data/constants/opaque_obj_0": evil},
        "compiled code": {"data/aotinductor/model/model.so": b"ELF"},
    }
    for place, (message, changes) in enumerate(cases.items()):
        broken = rewritten(folder, tmp_path / str(place), dict(changes))
        with pytest.raises(RepositoryError, match=message):
            open_model(a_model(Format.EXPORTED, broken), 1, None)
    assert not mark.exists()


def test_something_else_is_no_archive(tmp_path: Path) -> None:
    for name, content in (("text", b"no archive"), ("empty", b"")):
        other = tmp_path / name
        other.mkdir()
        (other / "model.pt2").write_bytes(content)
        with pytest.raises(RepositoryError, match=r"expected a \.pt2 archive"):
            open_model(a_model(Format.EXPORTED, other), 1, None)
