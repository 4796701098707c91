"""Models of Triton's Python backend: what their code is given, and what becomes of its answers."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.metric_change import MetricChange
from interlace.core.model import STREAM_SLO_MS
from interlace.core.request import CallContext
from interlace.core.tensor import TensorSpec
from interlace.formats import open_model, open_torch, shared_architecture
from interlace.formats.python_backend import api, metrics, readiness
from interlace.formats.python_backend import runner as python_runner
from interlace.formats.python_backend.calls import CallHook, api_module
from interlace.formats.python_backend.open_responses import ResponseState
from interlace.formats.python_backend.own_modules import OwnModules
from interlace.formats.python_backend.runner import PythonRunner
from interlace.formats.runner import Answer, Array, ModelResponse, RequestInputs, TypedArray
from interlace.repository.draft import read
from interlace.repository.model import complete
from tests.repository.folders import add

HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

def given(request, name):
    return pb_utils.get_input_tensor_by_name(request, name)

def answer(**outputs):
    return pb_utils.InferenceResponse([pb_utils.Tensor(n, v) for n, v in outputs.items()])

"""
MODEL = HEAD + "class TritonPythonModel:\n"
CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] },
        { name: "extra" data_type: TYPE_FP32 dims: [ 1 ] optional: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] },
         { name: "n" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }\n"
DOUBLE = """
    def execute(self, requests):
        n = np.ones((1, 1), np.int64)
        return [answer(y=given(r, "x").as_numpy() * 2, n=n) for r in requests]
"""
TEXTS = """backend: "python"
input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


def opened(
    root: Path,
    body: str,
    config: str = CONFIG,
    name: str = "m",
    files: Mapping[str, str] = {},
) -> PythonRunner:
    """A model whose class has this body, opened as the server opens it."""
    add(root, name, {"config.pbtxt": config, "1/model.py": MODEL + body, **files})
    draft = read(root, name, 1)
    first = open_model(draft.provisional(), 1, None)
    deployed = complete(draft, first.signature, 0)
    first.close()
    runner = open_model(deployed, 1, None)
    assert isinstance(runner, PythonRunner)
    return runner


def floats(*values: float) -> RequestInputs:
    return RequestInputs({"x": np.array([values], np.float32)})


def words(*values: bytes) -> RequestInputs:
    return RequestInputs({"x": np.array(values, object)})


def outputs(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, ModelResponse), answer
    return {name: value.array.tolist() for name, value in answer.outputs.items()}


def failure(answer: Answer) -> ServeError:
    assert isinstance(answer, ServeError), answer
    return answer


def test_each_request_has_its_own_answer(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        made = []
        for place, request in enumerate(requests):
            y = np.repeat(given(request, "x").as_numpy(), place + 1, axis=1)
            made.append(answer(y=y, n=np.array([[len(requests)]])))
        return made
"""
    runner = opened(tmp_path, body)
    first, second = runner.run_requests([floats(1, 2), floats(3, 4)])
    assert outputs(first) == {"y": [[1, 2]], "n": [[2]]}
    assert outputs(second) == {"y": [[3, 3, 4, 4]], "n": [[2]]}


def test_only_wanted_outputs_are_kept(tmp_path: Path) -> None:
    (answer,) = opened(tmp_path, DOUBLE).run_requests([floats(1, 2)._replace(outputs=("n",))])
    assert outputs(answer) == {"n": [[1]]}


def test_samples_run_as_one_request_per_row(tmp_path: Path) -> None:
    array = np.array([[1, 2], [3, 4]], np.float32)
    body = DOUBLE.replace("np.ones((1, 1), np.int64)", "np.array([[len(requests)]])")
    found = opened(tmp_path, body).run({"x": array})
    assert found["y"].tolist() == [[2, 4]] and found["n"].tolist() == [[2]]


def test_an_absent_optional_input_is_none(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        extra = [given(r, "extra") for r in requests]
        values = [-1 if one is None else int(one.as_numpy()[0, 0]) for one in extra]
        return [answer(n=np.array([[value]])) for value in values]
"""
    runner = opened(tmp_path, body)
    plain = floats(1, 2)
    full = RequestInputs({**plain.inputs, "extra": np.array([[7]], np.float32)})
    assert [outputs(one) for one in runner.run_requests([plain, full])] == [
        {"n": [[-1]]},
        {"n": [[7]]},
    ]


def test_inputs_may_be_written_to_and_results_need_not_be_contiguous(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        x = given(requests[0], "x").as_numpy()
        x += 1
        return [answer(y=x[:, ::-1])]
"""
    array = np.array([[1, 2]], np.float32)
    array.flags.writeable = False
    (answer,) = opened(tmp_path, body).run_requests([RequestInputs({"x": array})])
    assert outputs(answer) == {"y": [[3, 2]]} and array.tolist() == [[1, 2]]
    assert isinstance(answer, ModelResponse) and answer.outputs["y"].array.flags.c_contiguous


def test_an_input_is_not_read_after_its_request_has_ended(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        kept.append(given(requests[0], "x"))
        if len(kept) % 2 == 0:
            kept[-1].as_numpy()
        return [pb_utils.InferenceResponse([])]
"""
    runner = opened(tmp_path, "    global kept\n    kept = []\n" + body)
    array = np.array([[1, 2]], np.float32)
    array.flags.writeable = False
    for _ in range(2):
        runner.run_requests([RequestInputs({"x": array})])
    unread, read = sys.modules[type(runner._model).__module__].kept
    assert read.as_numpy().tolist() == [[1, 2]]
    with pytest.raises(api.TritonModelException, match="'x' is read after its request has ended"):
        unread.as_numpy()


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("x", [b"a\0\0", b"\xff"]),
        ("np.array([t.upper() for t in x], dtype=object)", [b"A\0\0", b"\xff"]),
        ("np.array(['caf\\u00e9', 'b'])", ["café".encode(), b"b"]),
        ("np.array([b'ab', b'c'])", [b"ab", b"c"]),
    ],
)
def test_strings_are_arrays_of_bytes(tmp_path: Path, made: str, found: list[bytes]) -> None:
    body = f"""
    def execute(self, requests):
        x = given(requests[0], "x").as_numpy()
        return [answer(y={made})]
"""
    (answer,) = opened(tmp_path, body, TEXTS).run_requests([words(b"a\0\0", b"\xff")])
    assert outputs(answer) == {"y": found}


def test_a_model_is_told_about_itself_as_in_triton(tmp_path: Path) -> None:
    body = (
        """
    def initialize(self, args):
        assert all(isinstance(value, str) for value in args.values()), args
        config = json.loads(args["model_config"])
        n = pb_utils.get_output_config_by_name(config, "n")
        assert pb_utils.get_input_config_by_name(config, "none") is None
        assert pb_utils.triton_string_to_numpy(n["data_type"]) is np.int64
        assert n["dims"] == [1] and config["max_batch_size"] == 8
        assert not pb_utils.using_decoupled_model_transaction_policy(config)
        assert config["parameters"]["mode"]["string_value"] == "fast"
        with open(args["model_repository"] + "/args.json", "w") as file:
            json.dump(args, file)
"""
        + DOUBLE
    )
    config = CONFIG + 'parameters { key: "mode" value: { string_value: "fast" } }\n'
    opened(tmp_path, body, config)
    args = json.loads((tmp_path / "m" / "args.json").read_text())
    assert args.pop("model_config")
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path / "m"),
        "model_version": "1",
        "model_name": "m",
    }


def test_a_request_tells_what_its_client_said(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        return [answer(y=np.array([r.request_id(), str(r.correlation_id()), r.parameters(),
            *r.requested_output_names(), *[t.name() for t in r.inputs()]])) for r in requests]
"""
    asked = words(b"a")._replace(context=CallContext("7", '{"sequence_id": 3, "top": 5}'))
    first, second = opened(tmp_path, body, TEXTS).run_requests([asked, words(b"b")])
    assert outputs(first) == {"y": [b"7", b"3", b'{"top":5}', b"y", b"x"]}
    assert outputs(second) == {"y": [b"", b"0", b"{}", b"y", b"x"]}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", Reason.BACKEND),
        (", pb_utils.TritonError.INTERNAL", Reason.BACKEND),
        (", pb_utils.TritonError.NOT_FOUND", Reason.NOT_FOUND),
        (", pb_utils.TritonError.UNAVAILABLE", Reason.NOT_READY),
        (", pb_utils.TritonError.UNSUPPORTED", Reason.UNSUPPORTED),
        (", pb_utils.TritonError.CANCELLED", Reason.CANCELLED),
        (", pb_utils.TritonError.INVALID_ARG", Reason.BAD_INPUT),
        (", pb_utils.TritonError.ALREADY_EXISTS", Reason.ALREADY_EXISTS),
        (", pb_utils.TritonError.UNKNOWN", Reason.UNKNOWN),
    ],
)
def test_one_request_of_a_batch_may_fail(tmp_path: Path, code: str, reason: Reason) -> None:
    body = f"""
    def execute(self, requests):
        error = pb_utils.TritonError("no way"{code})
        bad = pb_utils.InferenceResponse(output_tensors=[], error=error)
        return [bad, *[answer(y=given(r, "x").as_numpy()) for r in requests[1:]]]
"""
    bad, good = opened(tmp_path, body).run_requests([floats(1, 2), floats(3, 4)])
    assert failure(bad) == ServeError(reason, "no way")
    assert outputs(good) == {"y": [[3, 4]]}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            "None",
            "Expected a list in the execute return, found type '<class 'NoneType'>'.",
        ),
        (
            "made[1:]",
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            "objects. InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1",
        ),
        (
            "[made[0], 7]",
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            "type '<class 'int'>'.",
        ),
    ],
)
def test_a_wrong_list_fails_a_lone_request_and_has_others_tried_alone(
    tmp_path: Path, returned: str, said: str
) -> None:
    body = f"""
    def execute(self, requests):
        made = [answer(y=given(r, "x").as_numpy()) for r in requests]
        return {returned}
"""
    runner = opened(tmp_path, body)
    text = f"Failed to process the request(s) for model 'm', message: {said}"
    with pytest.raises(api.TritonModelException) as raised:
        runner.run_requests([floats(1, 2), floats(3, 4)])
    assert str(raised.value) == text
    if returned == "None":
        (lone,) = runner.run_requests([floats(1, 2)])
        assert failure(lone) == ServeError(Reason.BACKEND, text)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("raise ValueError('no such word')", "ValueError: no such word (model.py, line 16)"),
        ("raise pb_utils.TritonModelException('no')", "TritonModelException: no (model.py"),
        ("__import__('sys').exit(3)", "SystemExit: 3 (model.py"),
        ("pb_utils.InferenceRequest(model_name='b').exec()", "BLS is supported only during the 'e"),
        ("pb_utils.InferenceRequest(inputs=[])", "InferenceRequest: expected model_name"),
        ("pb_utils.InferenceRequest(model_name=7)", "model_name: expected a str, got int"),
        (
            "pb_utils.InferenceRequest(model_name='b', timeout=0.5)",
            "timeout: expected an int, got float",
        ),
        ("pb_utils.Tensor('y', [1])", "tensor 'y': expected a numpy array, got list"),
        ("pb_utils.Tensor('y', np.zeros(1, complex))", "numpy type complex128 has no datatype"),
        ("pb_utils.InferenceResponse([np.zeros(1)])", "expected pb_utils.Tensor, got ndarray"),
    ],
)
def test_an_exception_fails_a_lone_request_and_has_others_tried_alone(
    tmp_path: Path, raised: str, said: str
) -> None:
    body = f"""
    def execute(self, requests):
        if any(given(r, "x").as_numpy().max() > 5 for r in requests):
            {raised}
        return [answer(y=given(r, "x").as_numpy()) for r in requests]
"""
    runner = opened(tmp_path, body)
    (failed,) = runner.run_requests([floats(1, 9)])
    assert failure(failed).reason is Reason.BACKEND
    assert failure(failed).detail.startswith("Failed to process the request(s) for model 'm', mess")
    assert said in failure(failed).detail
    with pytest.raises(api.TritonModelException, match="Failed to process"):
        runner.run_requests([floats(1, 2), floats(1, 9)])
    assert outputs(runner.run_requests([floats(1, 2)])[0]) == {"y": [[1, 2]]}


def test_an_output_that_is_not_configured_fails_its_request(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        return [answer(z=given(r, "x").as_numpy()) for r in requests]
"""
    (failed,) = opened(tmp_path, body).run_requests([floats(1, 2)])
    assert failure(failed).detail == "unexpected inference output 'z' for model 'm'"


def test_reshape_shows_the_model_its_own_shapes(tmp_path: Path) -> None:
    config = """backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
"""
    body = """
    def execute(self, requests):
        assert [r.inputs()[0].shape() for r in requests] == [[1]] * len(requests)
        return [answer(y=given(r, "x").as_numpy()) for r in requests]
"""
    runner = opened(tmp_path, body, config)
    (answer,) = runner.run_requests([RequestInputs({"x": np.array([[4]], np.float32)})])
    assert outputs(answer) == {"y": [[4]]}


def test_execute_may_be_a_coroutine(tmp_path: Path) -> None:
    runner = opened(tmp_path, DOUBLE.replace("def execute", "async def execute"))
    for _ in range(2):
        assert outputs(runner.run_requests([floats(1, 2)])[0])["y"] == [[2, 4]]
    runner.close()


@pytest.mark.parametrize("config", [CONFIG, DECOUPLED])
def test_tasks_may_respond_after_execute_returned(config: str, tmp_path: Path) -> None:
    body = """
    async def execute(self, requests):
        import asyncio
        self.tasks = [asyncio.create_task(self.respond(one)) for one in requests]

    async def respond(self, request):
        import asyncio
        sender = request.get_response_sender()
        await asyncio.sleep(0.01)
        response = answer(y=given(request, "x").as_numpy(), n=np.ones((1, 1), np.int64))
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    heard: list[Answer | None] = []
    asked = floats(1, 2)._replace(respond=lambda answer, final: heard.append(answer))
    runner = opened(tmp_path, body, config)
    for _ in range(2):
        heard += runner.run_requests([asked])
    assert [given["y"] for one in heard if one and (given := outputs(one))] == [[[1, 2]]] * 2
    runner.close()


def test_an_exception_that_nobody_receives_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        raise ValueError("too late")
"""
    runner = opened(tmp_path, body, DECOUPLED)
    asked = floats(1, 2)._replace(respond=lambda answer, final: None)
    assert outputs(runner.run_requests([asked])[0]) == {}
    assert "ValueError: too late" in caplog.messages[-1]


def test_finalize_is_called_once_at_the_end(tmp_path: Path) -> None:
    body = (
        DOUBLE
        + """
    def finalize(self):
        import pathlib
        file = pathlib.Path(__file__).with_name("ended.txt")
        file.write_text((file.read_text() if file.exists() else "") + "x")
"""
    )
    runner = opened(tmp_path, body)
    ended = tmp_path / "m" / "1" / "ended.txt"
    assert ended.read_text() == "x"  # of the process that described it
    runner.close()
    assert ended.read_text() == "xx"


def test_a_finalize_that_does_not_end_is_interrupted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = "    def finalize(self):\n        __import__('threading').Event().wait()\n"
    monkeypatch.setattr(python_runner, "_FINALIZE_S", 0.05)
    opened(tmp_path, DOUBLE + end).close()
    assert "m: finalize failed: TimeoutError: it did not end within 0.05 s" in caplog.messages[-1]


def test_a_failing_finalize_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = DOUBLE + "    def finalize(self):\n        self.file.close()\n"
    opened(tmp_path, body).close()
    assert "m: finalize failed: AttributeError: " in caplog.messages[-1]
    assert caplog.messages[-1].endswith("(model.py, line 18)")


def test_models_of_one_process_have_their_own_siblings(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        import late
        import_module = __import__("importlib").import_module
        said = f"{words.WORD} {near.WORD} {late.WORD} {import_module('words').WORD}"
        return [answer(y=np.array([said])) for _ in requests]
"""
    imports = "import words\nfrom . import near\n"
    runners = []
    for name in ("a", "b"):
        files = {f"1/{file}.py": f"WORD = '{name}-{file}'\n" for file in ("words", "near")}
        files |= {"late.py": f"WORD = '{name}-late'\n"}
        files |= {"config.pbtxt": TEXTS, "1/model.py": imports + MODEL + body}
        add(tmp_path, name, files)
        runners.append(open_model(read(tmp_path, name, 1).provisional(), 1, None))
    for name, runner in (*zip("ab", runners, strict=True), ("a", runners[0])):
        assert isinstance(runner, PythonRunner)
        said = f"{name}-words {name}-near {name}-late {name}-words".encode()
        assert outputs(runner.run_requests([words(b"x")])[0]) == {"y": [said]}
    for runner in runners:
        runner.close()


def test_modules_imported_before_any_model_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    class Shared(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            looked.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(OwnModules, "_last_shared", "")
    monkeypatch.setitem(sys.modules, "shared", Shared("shared"))
    first, second = (OwnModules(tmp_path / name / "1") for name in "ab")
    first.activate()
    looked.clear()
    own = ModuleType("own")
    own.__file__ = str(tmp_path / "a" / "own.py")
    monkeypatch.setitem(sys.modules, "own", own)
    second.activate()
    assert "own" not in sys.modules and not looked
    first.activate()
    assert sys.modules["own"] is own
    first.deactivate()


AUTO = """
    @staticmethod
    def auto_complete_config(config):
        seen = config.as_dict()
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": False})
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        assert config["max_batch_size"] == 4 and config["input"][0]["dims"] == [2], config

    def execute(self, requests):
        return [answer(y=given(r, "x").as_numpy()) for r in requests]
"""


def test_a_model_may_complete_its_configuration(tmp_path: Path) -> None:
    runner = opened(tmp_path, AUTO, 'backend: "python"\n')
    assert runner.signature.inputs == (TensorSpec("x", "FP32", (2,)),)
    assert runner.signature.batched and runner.signature.max_batch == 4
    assert outputs(runner.run_requests([floats(1, 2)])[0]) == {"y": [[1, 2]]}


@pytest.mark.parametrize(
    ("config", "body", "found"),
    [
        (CONFIG, "    pass\n", "a TritonPythonModel without execute"),
        ('backend: "python"\n', DOUBLE, "no inputs or outputs; expected input"),
        (CONFIG, "    def initialize(self, args):\n        1 / 0\n" + DOUBLE, "ZeroDivisionError"),
        (CONFIG, AUTO, "specifies max_batch_size 4"),
        (
            DECOUPLED,
            AUTO.replace("size(4)", "size(8)"),
            "configuration has decoupled True, not Fal",
        ),
        (CONFIG.replace("size: 8", "size: 2").replace("[ 2 ]", "[ 3 ]"), AUTO, r"has dims \[3\]"),
        ('backend: "python"\n', AUTO.replace("decoupled", "coupled"), "property 'coupled' is not"),
        ('backend: "python"\n', AUTO.replace("TYPE_FP32", "FLOAT"), "data type 'FLOAT'"),
        ('backend: "python"\n', AUTO.replace('"dims"', '"shape"'), "has no 'dims'"),
        (
            'backend: "python"\n',
            AUTO.replace("[2]}", "[2], 'sort': 1}"),
            "'sort' \\(model.py, line \\d+\\)",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, config: str, body: str, found: str) -> None:
    with pytest.raises(RepositoryError, match=found) as caught:
        opened(tmp_path, body, config)
    assert str(tmp_path / "m" / "1") in caught.value.where


def test_a_model_may_have_no_inputs_or_no_outputs(tmp_path: Path) -> None:
    source = """
    def execute(self, requests):
        return [answer(y=np.array([7], np.float32)) for _ in requests]
"""
    config = 'backend: "python"\noutput [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    runner = opened(tmp_path, source, config, "source")
    assert outputs(runner.run_requests([RequestInputs({})])[0]) == {"y": [7]}
    with pytest.raises(RepositoryError, match="no inputs or outputs"):
        opened(tmp_path, source, "max_batch_size: 4\n" + config, "rows")
    sink = "    def execute(self, requests):\n        return [answer() for _ in requests]\n"
    runner = opened(tmp_path, sink, CONFIG[: CONFIG.index("output")], "sink")
    assert outputs(runner.run_requests([floats(1, 2)])[0]) == {}


def test_an_environment_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{path}" }} }}\n'
    with pytest.raises(RepositoryError, match=r"EXECUTION_ENV_PATH'\]: found '\$\$TRITON_MODEL"):
        opened(tmp_path, DOUBLE, CONFIG + parameter)


def test_an_empty_path_names_no_environment(tmp_path: Path) -> None:
    empty = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "" } }'
    assert len(opened(tmp_path, DOUBLE, CONFIG + empty).run_requests([floats(1, 2)])) == 1


def test_torch_does_not_open_it(tmp_path: Path) -> None:
    add(tmp_path, "m", {"config.pbtxt": CONFIG, "1/model.py": MODEL + DOUBLE})
    model = read(tmp_path, "m", 1).provisional()
    assert shared_architecture(model, str(tmp_path)) == ""
    with pytest.raises(RepositoryError, match="cores to serve it on"):
        open_torch(model)


def test_bad_input_refuses_as_in_other_models(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        import interlace
        raise interlace.bad_input("x is too long")
"""
    runner = opened(tmp_path, body)
    (failed,) = runner.run_requests([floats(1, 2)])
    assert failed == ServeError(Reason.BAD_INPUT, "x is too long")
    with pytest.raises(ServeError, match="x is too long"):
        runner.run_requests([floats(1, 2)] * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_dlpack_shares_memory_with_torch(dtype: torch.dtype) -> None:
    made = torch.ones(2, 3).to(dtype)
    tensor = api.Tensor.from_dlpack("x", made.__dlpack__())
    back = torch.from_dlpack(tensor.to_dlpack())
    made[0, 0] = 0
    assert back.dtype == dtype and torch.equal(back, made)
    assert torch.equal(torch.from_dlpack(tensor), made)
    assert tensor.shape() == [2, 3] and tensor.is_cpu()
    with pytest.raises(api.TritonModelException, match="not contiguous"):
        api.Tensor.from_dlpack("x", made.T)


def test_bf16_has_no_array_and_strings_no_dlpack() -> None:
    with pytest.raises(api.TritonModelException, match="use DLPack"):
        api.Tensor.of("x", TypedArray("BF16", np.zeros(2, np.uint16))).as_numpy()
    with pytest.raises(api.TritonModelException, match="strings has no DLPack form"):
        api.Tensor("x", np.array([b"a"])).to_dlpack()


@pytest.mark.parametrize("number", range(1, 14))
def test_types_have_tritons_numbers(number: int) -> None:
    numpy_type = api.triton_to_numpy_type(number)
    assert api.numpy_to_triton_type(numpy_type) == number
    array: Array = np.zeros(1, numpy_type)
    assert api.Tensor("x", array).triton_dtype() == number


@pytest.mark.parametrize(
    ("made", "data"),
    [
        (np.array([[b"a\0", "\u00e9"]], object), b"\2\0\0\0a\0\2\0\0\0\xc3\xa9"),
        (np.array([b"ab"]), b"\2\0\0\0ab"),
        (np.array([], object), ()),
        (np.zeros(2), None),
    ],
)
def test_text_has_its_binary_form(made: Array, data: object) -> None:
    assert api.serialize_byte_tensor(made) == data
    if isinstance(data, bytes):
        texts = [one if isinstance(one, bytes) else one.encode() for one in made.ravel()]
        assert api.deserialize_bytes_tensor(data).tolist() == texts


def test_the_module_has_tritons_names(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        request = pb_utils.InferenceRequest(
            model_name="b", inputs=[], requested_output_names=["y"], correlation_id=7, timeout=9,
            trace=requests[0].trace(), parameters={"top": 3})
        request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        kinds = pb_utils.MetricKind.COUNTER is pb_utils.MetricFamily.COUNTER
        said = [pb_utils.get_model_dir(), kinds, request.flags(), request.correlation_id(),
                request.timeout(), request.parameters(), requests[0].trace().get_context(),
                pb_utils.TRITON_STRING_TO_NUMPY["TYPE_STRING"].__name__]
        return [answer(y=np.array([json.dumps(said)]))]
"""
    (answer,) = opened(tmp_path, body, TEXTS).run_requests([words(b"a")])
    (said,) = outputs(answer)["y"]
    folder = str(tmp_path / "m" / "1")
    assert json.loads(said) == [folder, True, 2, 7, 9, '{"top":3}', None, "object_"]


@pytest.mark.parametrize(
    ("call", "raised"),
    [
        ("pb.Tensor('A', None)", TypeError),
        ("pb.Tensor(None, array)", TypeError),
        ("pb.Tensor('', array)", api.TritonModelException),
        ("pb.Tensor.from_dlpack('A', None)", api.TritonModelException),
        ("pb.Tensor.from_dlpack(None, array)", TypeError),
        ("pb.Tensor.from_dlpack('', array)", api.TritonModelException),
        ("call(model_name=None)", TypeError),
        ("call(inputs=None)", TypeError),
        ("call(inputs=[None])", api.TritonModelException),
        ("call(inputs=[1])", TypeError),
        ("call(requested_output_names=None)", TypeError),
        ("call(requested_output_names='OUT')", TypeError),
        ("call(requested_output_names=[None])", TypeError),
        ("call(request_id=None)", TypeError),
        ("call(correlation_id=None)", TypeError),
        ("call(correlation_id=1.5)", api.TritonModelException),
        ("call(correlation_id=b'x')", api.TritonModelException),
        ("call(model_version='1')", TypeError),
        ("call(model_version=1.0)", TypeError),
        ("call(flags=None)", TypeError),
        ("call(flags=-1)", TypeError),
        ("call(timeout=-1)", TypeError),
        ("call(parameters=[])", api.TritonModelException),
        ("call().set_flags(None)", TypeError),
        ("call().exec(decoupled=None)", TypeError),
        ("call().exec(decoupled='x')", TypeError),
        ("request.set_release_flags(None)", TypeError),
        ("request.get_response_sender().send(5)", TypeError),
        ("request.get_response_sender().send(pb.InferenceResponse(), -1)", TypeError),
        ("pb.InferenceResponse(None)", TypeError),
        ("pb.InferenceResponse(tensor)", TypeError),
        ("pb.InferenceResponse('x')", TypeError),
        ("pb.InferenceResponse([None])", api.TritonModelException),
        ("pb.InferenceResponse(error=1)", TypeError),
        ("pb.InferenceResponse(error=ValueError('x'))", TypeError),
        ("pb.InferenceResponse(parameters=[])", api.TritonModelException),
        ("pb.TritonError(None)", TypeError),
        ("pb.TritonError(ValueError('x'))", TypeError),
        ("pb.TritonError('x', 'INTERNAL')", TypeError),
        ("pb.Logger.log('x', None)", TypeError),
        ("pb.Logger.log('x', 1)", TypeError),
        ("pb.Logger.log_info(None)", TypeError),
        ("pb.Logger.log_warn(5)", TypeError),
        ("pb.Logger.log_error(None)", TypeError),
        ("pb.Logger.log_verbose(None)", TypeError),
        ("pb.MetricFamily(None, 'x', pb.MetricFamily.COUNTER)", TypeError),
        ("pb.MetricFamily('x', None, pb.MetricFamily.COUNTER)", TypeError),
        ("pb.MetricFamily('x', 'x', 0)", TypeError),
        (
            "pb.MetricFamily('x', 'x', pb.MetricFamily.COUNTER).Metric([1])",
            api.TritonModelException,
        ),
        (
            "pb.MetricFamily('x', 'x', pb.MetricFamily.COUNTER).Metric({'a': 1})",
            api.TritonModelException,
        ),
        ("pb.load_model(None)", TypeError),
        ("pb.load_model('m', config=5)", TypeError),
        ("pb.load_model('m', files=5)", api.TritonModelException),
        ("pb.load_model('m', files={'file:1/model.py': 'x'})", TypeError),
        ("pb.unload_model(None)", TypeError),
        ("pb.is_model_ready(None)", TypeError),
        ("pb.is_model_ready('m', 1)", TypeError),
    ],
)
def test_a_wrong_argument_raises_as_in_triton(call: str, raised: type[Exception]) -> None:
    """The types that ``tritonserver`` 2.51.0 raises for the same calls."""
    hook = CallHook(lambda: None)
    pb: Any = api_module(hook, "folder")
    array = np.zeros(1, np.int32)
    request = api.InferenceRequest.received(
        {}, [], CallContext(), bool, ResponseState(lambda response, final: None, True)
    )
    names = {"pb": pb, "array": array, "tensor": pb.Tensor("A", array), "request": request}
    names["call"] = partial(pb.InferenceRequest, model_name="m", requested_output_names=["o"])
    hook.control = hook.call = lambda call: pytest.fail(f"{call} was sent")
    with pytest.raises(raised) as error:
        eval(call, names)
    assert error.type is raised
    assert "object is not iterable" not in str(error.value)


def test_the_file_of_a_model_may_lie_in_a_folder_of_its_version(tmp_path: Path) -> None:
    config = CONFIG + 'default_model_filename: "sub/main.py"\n'
    code = """
import beside
from . import near
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        said = f"{beside.NAME} {near.NAME} {pb_utils.get_model_dir()}"
        raise pb_utils.TritonModelException(said)
"""
    files = {"1/sub/main.py": code, "1/sub/near.py": "NAME = 1", "1/beside.py": "NAME = 2"}
    (answer,) = opened(tmp_path, DOUBLE, config, files=files).run_requests([floats(1)])
    assert isinstance(answer, ServeError)
    assert f"2 1 {tmp_path}/m/1/sub (main.py, line 9)" in answer.detail


@pytest.mark.parametrize(
    "asked", ['load_model("b")', 'unload_model("b")', 'is_model_ready("b")', 'load_model("b", {})']
)
def test_other_models_are_loaded_only_where_somebody_can(tmp_path: Path, asked: str) -> None:
    body = f"""
    @staticmethod
    def auto_complete_config(config):
        pb_utils.{asked}
{DOUBLE}"""
    with pytest.raises(RepositoryError, match="only during the 'initialize' and 'execute'"):
        opened(tmp_path, body)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"a": 1, "b": "x", "c": True}, '{"a": 1, "b": "x", "c": true}'),
        ({}, ""),
        ({"a": 1.5}, "Expect parameters values to have type bool/int/str, found type <class 'flo"),
        ({1: 1}, "Expect parameters keys to have type str, found type <class 'int'>"),
    ],
)
def test_a_response_has_parameters(tmp_path: Path, parameters: object, said: str) -> None:
    body = f"""
    def execute(self, requests):
        made = pb_utils.InferenceResponse([], parameters={parameters})
        assert json.loads(made.parameters()) == {parameters}
        return [made]
"""
    (answer,) = opened(tmp_path, body).run_requests([floats(1, 2)])
    if isinstance(answer, ModelResponse):
        assert answer == ModelResponse({}, said)
    else:
        assert said in answer.detail


@pytest.mark.parametrize(
    ("says", "heard"),
    [
        ("return self.times != 1", [False, True]),
        ("return 1", [False]),
        ("raise OSError('no store')", [False]),
        ("return True", []),
    ],
)
@pytest.mark.parametrize("kind", ["", "async "])
def test_a_models_code_says_whether_it_is_ready(
    tmp_path: Path, says: str, heard: list[bool], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_EVERY_S", 0.0)
    body = f"""
    times = 0
    {kind}def is_ready(self):
        self.times += 1
        {says}
"""
    found: list[bool] = []
    runner = opened(tmp_path, DOUBLE + body)
    runner.watch(found.append)
    assert found[:1] == heard[:1]  # before a request comes
    model: Any = runner._model
    while model.times < 3:
        time.sleep(0.001)
    runner.close()
    assert found == heard


def test_responses_can_be_read() -> None:
    tensor = api.Tensor("y", np.zeros(1, np.int8))
    response = api.InferenceResponse([tensor], error="broken")
    assert api.get_output_tensor_by_name(response, "y") is tensor
    assert api.get_output_tensor_by_name(response, "z") is None
    error = response.error()
    assert response.has_error() and error is not None and error.message() == "broken"
    assert error.code() == api.TritonError.INTERNAL


def test_log_lines_name_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = """
    def execute(self, requests):
        log = pb_utils.Logger
        log.log("plain"); log.log("own", log.WARNING); log.log_info("i"); log.log_warn("w")
        log.log_error("e"); log.log_verbose("v")
        return [answer(y=given(r, "x").as_numpy()) for r in requests]
"""
    runner = opened(tmp_path, body)
    with caplog.at_level(logging.DEBUG, "interlace.model"):
        runner.run_requests([floats(1, 2)])
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "m: plain"),
        ("WARNING", "m: own"),
        ("INFO", "m: i"),
        ("WARNING", "m: w"),
        ("ERROR", "m: e"),
        ("DEBUG", "m: v"),
    ]


def test_metrics_count_and_tell_what_changed() -> None:
    metrics.take_changes()
    family = api.MetricFamily("requests", "by kind", api.MetricFamily.COUNTER)
    counter = family.Metric(labels={"kind": "a"})
    counter.increment(2)
    family.Metric({"kind": "a"}).increment(1)
    assert counter.value() == 3 and family.Metric({"kind": "b"}).value() == 0
    gauge = api.MetricFamily("level", "", api.MetricFamily.GAUGE).Metric()
    gauge.set(5)
    gauge.increment(-2)
    assert gauge.value() == 3
    kinds, spread = metrics.MetricKind, api.MetricFamily("times", "", api.MetricFamily.HISTOGRAM)
    times = spread.Metric(buckets=[1, 2])
    for value in (0.5, 1, 1.5, 9):
        times.observe(value)
    first, other, level, last = metrics.take_changes()
    labels = (("kind", "a"),)
    assert (other.labels, other.added) == ((("kind", "b"),), 0.0)  # it is shown before it counts
    assert first == MetricChange("requests", "by kind", "counter", labels, 3.0)
    assert (level.value, level.added) == (5.0, -2.0)
    assert (last.bounds, last.counts, last.added) == ((1, 2), (2, 1, 1), 12.0)
    counter.increment(1)
    assert [one.added for one in metrics.take_changes()] == [1.0]
    for wrong, said in (
        (lambda: counter.increment(-1), "metric 'requests': a counter cannot go down by -1"),
        (lambda: counter.set(1), "metric 'requests' of kind COUNTER has no set()"),
        (lambda: gauge.observe(1), "metric 'level' of kind GAUGE has no observe()"),
        (times.value, "metric 'times' of kind HISTOGRAM has no value()"),
        (spread.Metric, "buckets: expected ascending numbers, got None"),
        (lambda: spread.Metric({}, [2.0, 1.0]), "got [2.0, 1.0]"),
        (lambda: spread.Metric({}, [1.0, 1.0]), "got [1.0, 1.0]"),
        (
            lambda: api.MetricFamily("requests", "", kinds.GAUGE),
            "'requests' is a COUNTER; expected",
        ),
        (lambda: api.MetricFamily("no spaces", "", kinds.GAUGE), "metric or label 'no spaces'"),
    ):
        with pytest.raises(api.TritonModelException, match=re.escape(said)):
            wrong()
    assert api.MetricFamily("requests", "again", kinds.COUNTER).Metric().value() == 0


SENDS = """
    def execute(self, requests):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender, x = request.get_response_sender(), given(request, "x").as_numpy()
            {body}
        {returns}
"""


@pytest.mark.parametrize(
    ("config", "body", "returns", "said"),
    [
        (CONFIG, "sender.send(answer(y=x), final)", "", None),
        (CONFIG, "sender.send(answer(y=x)); sender.send(flags=final)", "return [None]", None),
        (CONFIG, "sender.send(flags=final)", "", "cannot send complete final before"),
        (CONFIG, "", "", "let go of a response sender"),
        (DECOUPLED, "sender.send()", "", "must be provided when the response flags is set to zero"),
        (DECOUPLED, "sender.send(answer(y=x), 2)", "", "Unsupported flag 2."),
        (DECOUPLED, "", "return []", "execute function must return None."),
    ],
)
def test_senders_keep_tritons_rules(
    tmp_path: Path, config: str, body: str, returns: str, said: str | None
) -> None:
    runner = opened(tmp_path, SENDS.format(body=body or "pass", returns=returns), config)
    (ended,) = runner.run_requests([floats(1, 2)])
    if said is None:
        assert outputs(ended) == {"y": [[1, 2]]}
    else:
        assert said in failure(ended).detail


@pytest.mark.parametrize(
    ("decoupled", "flags", "said"),
    [(False, 0, "cannot send more than one"), (False, 1, "been closed"), (True, 1, "been closed")],
)
def test_no_response_follows_the_last(decoupled: bool, flags: int, said: str) -> None:
    state = ResponseState(lambda response, final: None, decoupled)
    sender = api.ResponseSender(state, bool)
    sender.send(api.InferenceResponse(), flags)
    with pytest.raises(api.TritonModelException, match=said):
        sender.send(api.InferenceResponse())


def test_a_decoupled_model_responds_to_each_request_as_often_as_it_likes(tmp_path: Path) -> None:
    body = """for n in range(int(x[0, 0])):
                sender.send(answer(y=x * n, z=x) if n > 5 else answer(y=x * n))
            sender.send(flags=final)"""
    runner = opened(tmp_path, SENDS.format(body=body, returns=""), DECOUPLED)
    heard: list[list[tuple[Any, bool]]] = [[], []]
    asked = [
        floats(count, 1)._replace(respond=lambda *one, to=heard[at]: to.append(one))
        for at, count in enumerate((2, 7))
    ]
    assert runner.run_requests(asked) == [ModelResponse()] * 2
    assert [(outputs(answer), last) for answer, last in heard[0][:2]] == [
        ({"y": [[0, 0]]}, False), ({"y": [[2, 1]]}, False),
    ]  # fmt: skip
    assert heard[0][2] == (None, True)
    assert failure(heard[1][6][0]).detail == "unexpected inference output 'z' for model 'm'"
    tried = runner.run(floats(1, 2).inputs)  # the first response
    assert {name: one.tolist() for name, one in tried.items()} == {"y": [[0, 0]]}


ITERATIVE = CONFIG + "sequence_batching { iterative_sequence: true }\n"
COUNT_DOWN = """
    def initialize(self, args):
        self.calls, self.left = [], {}

    def execute(self, requests):
        self.calls.append(len(requests))
        responses = []
        for request in requests:
            id, x = request.correlation_id(), given(request, "x").as_numpy()
            left = self.left[id] = int(x[0, 0]) if request.flags() else self.left[id] - 1
            if left:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                n = np.full((1, 1), len(self.calls))
                responses.append(answer(y=x, n=n))
        return responses
"""


def test_a_rescheduled_request_is_executed_again_until_it_is_done(tmp_path: Path) -> None:
    runner = opened(tmp_path, COUNT_DOWN, ITERATIVE)
    answers = runner.run_requests([floats(2, 7), floats(0, 8), floats(3, 9)])
    assert [outputs(one)["n"] for one in answers] == [[[3]], [[1]], [[4]]]
    assert [outputs(one)["y"] for one in answers] == [[[2, 7]], [[0, 8]], [[3, 9]]]
    assert runner._model.calls == [3, 2, 2, 1]


CONTROLS = """sequence_batching { iterative_sequence: true control_input [
  { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } },
  { name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 2 ] } },
  { name: "end" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } } ] }
"""


@pytest.mark.parametrize("batch", ["max_batch_size: 8", "max_batch_size: 0"])
def test_a_rescheduled_request_has_control_tensors(tmp_path: Path, batch: str) -> None:
    body = """
    left = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            id, start, end = (given(request, name) for name in ("id", "start", "end"))
            assert id.shape() == start.shape() == end.shape() and not end.as_numpy().any()
            assert id.as_numpy().dtype == np.uint64 and start.as_numpy().dtype == np.float32
            key = id.as_numpy().item()
            assert key == request.correlation_id()
            said = self.left.setdefault(key, [])
            said.append(start.as_numpy().item())
            if len(said) < given(request, "x").as_numpy().flat[0]:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                responses.append(answer(y=np.array([said], np.float32)))
        return responses
"""
    config = CONFIG.replace("max_batch_size: 8", batch) + CONTROLS
    runner = opened(tmp_path, body, config)
    alone = RequestInputs({"x": np.array([3, 0], np.float32)})
    requests = [floats(3, 0), floats(1, 0)] if "8" in batch else [alone]
    answers = runner.run_requests(requests)
    assert [outputs(one)["y"] for one in answers] == [[[2, 0, 0]], [[2]]][: len(requests)]


def test_a_model_says_itself_that_it_is_decoupled(tmp_path: Path) -> None:
    body = """
    @staticmethod
    def auto_complete_config(config):
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(answer(y=given(request, "x").as_numpy()), 1)
"""
    runner = opened(tmp_path, body)
    assert runner.signature.decoupled
    served = complete(read(tmp_path, "m", 1), runner.signature, 0)
    assert served.signature.decoupled and served.terms.slo_ms == STREAM_SLO_MS
    stated = CONFIG + "model_transaction_policy { decoupled: false }\n"
    with pytest.raises(RepositoryError, match="configuration has decoupled False, not True"):
        opened(tmp_path, body, stated)


def test_a_decoupled_model_responds_each_time_it_is_rescheduled(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        for request in requests:
            x = given(request, "x").as_numpy()
            if request.flags():
                self.left = int(x[0, 0])
            self.left -= 1
            sender = request.get_response_sender()
            if self.left:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            sender.send(answer(n=np.full((1, 1), self.left)), flags=int(self.left == 0))
"""
    decoupled = ITERATIVE + "model_transaction_policy { decoupled: true }\n"
    runner, heard = opened(tmp_path, body, decoupled), list[tuple[Any, bool]]()
    request = floats(3, 0)._replace(
        respond=lambda answer, final: heard.append((answer and outputs(answer)["n"], final))
    )
    assert runner.run_requests([request]) == [ModelResponse()]
    assert heard == [([[2]], False), ([[1]], False), ([[0]], True)]


def test_a_request_whose_client_went_away_is_not_rescheduled(tmp_path: Path) -> None:
    runner = opened(tmp_path, COUNT_DOWN, ITERATIVE)
    answers = runner.run_requests([floats(9, 0)._replace(cancelled=lambda: True), floats(1, 0)])
    assert failure(answers[0]).reason is Reason.CANCELLED
    assert outputs(answers[1])["n"] == [[2]]


@pytest.mark.parametrize(
    ("config", "returned", "said"),
    [
        (CONFIG, "None", "while the model has no sequence_batching { iterative_sequence: true }"),
        (ITERATIVE, "answer()", "Expected a None object in the execute function return list"),
    ],
)
def test_rescheduling_has_rules(tmp_path: Path, config: str, returned: str, said: str) -> None:
    body = f"""
    def execute(self, requests):
        requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [{returned}]
"""
    [answer] = opened(tmp_path, body, config).run_requests([floats(1, 1)])
    assert said in failure(answer).detail


def test_a_rescheduled_request_that_fails_is_not_begun_again(tmp_path: Path) -> None:
    late = 'if len(self.calls) == 2: raise KeyError("late")\n        return'
    body = COUNT_DOWN.replace("return", late)
    answers = opened(tmp_path, body, ITERATIVE).run_requests([floats(4, 0), floats(5, 0)])
    assert all("late" in failure(one).detail for one in answers)
