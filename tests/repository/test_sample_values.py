"""Sample values: where they come from, and that profiling and trials use them."""

import struct
from pathlib import Path

import numpy as np
import pytest

from interlace.core.errors import RepositoryError
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats.arrays import given_array
from interlace.repository import complete, read

DIMS = TensorSpec("size", "INT64", (-1,))
SIGNATURE = Signature((DIMS,), (TensorSpec("y", "FP32", (-1,)),), False, 1)


def values(root: Path, settings: str = "", config: str = "", spec: TensorSpec = DIMS) -> list[int]:
    folder = root / "m"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1/model.onnx").write_bytes(b"")
    (folder / "interlace.toml").write_text(settings)
    (folder / "config.pbtxt").write_text(config)
    model = complete(read(root, "m", 1), SIGNATURE, 0)
    shape = model.sample["size"]
    found: list[int] = given_array(spec, shape, model.values["size"]).tolist()
    return found


def test_a_literal_gives_values_and_sizes(tmp_path: Path) -> None:
    assert values(tmp_path, "[sample]\nsize = { value = [3, 5, 7] }") == [3, 5, 7]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.bin"])
def test_a_file_gives_values(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    file, array = tmp_path / "m" / name, np.array([4, 2], np.int64)
    sizes = ""
    if name == "x.npy":
        np.save(file, array)
    elif name == "x.npz":
        np.savez(file, size=array)
    else:
        file.write_bytes(array.tobytes())
        sizes = 'parameters { key: "sample.size" value: { string_value: "2" } }'
    assert values(tmp_path, f'[sample]\nsize = {{ file = "{name}" }}', sizes) == [4, 2]


def test_warm_up_data_gives_values(tmp_path: Path) -> None:
    (tmp_path / "m/warmup").mkdir(parents=True)
    (tmp_path / "m/warmup/size.bin").write_bytes(struct.pack("<2q", 8, 9))
    entry = 'model_warmup [ {{ name: "w" inputs {{ key: "size" value: {{ {} }} }} }} ]'
    told = 'data_type: TYPE_INT64 dims: [ 2 ] input_data_file: "size.bin"'
    assert values(tmp_path, config=entry.format(told)) == [8, 9]
    zeros = "data_type: TYPE_INT64 dims: [ 3 ] zero_data: true"
    assert values(tmp_path, config=entry.format(zeros)) == [0, 0, 0]
    # interlace.toml decides before config.pbtxt
    assert values(tmp_path, "[sample]\nsize = { value = [1] }", entry.format(told)) == [1]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ('{ file = "../secret.npy" }', "a file in the model's own folder"),
        ('{ file = "gone.npy" }', "an array for 'size'"),
        ("{ values = [1] }", "keys values"),
        ("{ value = [[1], [2, 3]] }", "no value"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_key(tmp_path: Path, given: str, reason: str) -> None:
    with pytest.raises(RepositoryError, match=reason) as told:
        values(tmp_path, f"[sample]\nsize = {given}")
    assert "interlace.toml:2: sample.size" in str(told.value)
