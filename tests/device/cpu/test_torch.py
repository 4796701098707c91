"""Real torch models in real workers: one copy of the weights, a safe fork, memory given back."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cpu.settings import CpuSettings
from tests.device.cpu.rig import Rig, settings
from tests.process_memory import process_memory
from tests.processes import memory_maps

WEIGHTS_BYTES = 4096 * 4096 * 4
CODE = """
import torch

INPUTS = {"x": ("FP32", (4096,))}

def create_model():
    torch.manual_seed(0)
    return torch.nn.Linear(4096, 4096, bias=False)
"""


@pytest.fixture(scope="module")
def torch_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    defaults = CpuSettings((0,), 0)
    rig = Rig(
        settings(
            tmp_path_factory.mktemp("weights"), opener=defaults.opener, preload=defaults.preload
        )
    )
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def linear(torch_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of 64 MiB of weights, its signature as the device describes it."""
    folder = tmp_path_factory.mktemp("linear")
    Path(folder, "model.py").write_text(CODE)
    silent = Signature((), (), True, 32)
    bare = Model("linear", 1, Format.FACTORY, str(folder), "0" * 64, silent, ServiceTerms(100.0))
    described = torch_rig.loop.run_until_complete(torch_rig.device.describe(bare))
    return Model(
        "linear", 1, Format.FACTORY, str(folder), "0" * 64, described.signature, bare.terms
    )


def weights_pss(pid: int) -> int:
    """A process's share of the weights files it maps, in bytes."""
    total, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if " " in line and "-" in line.split(" ", 1)[0]:
            counts = line.endswith(".safetensors")
        elif counts and line.startswith("Pss:"):
            total += int(line.split()[1]) << 10
    return total


def test_the_signature_is_read_from_the_model(linear: Model) -> None:
    assert linear.signature.inputs == (TensorSpec("x", "FP32", (4096,)),)
    assert [spec.dims for spec in linear.signature.outputs] == [(4096,)]
    assert linear.signature.batched


def test_the_fork_server_has_the_libraries_and_no_threads(torch_rig: Rig, linear: Model) -> None:
    for kind in Format:
        torch_rig.device.register(replace(linear, name=kind.value, format=kind))
    torch_rig.carve("after")  # what was asked for before it is imported now
    pid = torch_rig.device.fork_server_pid
    assert pid is not None
    maps = memory_maps(pid)
    assert "libtorch_cpu" in maps and "onnxruntime" in maps
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    torch_rig.release("after")


def test_two_workers_share_weights_and_libraries(torch_rig: Rig, linear: Model) -> None:
    row = [1.0] * 4096
    answers = []
    for name in ("one", "two"):
        torch_rig.serve(linear, name)
        finished = torch_rig.run(torch_rig.floats(linear, row), name=name)
        answers.append(torch_rig.values(finished))
        torch_rig.free(finished)
    assert answers[0] == answers[1]
    memories = [process_memory(pid) for pid in torch_rig.device.workers().values()]
    assert all(memory.rss_bytes > WEIGHTS_BYTES for memory in memories)
    weights = [weights_pss(pid) for pid in torch_rig.device.workers().values()]
    assert 0.9 * WEIGHTS_BYTES < sum(weights) < 1.1 * WEIGHTS_BYTES  # one copy, half to each
    assert all(memory.private_bytes < 0.5 * WEIGHTS_BYTES for memory in memories)


def test_unloading_gives_the_memory_back(torch_rig: Rig, linear: Model) -> None:
    pid = torch_rig.device.workers()["one"]
    with_model = process_memory(pid)
    assert torch_rig.unload(linear, "one").failure is None
    without = process_memory(pid)
    assert with_model.rss_bytes - without.rss_bytes > 0.9 * WEIGHTS_BYTES
