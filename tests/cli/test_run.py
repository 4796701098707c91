"""`interlace run`: one execution in the foreground, with values from options, files and samples."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from interlace.core.errors import RepositoryError
from interlace.core.user_errors import UserError
from tests.cli.planning import invoke
from tests.formats.making import write_factory
from tests.repository.folders import add

CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        word = pb_utils.get_input_tensor_by_name(requests[0], "WORD").as_numpy()
        extra = pb_utils.get_input_tensor_by_name(requests[0], "EXTRA")
        if word[0, 0] == b"raise":
            raise ValueError("not this word")
        if word[0, 0] == b"refuse":
            return [pb_utils.InferenceResponse([], pb_utils.TritonError("no such word"))]
        said = word if extra is None else word + b"+"
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)])]
"""
CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "EXTRA" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    return add(tmp_path, "words", {"config.pbtxt": CONFIG, "1/model.py": CODE})


run = partial(invoke, "run")


def said(folder: Path, *inputs: str) -> list[str]:
    done = run(folder, "--json", *[part for one in inputs for part in ("--input", one)])
    assert done.exit_code == 0, done.exception
    (output,) = json.loads(done.stdout)["outputs"]
    assert (output["name"], output["datatype"]) == ("SAID", "BYTES")
    assert output["shape"] == [len(output["data"]), 1]
    data: list[str] = output["data"]
    return data


def test_values_come_from_the_option_a_file_or_a_sample(words: Path, tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text('[["a"], ["b"]]')
    (tmp_path / "word.bin").write_bytes(b"raw\xff")
    np.save(tmp_path / "extra.npy", np.ones((1, 2), np.float32))
    assert said(words) == ["interlace"]
    assert said(words, 'WORD="one"') == ["one"]
    assert said(words, 'WORD=["row"]') == ["row"]
    assert said(words, f"WORD=@{tmp_path}/words.json") == ["a", "b"]
    assert said(words, f"WORD=@{tmp_path}/word.bin") == ["raw\\xff"]
    assert said(words, 'WORD="x"', f"EXTRA=@{tmp_path}/extra.npy") == ["x+"]


def test_outputs_are_shown_with_type_and_shape(words: Path) -> None:
    assert run(words, "--input", 'WORD=[["é"]]').stdout == "SAID: BYTES [1, 1]\n[['é']]\n"


def test_an_error_of_the_model_has_its_traceback(
    words: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = run(words, "--input", 'WORD="raise"')
    assert isinstance(done.exception, UserError)
    assert "ValueError: not this word (model.py, line 10)" in str(done.exception)
    shown = done.stderr + capfd.readouterr().err
    assert "Traceback" in shown and 'raise ValueError("not this word")' in shown
    refused = run(words, "--input", 'WORD="refuse"')
    assert str(refused.exception) == "no such word"


@pytest.mark.parametrize(
    ("method", "call", "said"),
    [
        ("execute", "InferenceRequest(model_name='b').exec()", "cannot call 'b'"),
        ("execute", "load_model('b')", "cannot load 'b'"),
        ("initialize", "load_model('b')", "cannot load 'b'"),
    ],
)
def test_calls_of_other_models_need_a_server(
    tmp_path: Path, method: str, call: str, said: str
) -> None:
    added = f"{CODE}\n    def {method}(self, _):\n        pb_utils.{call}\n"
    done = run(add(tmp_path, "m", {"config.pbtxt": CONFIG, "1/model.py": added}))
    assert f"{said}: interlace run opens one model alone; use interlace serve" in str(
        done.exception
    )


@pytest.mark.parametrize("raised", ['{}["weights"]', 'sys.exit("weights")'])
def test_an_error_of_initialize_has_its_line(tmp_path: Path, raised: str) -> None:
    code = f"    def initialize(self, args):\n        import sys\n        {raised}\n"
    added = CODE.replace("    def execute", f"{code}    def execute")
    done = run(add(tmp_path, "m", {"config.pbtxt": CONFIG, "1/model.py": added}))
    wanted = r"\((KeyError|SystemExit): '?weights'? \(model.py, line 8\)\)"
    assert isinstance(done.exception, RepositoryError) and re.search(wanted, str(done.exception))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("WRD=1", "--input WRD: the model takes WORD, EXTRA"),
        ("WORD=one", "--input WORD: Expecting value"),
        ("EXTRA=@none.npy", "--input EXTRA: "),
        ("WORD=@none.json", "--input WORD: none.json"),
        ('WORD=[[["a"]]]', "Expected [-1,1], got [1,1,1]"),
        ("EXTRA=[1, 2, 3]", "Expected [-1,2], got [1,3]"),
    ],
)
def test_a_wrong_value_is_named(words: Path, given: str, error: str) -> None:
    done = run(words, "--input", given)
    assert isinstance(done.exception, UserError) and error in str(done.exception)


def test_a_folder_without_a_model_is_named(words: Path, tmp_path: Path) -> None:
    for folder, version in ((tmp_path / "none", ()), (words, ("--version", "7"))):
        done = run(folder, *version)
        assert isinstance(done.exception, UserError | RepositoryError)
        assert str(folder) in str(done.exception)


def test_a_torch_model_that_describes_itself_runs(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    code = (
        'INPUTS = {"x": ("FP32", (2,))}\n\n\ndef create_model():\n    return torch.nn.Softmax(1)\n'
    )
    write_factory(tmp_path / "net" / "1", "import torch\n\n" + code)
    done = run(tmp_path / "net", "--input", "x=[0, 0]", "--json")
    (output,) = json.loads(done.stdout)["outputs"]
    assert output["shape"] == [1, 2] and output["data"] == [0.5, 0.5]


def test_every_response_of_a_decoupled_model_is_shown(tmp_path: Path) -> None:
    from tests.serve.test_decoupled import CONFIG, MODEL

    add(tmp_path, "said", {"config.pbtxt": CONFIG, "1/model.py": MODEL})
    done = run(tmp_path / "said", "--input", 'WORD=["threads 2"]')
    assert done.stdout.splitlines()[1::2] == ["['threads 0']", "['threads 1']"]


def test_a_model_of_sequences_runs_as_one_of_its_own(tmp_path: Path) -> None:
    from tests.serve.test_sequences import CODE, CONTROLS, TENSORS

    config = f'backend: "python"\n{TENSORS}sequence_batching {{ {CONTROLS} }}'
    add(tmp_path, "sums", {"config.pbtxt": config, "1/model.py": CODE})
    done = run(tmp_path / "sums", "--input", "x=[2.5]", "--json")
    assert json.loads(done.stdout)["outputs"][0]["data"] == [2.5]
