"""Param-Share: two processes, one copy of the weights, as the kernel counts it."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interlace.formats.page_cache import cached_pages, cached_part, drop_cached, map_file
from interlace.formats.runner import WeightUse
from interlace.formats.weights_file import WeightsFile, header_of, write_weights
from tests.formats.holder import opened
from tests.formats.making import layers_onnx, write_factory, write_torchscript
from tests.process_memory import process_memory

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 2304  # three layers of 21 MB
WEIGHTS_BYTES = 3 * WIDTH * WIDTH * 4
FACTORY = """
import torch

INPUTS = {{"x": ("FP32", ({width},))}}

def create_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(3)])
"""


def make(kind: str, folder: Path, width: int) -> Path:
    if kind == "onnx":
        return layers_onnx(folder, (width,) * 4)
    if kind == "factory":
        return write_factory(folder, FACTORY.format(width=width))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
    return write_torchscript(folder, torch.nn.Sequential(*layers))


@contextmanager
def holder(kind: str, folders: tuple[Path, Path], weights: Path | None) -> Iterator[dict[str, Any]]:
    """A process that holds the model, as what it said and its ``pid``."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.formats.holder", kind]
    command += [*map(str, folders), str(WIDTH), str(weights or "")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stdout.readline()
        assert line, "the process died"
        yield {"pid": process.pid, **json.loads(line)}
        process.stdin.close()


def model_bytes(said: dict[str, Any], weights: Path) -> int:
    """What a process pays for the model: memory of its own, and its part of the shared file."""
    grown = process_memory(said["pid"]).anonymous_bytes - int(said["before"])
    return grown + mapped_pss_bytes(said["pid"], weights)


def mapped_pss_bytes(pid: int, folder: Path) -> int:
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if not line.split(maxsplit=1)[0].endswith(":"):
            inside = str(folder) in line
        elif inside and line.startswith("Pss:"):
            total += int(line.split()[1]) << 10
        elif inside and line.startswith("Anonymous:"):
            total -= int(line.split()[1]) << 10  # counted as the process's own already
    return total


@pytest.mark.parametrize("kind", ["factory", "onnx"])
def test_two_workers_hold_one_copy(tmp_path: Path, kind: str) -> None:
    folders = make(kind, tmp_path / "small", 16), make(kind, tmp_path / "large", WIDTH)
    weights = tmp_path / "weights"
    with ExitStack() as stack:
        first = stack.enter_context(holder(kind, folders, weights))
        alone = model_bytes(first, weights)
        second = stack.enter_context(holder(kind, folders, weights))
        both = model_bytes(first, weights) + model_bytes(second, weights)
    print(f"{kind}: one {alone / 1e6:.1f} MB, two {both / 1e6:.1f} MB, {both / alone:.3f}")
    assert first["warnings"] == second["warnings"] == []
    assert alone > WEIGHTS_BYTES * 0.95
    assert both < 1.35 * alone
    torch.set_num_threads(1)
    _, private = opened(kind, str(folders[1]), WIDTH, None)
    for said in (first, second):
        output = np.frombuffer(bytes.fromhex(said["output"]), private.dtype)
        assert np.allclose(output, private.ravel(), atol=1e-5)


def test_torchscript_runs_on_the_mapped_file(tmp_path: Path) -> None:
    folder = make("torchscript", tmp_path / "net", 256)
    weights = tmp_path / "weights"
    _, private = opened("torchscript", str(folder), 256, None)
    runner, shared = opened("torchscript", str(folder), 256, str(weights))
    assert runner.shared_bytes == 3 * (256 * 256 + 256) * 4
    assert mapped_pss_bytes(os.getpid(), weights) >= runner.shared_bytes
    assert np.allclose(private, shared, atol=1e-5)


@pytest.mark.parametrize("kind", ["factory", "torchscript", "onnx"])
def test_damaged_weights_are_laid_out_anew(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, weights = make(kind, tmp_path / "net", 256), tmp_path / "weights"
    right = opened(kind, str(folder), 256, str(weights))[1]
    files = [file for file in weights.rglob("*") if file.is_file()]
    assert opened(kind, str(folder), 256, str(weights))[1].tolist() == right.tolist()
    assert caplog.messages == []
    for file in files:
        size = file.stat().st_size
        for part in (0.0, 0.5, 0.9, 1.0):
            with file.open("r+b") as damaged:
                place = int(max(0, size - 4096) * part)
                damaged.seek(place)
                changed = bytes(byte ^ 0xFF for byte in damaged.read(4096))
                damaged.seek(place)
                damaged.write(changed)
            runner, output = opened(kind, str(folder), 256, str(weights))
            assert output.tolist() == right.tolist(), (file.name, part)
            assert runner.warnings == ()
            runner.close()
            assert "is damaged: its checksum" in caplog.text
            caplog.clear()
    assert opened(kind, str(folder), 256, str(weights))[1].tolist() == right.tolist()
    assert caplog.messages == []
    for file in files:
        file.unlink()
        os.mkfifo(file)  # whoever opens it waits for ever
        assert opened(kind, str(folder), 256, str(weights))[1].tolist() == right.tolist()
        assert file.is_file()
    caplog.clear()


class Counts(torch.nn.Module):
    """Writes to the only weight that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.relu()


@pytest.mark.parametrize(("module", "files"), [(torch.nn.ReLU(), 0), (Counts(), 1)])
def test_a_model_without_weights_to_share_is_laid_out_once_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, module: torch.nn.Module, files: int
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    folder = write_torchscript(tmp_path / "net", module)
    inodes = set()
    for _ in range(2):
        runner, output = opened("torchscript", str(folder), 16, str(weights))
        assert runner.warnings == () and output.min() == 0
        inodes |= {file.stat().st_ino for file in weights.iterdir()}
    assert caplog.messages == [] and len(inodes) == files


@pytest.mark.parametrize("kind", ["factory", "onnx"])
def test_a_full_disk_or_no_folder_leaves_weights_private(tmp_path: Path, kind: str) -> None:
    folder = make(kind, tmp_path / "net", 512)
    weights = tmp_path / "weights"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        runner, output = opened(kind, str(folder), 512, str(weights))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert runner.shared_bytes == 0
    assert "weights of m are private, not shared" in runner.warnings[0]
    assert output.shape == (2, 512)
    assert list(weights.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    runner, _ = opened(kind, str(folder), 512, str(tmp_path / "file"))
    assert runner.shared_bytes == 0
    assert "weights of m are private, not shared" in runner.warnings[0]


def test_what_an_execution_writes_to_stays_each_process_own(tmp_path: Path) -> None:
    source = """
import torch
INPUTS = {"x": ("FP32", (4,))}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.last = torch.nn.Linear(4, 2)
        self.first = torch.nn.Linear(4, 4)
    def forward(self, x):
        self.seen += 1
        return self.last(self.first(x)) + self.seen
def create_model():
    return Net()
"""
    weights = tmp_path / "weights"
    runner, _ = opened("factory", str(write_factory(tmp_path / "net", source)), 4, str(weights))
    (file,) = weights.glob("*.safetensors")
    uses = [use.weights for use in WeightsFile(file).uses]
    assert uses == [("first.weight", "first.bias"), ("last.weight", "last.bias")]
    assert runner.shared_bytes == (16 + 4 + 8 + 2) * 4
    runner.close()


def test_what_is_asked_of_a_file_leaves_nothing_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_weights(path, {"a": torch.zeros(1 << 20)}, [WeightUse("linear", ("a",))], "one")
    drop_cached(path)
    if cached_part(path):
        pytest.skip("this file system keeps its pages: it is one of memory")
    size, head = header_of(path)
    with path.open("rb", buffering=0) as file, map_file(file) as mapped:
        assert not any(cached_pages(mapped, 0, size))
    assert size == path.stat().st_size and b'"__note"' in head
