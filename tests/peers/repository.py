"""The same small models for two servers: Interlace and Triton's Python backend."""

from pathlib import Path
from typing import NamedTuple


class Sort(NamedTuple):
    """A model: its inputs all have one datatype and dims; ``max_batch`` 0 means no batch dim."""

    name: str
    datatype: str
    dims: int
    max_batch: int = 8
    inputs: int = 1
    labels: bool = False


SORTS = (
    Sort("ident", "FP32", 4),
    Sort("pair", "INT32", 2, inputs=2),
    Sort("plain", "FP32", 3, max_batch=0),
    Sort("any", "FP32", -1),
    Sort("text", "STRING", -1),
    Sort("half", "FP16", 2),
    Sort("brain", "BF16", 2),
    Sort("label", "FP32", 4, labels=True),
    Sort("spare", "FP32", 4),
    Sort("slow", "FP32", 1),
)
#: The model ``slow`` takes this long when an input is 7, and no time otherwise.
SLOW_S = 0.5

TRITON_SAME = """
import sys, time; sys.path.insert(0, "NUMPY")
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "INPUT0")
            if SLOW_S and (x.as_numpy() == 7).any():
                time.sleep(SLOW_S)
            if BRAIN:  # numpy has no BF16
                y = pb.Tensor.from_dlpack("OUTPUT0", x.to_dlpack())
            else:
                y = pb.Tensor("OUTPUT0", x.as_numpy())
            answers.append(pb.InferenceResponse([y]))
        return answers
"""

TRITON_PAIR = """
import sys; sys.path.insert(0, "NUMPY")
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            both = [pb.Tensor("OUTPUT0", a + b), pb.Tensor("OUTPUT1", a - b)]
            answers.append(pb.InferenceResponse(both))
        return answers
"""

OURS_SAME = """
import time
import torch

INPUTS = {"INPUT0": (DATATYPE, (DIMS,))}
OUTPUTS = {"OUTPUT0": (DATATYPE, (DIMS,))}
BATCHED = ROWS > 0

class Same(torch.nn.Module):
    def forward(self, INPUT0):
        if SLOW_S and (INPUT0 == 7).any():
            time.sleep(SLOW_S)
        return INPUT0

def create_model():
    return Same()
"""

OURS_PAIR = """
import torch

class Pair(torch.nn.Module):
    def forward(self, INPUT0, INPUT1):
        return INPUT0 + INPUT1, INPUT0 - INPUT1

def create_model():
    return Pair()
"""


def config(sort: Sort, backend: str) -> str:
    """``config.pbtxt`` of a model; both servers read the same but for ``backend``."""
    lines = [f'name: "{sort.name}"', backend, f"max_batch_size: {sort.max_batch}"]
    label = ' label_filename: "labels.txt"' if sort.labels else ""
    for kind, extra in (("input", ""), ("output", label)):
        lines += [
            f'{kind} {{ name: "{kind.upper()}{i}" data_type: TYPE_{sort.datatype}'
            f" dims: [ {sort.dims} ]{extra} }}"
            for i in range(sort.inputs)
        ]
    return "\n".join(line for line in lines if line) + "\n"


def _slowed(sort: Sort, source: str) -> str:
    return f"SLOW_S = {SLOW_S if sort.name == 'slow' else 0}\n{source}"


def _folder(root: Path, sort: Sort, backend: str) -> Path:
    folder = root / sort.name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config(sort, backend))
    if sort.labels:
        (folder / "labels.txt").write_text("one\ntwo\nthree\nfour\n")
    return folder / "1"


def write_triton(root: Path, numpy: Path) -> Path:
    """The repository for the real server's Python backend, which needs the numpy 1 in ``numpy``."""
    for sort in SORTS:
        source = TRITON_PAIR if sort.inputs == 2 else _slowed(sort, TRITON_SAME)
        source = f"BRAIN = {sort.datatype == 'BF16'}\n{source}"
        version = _folder(root, sort, 'backend: "python"')
        (version / "model.py").write_text(source.replace("NUMPY", str(numpy)))
    return root


def write_ours(root: Path) -> Path:
    """The repository for Interlace: the same models as factories, ``text`` as ONNX."""
    for sort in SORTS:
        version = _folder(root, sort, "")
        (version.parent / "interlace.toml").write_text("slo_ms = 30000\n")
        if sort.datatype == "STRING":
            _write_string_identity(version / "model.onnx")
        else:
            source = OURS_PAIR if sort.inputs == 2 else _slowed(sort, OURS_SAME)
            head = f"DATATYPE, DIMS, ROWS = {sort.datatype!r}, {sort.dims}, {sort.max_batch}\n"
            (version / "model.py").write_text(head + source)
    return root


def _write_string_identity(path: Path) -> None:
    from onnx import TensorProto, helper, save

    ends = [
        helper.make_tensor_value_info(name, TensorProto.STRING, ["rows", "length"])
        for name in ("INPUT0", "OUTPUT0")
    ]
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    graph = helper.make_graph([node], "text", ends[:1], ends[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
