"""Repository folders: versions, policies, formats; a broken model keeps no other from serving."""

import os
import re
from pathlib import Path

import pytest

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.repository.folder import ModelFolder, check_name, find_model, read_config, scan
from interlace.repository.model_config import ModelConfig
from tests.repository.folders import add


def test_every_folder_is_found_and_the_broken_ones_say_why(tmp_path: Path) -> None:
    add(tmp_path, "good", {"1/model.onnx": "", "2/model.onnx": "", "notes/x": ""})
    add(tmp_path, "broken", {"config.pbtxt": "nam: 3", "1/model.onnx": ""})
    add(tmp_path, "empty", {})
    add(tmp_path, "other", {"config.pbtxt": 'name: "another"', "1/model.onnx": ""})
    add(tmp_path, ".hidden", {"1/model.onnx": ""})
    (tmp_path / "README.md").write_text("not a model")
    found = {entry.name: entry for entry in scan(tmp_path)}
    assert list(found) == ["broken", "empty", "good", "other"]
    assert found["good"] == ModelFolder("good", (2,))
    assert "config.pbtxt:1: ModelConfig: found field 'nam'" in str(found["broken"].error)
    assert "found no version folder; expected one named 1, 2," in str(found["empty"].error)
    assert "found 'another'; expected 'other', as the folder" in str(found["other"].error)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("m", "found a model: version 1 is in it; expected its parent, {root}"),
        ("m/1", "found net_fp32.onnx in it; expected the model repository, {root}"),
    ],
)
def test_a_part_of_a_repository_is_no_repository(tmp_path: Path, asked: str, words: str) -> None:
    add(tmp_path, "m", {"1/net_fp32.onnx": ""})
    (above,) = (one for one in scan(tmp_path.parent) if one.name == tmp_path.name)
    assert f"serve {tmp_path})" in str(above.error)
    with pytest.raises(RepositoryError, match=re.escape(words.format(root=tmp_path))):
        scan(tmp_path / asked)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        (
            "1/model.onnx",
            b"\n <!DOCTYPE html><html>",
            "model.onnx: found a web page; expected a mod",
        ),
        ("1/model.onnx", b'{"error": "no access"}', "found JSON text"),
        ("1/model.onnx", b"\x1f\x8b\x08\0", "found a gzip file"),
        ("1/model.onnx", b"PK\x03\x04data.pkl", "found a zip archive, as torch writes them"),
        ("1/model.onnx", b'\x10\0\0\0\0\0\0\0{"w":{}}', "found a safetensors file"),
        ("1/model.pt", b"\x80\x02\x8a\nl\xfc", "found a pickle, as torch.save wrote them before"),
        ("1/model.onnx/w.bin", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("config.pbtxt", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ],
)
def test_what_is_plainly_another_file_is_called_so(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    file = tmp_path / "m" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    with pytest.raises(RepositoryError, match=words):
        find_model(tmp_path / "m/1", read_config(tmp_path / "m"))


@pytest.mark.parametrize(
    ("name", "told"), [(b"bad\xff", "bad\\\\udcff"), (b"cr\r\nX: y", "cr\\\\r\\\\nX: y")]
)
def test_a_folder_with_an_odd_name_is_named_in_printable_text(
    tmp_path: Path, name: bytes, told: str
) -> None:
    (tmp_path / os.fsdecode(name) / "1").mkdir(parents=True)
    (found,) = scan(tmp_path)
    assert found.name == told.replace("\\\\", "\\")
    assert "no slash, '#' or control character" in str(found.error)
    assert found.name.encode().isascii()


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("", (10,)),
        ("version_policy { latest { num_versions: 2 } }", (3, 10)),
        ("version_policy { all { } }", (1, 3, 10)),
        ("version_policy { specific { versions: [3, 1] } }", (1, 3)),
        ("version_policy { specific { versions: [3, 4] } }", (3,)),
    ],
)
def test_the_policy_selects(tmp_path: Path, policy: str, wanted: tuple[int, ...]) -> None:
    files = {f"{version}/model.onnx": "" for version in ("1", "3", "10", "02", "x1", "0")}
    add(tmp_path, "m", {**files, "config.pbtxt": policy, "7": "a file"})
    assert scan(tmp_path) == [ModelFolder("m", wanted)]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (
            "specific { versions: [5, 4] }",
            "found version 4, which has no folder; expected some of 1",
        ),
        ("specific { }", "found no version"),
        ("latest { num_versions: 0 }", "found 0; expected at least 1"),
    ],
)
def test_a_wrong_policy_is_named(tmp_path: Path, policy: str, found: str) -> None:
    text = f"version_policy {{ {policy} }}"
    add(tmp_path, "m", {"1/model.onnx": "", "config.pbtxt": text})
    assert found in str(scan(tmp_path)[0].error)


@pytest.mark.parametrize(
    ("files", "config", "wanted"),
    [
        (["model.onnx", "model.onnx.data"], {}, Format.ONNX),
        (["model.pt"], {}, Format.TORCHSCRIPT),
        (["model.pt2"], {"backend": "pytorch"}, Format.EXPORTED),
        (["model.py", "weights.bin"], {}, Format.FACTORY),
        (["config.json", "model.safetensors"], {}, Format.HUGGINGFACE),
        (["config.json", "model-00001-of-00002.safetensors"], {}, Format.HUGGINGFACE),
        (["model.onnx", "model.py"], {"platform": "onnxruntime_onnx"}, Format.ONNX),
        (["model.onnx", "config.json"], {"default_model_filename": "model.onnx"}, Format.ONNX),
    ],
)
def test_the_format_follows_from_the_files(
    tmp_path: Path, files: list[str], config: dict[str, str], wanted: Format
) -> None:
    folder = add(tmp_path, "1", dict.fromkeys(files, ""))
    assert find_model(folder, ModelConfig("c", config)) == (wanted, "")


TRITON = "import triton_python_backend_utils\n\nclass TritonPythonModel:\n    pass\n"


@pytest.mark.parametrize(
    ("files", "config", "wanted"),
    [
        ({"model.py": TRITON}, {}, (Format.PYTHON, "")),
        ({"model.py": TRITON, "model.pt": ""}, {"backend": "python"}, (Format.PYTHON, "")),
        ({"model.py": TRITON + "create_model = 1"}, {}, (Format.PYTHON, "")),
        ({"model.py": "from impl import TritonPythonModel"}, {}, (Format.PYTHON, "")),
        ({"model.py": "def create_model(): TritonPythonModel"}, {}, (Format.FACTORY, "")),
        ({"model.py": "def create_model(): pass"}, {"backend": "python"}, (Format.FACTORY, "")),
        ({"m.py": TRITON}, {"default_model_filename": "m.py"}, (Format.PYTHON, "m.py")),
        ({"m.py": "create_model"}, {"default_model_filename": "m.py"}, (Format.FACTORY, "m.py")),
    ],
)
def test_the_text_of_a_model_py_says_which_of_two_formats_it_is(
    tmp_path: Path, files: dict[str, str], config: dict[str, str], wanted: tuple[Format, str]
) -> None:
    folder = add(tmp_path, "1", files)
    assert find_model(folder, ModelConfig("c", config)) == wanted


def test_a_backend_takes_a_file_of_any_name(tmp_path: Path) -> None:
    folder = add(tmp_path, "1", {"net.ts": ""})
    config = ModelConfig("c", {"default_model_filename": "net.ts", "backend": "pytorch"})
    assert find_model(folder, config) == (Format.TORCHSCRIPT, "net.ts")


@pytest.mark.parametrize(
    ("files", "asked", "wanted"),
    [
        (["net_fp32.onnx", "model.onnx"], "net_fp32.onnx", (Format.ONNX, "net_fp32.onnx")),
        (["net.pt", "config.json", "x.safetensors"], "net.pt", (Format.TORCHSCRIPT, "net.pt")),
        (["model.onnx/model.onnx", "model.onnx/w.bin"], "", (Format.ONNX, "model.onnx/model.onnx")),
        (["net.onnx/model.onnx"], "net.onnx", (Format.ONNX, "net.onnx/model.onnx")),
        (["a/b/net.onnx", "model.onnx"], "a/b/net.onnx", (Format.ONNX, "a/b/net.onnx")),
    ],
)
def test_a_config_names_the_file(
    tmp_path: Path, files: list[str], asked: str, wanted: tuple[Format, str]
) -> None:
    """Triton's ``default_model_filename``; an ONNX model may be a folder with its weights."""
    folder = add(tmp_path, "1", dict.fromkeys(files, ""))
    config = ModelConfig("c", {"default_model_filename": asked} if asked else {})
    assert find_model(folder, config) == wanted


@pytest.mark.parametrize(
    ("files", "config", "message"),
    [
        ([], {}, "found no model file; expected model.onnx, model.pt,"),
        (["resnet.onnx"], {}, "found no model file among resnet.onnx"),
        (["config.json", "pytorch_model.bin"], {}, "whose weights are a pickle"),
        (["model.onnx", "model.pt"], {}, "found several models: onnx, torchscript"),
        (["model.onnx"], {"backend": "pytorch"}, "with a model of onnx; expected torchscript or"),
        (["model.onnx"], {"backend": "tensorrt"}, "a TensorRT plan, .*; expected the ONNX model"),
        (["m.dali"], {"backend": "dali"}, "a DALI pipeline; expected 1/model.py with backend"),
        (["x.json"], {"backend": "fil"}, "found 'fil': .*model.onnx .* as onnxmltools or skl2onnx"),
        (["model.json"], {"backend": "vllm"}, "of vLLM; expected vLLM's own server: vllm serve"),
        (["a.so"], {"backend": "own"}, "or none; export it to 1/model.onnx .* or write 1/model.py"),
        ([], {"backend": "${triton_backend}"}, "expected a value: this file is a template"),
        (["model.plan"], {}, "found a TensorRT plan, .*, and not the ONNX model"),
        (["model.pt"], {"default_model_filename": "net.pt"}, "found 'net.pt', which is not in"),
        (
            ["net.bin"],
            {"default_model_filename": "net.bin"},
            "ends in one of .onnx, .pt, .pt2, .py",
        ),
        ([".x.pt"], {"default_model_filename": ".x.pt"}, "ends in one of"),
        (
            ["a.pt"],
            {"default_model_filename": "../1/a.pt"},
            "found '../1/a.pt'; expected a file of",
        ),
        (["a/b.pt"], {"default_model_filename": "a/../a/b.pt"}, "found 'a/../a/b.pt'; expected a"),
        (["a/.b/c.pt"], {"default_model_filename": "a/.b/c.pt"}, "found 'a/.b/c.pt'; expected a"),
        (["a/b.pt"], {"default_model_filename": "/a/b.pt"}, "found '/a/b.pt'; expected a file of"),
        (["a/b.pt"], {"default_model_filename": "a/c.pt"}, "found 'a/c.pt', which is not in"),
        (["model.pt/data.pkl"], {}, "model.pt: found a folder; expected a file; of ONNX"),
        (["model.onnx/net.onnx"], {}, "model.onnx: found a folder"),
        (["a.onnx"], {"default_model_filename": "a.onnx", "backend": "pytorch"}, "a model of onnx"),
    ],
)
def test_what_is_no_model_is_named(
    tmp_path: Path, files: list[str], config: dict[str, str], message: str
) -> None:
    folder = add(tmp_path, "1", dict.fromkeys(files, ""))
    with pytest.raises(RepositoryError, match=message):
        find_model(folder, ModelConfig("c", config))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\\b", "a\0", "a\nb", "x" * 201])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(RepositoryError, match="model name"):
        check_name(name)


def test_names_of_people_are_taken() -> None:
    for name in ("resnet50", "my model", "ünïcode", "a.b-c_d"):
        check_name(name)


@pytest.mark.parametrize("files", [["1/model.onnx"], ["1/a.onnx", "config.pbtxt"]])
def test_the_folder_of_a_model_is_no_repository(tmp_path: Path, files: list[str]) -> None:
    folder = add(tmp_path, "m", dict.fromkeys(files, ""))
    with pytest.raises(RepositoryError, match=f"found a model: .*expected its parent, {tmp_path}"):
        scan(folder)
    add(tmp_path, "1", {"1/model.onnx": ""})  # a number may name a model
    assert [found.name for found in scan(tmp_path)] == ["1", "m"]


@pytest.mark.parametrize("name", ["model.onnx", "model.pt", "model.onnx.data", "model.safetensors"])
def test_pointers_of_git_lfs_are_named(tmp_path: Path, name: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90000000\n"
    folder = add(tmp_path, "1", {"model.onnx": "graph", "config.json": "{}", name: pointer})
    with pytest.raises(RepositoryError, match=f"{name}: found a Git LFS pointer; .*git lfs pull"):
        find_model(folder, ModelConfig("c", {"backend": "onnxruntime"}))


def test_a_repository_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="found no such file or directory; expected a model"):
        scan(tmp_path / "nowhere")
