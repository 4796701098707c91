"""Files that are none, or hold what nobody can bear: each is an error that names it."""

import json
import os
from pathlib import Path

import pytest

from interlace.core.errors import RepositoryError
from interlace.repository.digest import Digests
from interlace.repository.draft import read
from interlace.repository.folder import scan
from interlace.repository.model_config import parse_json
from tests.repository.folders import add

HUGE = "9" * 5000
TOML = [
    f"slo_ms = {HUGE}",
    f"slo_ms = 0x{'f' * 5000}",
    "a = " + "[" * 5000 + "]" * 5000,
    "a = " + "{b=" * 5000 + "1" + "}" * 5000,
    "priority = 99999999999999999999",
    f"memory_limit = '{HUGE}GB'",
    "memory_limit = 99999999999999999999999",
    f"[sample]\nx = [0x{'f' * 5000}]",
    f"sample = 0x{'f' * 5000}",
    "rate_rps = inf",
    "queue_limit = 9223372036854775808",
    f"memory_limit = 0x{'f' * 5000}",
]
PBTXT = [
    "max_batch_size: 99999999999999999999",
    "max_batch_size: 9223372036854775807",
    f"max_batch_size: {HUGE}",
    "input { name: 'x' data_type: TYPE_FP32 dims: [ 99999999999999999999 ] }",
    "optimization " + "{ a " * 5000 + "}" * 5000,
    "dynamic_batching { default_queue_policy { max_queue_size: 18446744073709551616 } }",
    "parameters { key: 'sample.x' value: { string_value: '" + HUGE + "' } }",
    "parameters { key: 'sample.x' value: { string_value: '²' } }",
    "z" * (1 << 19) + ": 1",
]


def _refused(root: Path) -> str:
    (found,) = scan(root)
    if found.error is not None:
        return found.error
    with pytest.raises(RepositoryError) as refused:
        read(root, "m", 1).provisional()
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(pytest.param("interlace.toml", text, id=f"toml{n}") for n, text in enumerate(TOML)),
        *(pytest.param("config.pbtxt", text, id=f"pbtxt{n}") for n, text in enumerate(PBTXT)),
    ],
)
def test_files_of_a_model(tmp_path: Path, name: str, text: str) -> None:
    add(tmp_path, "m", {"1/model.onnx": "x", name: text})
    error = _refused(tmp_path)
    assert name in error and len(error) < 5000


@pytest.mark.parametrize(
    "text",
    [
        '{"max_batch_size": ' + HUGE + "}",
        '{"max_batch_size": 99999999999999999999}',
        '{"max_batch_size": "' + "9" * 5000 + '"}',
        '{"optimization": ' + "[" * 500 + "]" * 500 + "}",
        '{"optimization": ' + "[" * 100_000 + "]" * 100_000 + "}",
        json.dumps({"optimization": {"x": 1 << 70}}),
    ],
    ids=range(6),
)
def test_a_configuration_in_json(text: str) -> None:
    with pytest.raises(RepositoryError):
        parse_json(text)


@pytest.mark.parametrize("file", ["interlace.toml", "config.pbtxt", "labels.txt", "1/model.onnx"])
@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a folder"])
def test_only_regular_files_are_read(tmp_path: Path, file: str, kind: str) -> None:
    texts = {"1/model.onnx": "x", "interlace.toml": ""}
    texts["config.pbtxt"] = 'output { name: "y" label_filename: "labels.txt" }'
    folder = add(tmp_path, "m", texts | {"labels.txt": "a"})
    (folder / file).unlink()
    if kind == "a FIFO":
        os.mkfifo(folder / file)
    elif kind == "a device":
        (folder / file).symlink_to("/dev/zero")
    elif file == "1/model.onnx":
        os.mkfifo(folder / "1/weights")  # a folder of that name is walked, as any other
        (folder / file).write_text("x")
        kind = "a FIFO"
    else:
        (folder / file).mkdir()
    error = _refused(tmp_path)
    assert kind in error and (file in error or "weights" in error)


def test_folders_in_circles_end(tmp_path: Path) -> None:
    folder = add(tmp_path, "m", {"1/model.onnx": "x"}) / "1"
    for name in ("a", "b", "c"):
        (folder / name).symlink_to(folder)
    with pytest.raises(RepositoryError, match="levels of symbolic links"):
        Digests().of(folder)


def test_a_digest_forgets_what_is_gone(tmp_path: Path) -> None:
    digests = Digests()
    folder = add(tmp_path, "m", {"1/model.onnx": "x", "1/more": "y"}) / "1"
    digests.of(folder)
    (folder / "more").unlink()
    digests.of(folder)
    assert [list(files) for files in digests._known.values()] == [["model.onnx"]]
    digests.forget(tmp_path / "m")
    assert not digests._known
