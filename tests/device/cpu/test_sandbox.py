"""Workers reach their models and libraries, and nothing else of the machine's files."""

import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from interlace.device.process.sandbox import confine, why_unconfined
from tests.device import models
from tests.device.cpu.conftest import MakeRig

needs_landlock = pytest.mark.skipif(bool(why_unconfined()), reason=why_unconfined())

#: Confines itself, then tries what a model's code could; prints what it was refused.
TRIAL = """
import json, os, signal, sys, tempfile
from pathlib import Path
from interlace.device.process.sandbox import confine
folder, parent = Path(sys.argv[1]), os.getppid()
tempfile.tempdir = str(folder / "temp")
confine(folder / "models", [str(folder / "weights")])
def need(content):
    if not content:
        raise PermissionError("nothing is shown")
trials = {
    "key": lambda: (folder / "key").read_text(),
    "listing": lambda: os.listdir(folder),
    "environment": lambda: need(Path(f"/proc/{parent}/environ").read_bytes()),
    "descriptors": lambda: os.listdir(f"/proc/{parent}/fd") and os.readlink(f"/proc/{parent}/fd/0"),
    "memory": lambda: open(f"/proc/{parent}/mem", "rb"),
    "signal": lambda: os.kill(parent, 0),
    "model": lambda: (folder / "models/m/1/model.onnx").read_text(),
    "changed model": lambda: (folder / "models/m/1/model.onnx").write_text("x"),
    "linked data": lambda: (folder / "models/m/1/linked").read_text(),
    "linked model": lambda: (folder / "models/elsewhere/1/model.onnx").read_text(),
    "linked by code": lambda: (folder / "models/code/1/linked").read_text(),
    "linked version": lambda: (folder / "models/m/2/model.onnx").read_text(),
    "key beside code": lambda: (folder / "models/code/k").read_text(),
    "key's folder beside code": lambda: (folder / "models/code/all/key").read_text(),
    "key's folder as a version": lambda: (folder / "models/code/3/key").read_text(),
    "key beside data": lambda: (folder / "models/m/1/k").read_text(),
    "temp": lambda: Path(tempfile.mkstemp()[1]).write_text("x"),
    "others' temp": lambda: (folder / "other").write_text("x"),
    "weights": lambda: (folder / "weights/a").write_text("x"),
    "moved weights": lambda: os.link(folder / "weights/a", folder / "weights/aside/b"),
    "null": lambda: Path("/dev/null").write_text("x"),
    "library": lambda: __import__("xmlrpc.client"),
}
refused = {}
for name, trial in trials.items():
    try:
        trial()
    except OSError as error:
        refused[name] = type(error).__name__
print(json.dumps(refused))
"""


def repository(folder: Path) -> None:
    for name in ("models/m/1", "models/code/1", "far/1", "temp", "weights/aside"):
        (folder / name).mkdir(parents=True)
    for name in ("key", "data", "secret", "models/m/1/model.onnx", "models/code/1/model.py"):
        (folder / name).write_text("text")
    (folder / "far/1/model.onnx").write_text("text")
    (folder / "models/elsewhere").symlink_to(folder / "far")
    (folder / "models/m/1/linked").symlink_to(folder / "data")
    (folder / "models/code/1/linked").symlink_to(folder / "secret")
    (folder / "key").chmod(0o600)
    (folder / "config.json").write_text("others have one, too")
    for link in ("models/code/k", "models/m/1/k"):
        (folder / link).symlink_to(folder / "key")
    (folder / "models/m/2").symlink_to(folder / "far/1")
    for link in ("models/code/all", "models/code/3"):
        (folder / link).symlink_to(folder)


@needs_landlock
def test_a_confined_process_reaches_models_and_libraries_alone(tmp_path: Path) -> None:
    repository(tmp_path)
    command = [sys.executable, "-c", TRIAL, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    refused = json.loads(ran.stdout)
    assert set(refused) == {
        "key", "listing", "environment", "descriptors", "memory", "signal", "changed model",
        "linked by code", "others' temp", "key beside code", "key's folder beside code",
        "key's folder as a version", "key beside data",
    }  # fmt: skip
    assert set(refused.values()) == {"PermissionError"}


@needs_landlock
def test_a_worker_is_confined_and_answers_from_arenas_of_others(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    for name in ("models", "weights"):
        (tmp_path / name).mkdir()
    rig = make_rig(models_dir=str(tmp_path / "models"), weights_dir=str(tmp_path / "weights"))
    reader = models.model(
        "read",
        inputs=(models.tensor("x", "BYTES", 1),),
        outputs=(models.tensor("y", "BYTES", 1),),
    )
    rig.serve(reader)
    own, key = tmp_path / "models/own", tmp_path / "key"
    for file in (own, key):
        file.write_text("1234")
    names = np.array([[str(own).encode()], [str(key).encode()]], dtype=object)
    request = rig.request(reader, rig.tensor("x", "BYTES", names))
    assert rig.values(rig.run(request)) == [[[b"1234"], [b"PermissionError"]]]


class Kernel:
    """Answers system calls as a kernel with that version of Landlock would."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.calls: list[int] = []
        self.attributes = b""

    def __call__(self, number: int, *arguments: object) -> int:
        if not self.version:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if arguments[-1] == 1 and number == 444:
            return self.version
        self.calls.append(number)
        if number == 444:
            assert isinstance(arguments[0], bytes)
            self.attributes = arguments[0]
            return os.open("/dev/null", os.O_RDONLY)
        return 0


@pytest.mark.parametrize(
    ("version", "words"),
    [(2, (0x3FFF,)), (3, (0x7FFF,)), (5, (0xFFFF,)), (6, (0xFFFF, 0, 3)), (9, (0xFFFF, 0, 3))],
)
def test_each_kernel_is_asked_for_what_it_knows(
    version: int, words: Sequence[int], tmp_path: Path
) -> None:
    kernel = Kernel(version)
    pid = os.fork()  # it gives up rights for ever
    if pid == 0:
        confine(tmp_path, (), kernel)
        told = struct.unpack(f"{len(kernel.attributes) // 8}Q", kernel.attributes)
        fine = told == words and kernel.calls[-1] == 446 and kernel.calls.count(445) > 10
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_kernel_that_cannot_is_said_to_and_asked_for_nothing(tmp_path: Path) -> None:
    for version, said in ((0, "no Landlock"), (1, "older than Linux 5.19")):
        kernel = Kernel(version)
        assert said in why_unconfined(kernel)
        confine(tmp_path, (), kernel)
        assert kernel.calls == []
