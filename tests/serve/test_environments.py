"""Models of the Python backend with an environment of their own (``EXECUTION_ENV_PATH``)."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from interlace.core.errors import RepositoryError
from interlace.repository.environment import unpacked
from tests.repository.folders import add
from tests.serve.conftest import Start
from tests.serve.server import Server

CODE = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
try:
    import only_here
    said = only_here.SAID
except ImportError:
    said = "not in the environment"
try:
    import onnx
    said += ", with the server's packages"
except ImportError:
    pass

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            word = pb_utils.get_input_tensor_by_name(request, "WORD")
            if word.as_numpy()[0] == b"die":
                sys.modules["os"]._exit(5)
            if word.as_numpy()[0] == b"call":
                word = pb_utils.Tensor("WORD", np.array([b"x"], object))
                call = pb_utils.InferenceRequest(model_name="plain", inputs=[word])
                made.append(call.exec())
            else:
                text = np.array([said], object)
                made.append(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", text)]))
        return made
"""
CONFIG = """backend: "python"
input { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "slo_ms" value: { string_value: "20000" } }
"""
ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "%s" } }\n'


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """An archive with a Python, and a package that the server does not have."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (packages / "only_here.py").write_text("SAID = 'from the environment'")
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for path in folder.iterdir():
            made.add(path, path.name)
    return archive


def ask(server: Server, model: str, said: str = "x") -> str:
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1], "data": [said]}
    _, body = server.call("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
    text = body["outputs"][0]["data"][0] if "outputs" in body else body["error"]
    return str(text)


def test_a_worker_runs_in_the_environment_of_its_model(
    root: Path, start: Start, packed: Path
) -> None:
    path = "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"
    files = {"config.pbtxt": CONFIG + ENVIRONMENT % path, "1/model.py": CODE}
    packed.rename(add(root, "packed", files) / "environment.tar.gz")
    add(root, "plain", {"config.pbtxt": CONFIG, "1/model.py": CODE})
    server = start().wait_ready()
    plain = "not in the environment, with the server's packages"
    assert ask(server, "packed") == "from the environment"
    assert ask(server, "plain") == ask(server, "packed", "call") == plain
    assert "exit code 5" in ask(server, "packed", "die")
    assert ask(server, "packed") == "from the environment"
    assert server.end() == 0


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (
            "no archive",
            "environment: found file could not be opened successfully; expected an arch",
        ),
        (
            "cut",
            "environment: found Compressed file ended before .*; expected an archive of conda-",
        ),
        ("zip", "environment: found a zip archive; expected an archive of conda-pack"),
        ("#!/bin/sh\nexit 3", "expected bin/python that runs here"),
        ("#!/bin/sh\necho '[[3, 8], true]'", "found Python 3.8; expected Python 3"),
    ],
)
def test_what_no_worker_can_run_in_is_refused(tmp_path: Path, made: str, found: str) -> None:
    environment = tmp_path / "environment"
    if made.startswith("#!"):
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").write_text(made)
        (environment / "bin" / "python").chmod(0o755)
    elif made == "cut":
        with tarfile.open(environment, "w:gz") as packed:
            packed.add(__file__, "file")
        environment.write_bytes(environment.read_bytes()[:-200])
    elif made == "zip":
        zipfile.ZipFile(environment, "w").close()
    else:
        environment.write_text(made)
    with pytest.raises(RepositoryError, match=found) as refused:
        unpacked(str(environment), tmp_path / "cache")
    assert "\n" not in str(refused.value)
