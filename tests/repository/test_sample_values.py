"""Sample values: where they come from, and that profiling and trials use them."""

import io
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from interlace.core.errors import RepositoryError
from interlace.core.model import SampleValue
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats.arrays import given_array
from interlace.repository.draft import read
from interlace.repository.model import complete

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
    with pytest.raises(RepositoryError, match="found a file of 16 bytes: a value has 24"):
        values(tmp_path, config=entry.format(told.replace("[ 2 ]", "[ 3 ]")))
    zeros = "data_type: TYPE_INT64 dims: [ 3 ] zero_data: true"
    assert values(tmp_path, config=entry.format(zeros)) == [0, 0, 0]
    # interlace.toml decides before config.pbtxt
    assert values(tmp_path, "[sample]\nsize = { value = [1] }", entry.format(told)) == [1]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd.bin").write_bytes(b"abc")
    np.save(folder / "floats.npy", np.array([0.5]))
    np.savez(folder / "whole.npz", size=np.array([1, 2]))
    (folder / "cut.npz").write_bytes((folder / "whole.npz").read_bytes()[:-30])
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    header = io.BytesIO()
    told = {"descr": "<i8", "fortran_order": False, "shape": (100_663_296,)}
    np.lib.format.write_array_header_1_0(header, told)
    archive = zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("size.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(12):
            member.write(bytes(64 << 20))
    return folder


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('key: "sizes" value: { data_type: TYPE_INT64 dims: [ 2 ]', "input 'sizes'"),
        ('key: "size" value: { data_type: TYPE_FP32 dims: [ 2 ]', "'size' of TYPE_FP32"),
    ],
)
def test_warm_up_data_is_of_an_input(tmp_path: Path, config: str, reason: str) -> None:
    entry = f'model_warmup [ {{ name: "w" inputs {{ {config} zero_data: true }} }} }} ]'
    with pytest.raises(RepositoryError, match=reason):
        values(tmp_path, config=entry)


@pytest.mark.parametrize(
    ("data", "elements"),
    [
        (b"\x89PNG\r\n rest", [b"\x89PNG\r\n rest"]),
        (b"\x02\0\0\0ab\x01\0\0\0c", [b"ab", b"c"]),
        (b"", [b""]),
    ],
)
def test_bytes_without_lengths_are_one_element(
    tmp_path: Path, data: bytes, elements: list[bytes]
) -> None:
    (tmp_path / "x").write_bytes(data)
    spec = TensorSpec("image", "BYTES", (len(elements),))
    value = SampleValue(file=str(tmp_path / "x"))
    assert given_array(spec, (len(elements),), value).tolist() == elements


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ('{ file = "../secret.npy" }', "a file in the model's own folder"),
        ('{ file = "gone.npy" }', "an array for 'size'"),
        ("{ values = [1] }", "keys values"),
        ("{ value = [[1], [2, 3]] }", "no value"),
        ('{ value = ["a"] }', "found texts; expected values of INT64 for 'size'"),
        ("{ value = [2.7] }", "found fractions; expected values of INT64"),
        ("{ value = [9_223_372_036_854_775_808] }", "9223372036854775808, which it does not hold"),
        ("{ value = [] }", "no value"),
        ('{ file = "odd.bin" }', "a file of 3 bytes: a value has 8"),
        ('{ file = "floats.npy" }', "found fractions"),
        ('{ file = "cut.npz" }', "an array for 'size'"),
        ('{ file = "objects.npy" }', "an array of objects"),
        ('{ file = "bomb.npz" }', "of 805306496 bytes; expected at most 268435456"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_key(
    tmp_path: Path, odd: Path, given: str, reason: str
) -> None:
    shutil.copytree(odd, tmp_path / "m")
    with pytest.raises(RepositoryError, match=reason) as told:
        values(tmp_path, f"[sample]\nsize = {given}")
    assert "interlace.toml:2: sample.size" in str(told.value)


def test_an_array_of_bytes_is_one_element(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(b"")
    (tmp_path / "m/interlace.toml").write_text('[sample]\nimage = { file = "x.npy" }\n')
    np.save(tmp_path / "m/x.npy", np.frombuffer(b"picture", np.uint8))
    spec = TensorSpec("image", "BYTES", (1,))
    said = Signature((spec,), (TensorSpec("y", "FP32", (1,)),), True, 4)
    model = complete(read(tmp_path, "m", 1), said, 0)
    assert given_array(spec, (2, 1), model.values["image"]).ravel().tolist() == [b"picture"] * 2
