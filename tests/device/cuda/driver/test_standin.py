"""The real driver object, the bindings and the kernels' source, run on this machine's CPU.

A stand-in for libcuda takes what the bindings hand over and runs the kernels as host code, in a
process of its own: this one must not find a GPU that is not there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.cuda.driver.standin import build

CONTRACT = Path(__file__).with_name("test_contract.py")
SCRIPT = """
import threading
from tests.device.cuda.driver.drivers import real
driver = real()
assert driver.board == (
    "Stand-in", "GPU-00112233-4455-6677-8899-aabbccddeeff", (9, 0), 132, 4 << 30, 13000
), driver.board
address = driver.allocate(1000)
opened = driver.ipc_open(driver.ipc_handle(address))
assert opened == address
driver.ipc_close(opened)
stream = driver.stream()
driver.launch_graph(0x5EED, stream)
seen = []
thread = threading.Thread(target=lambda: seen.append(driver.memory()))
thread.start(); thread.join()
assert seen == [driver.memory()]
driver.free(address)
from interlace.device.cuda.driver import bound
assert bound._compiled() is not None, "copies are enqueued by a compiled call where cc is"
print("all of it")
"""
#: A kernel on a stream of a green context, and which handle it was launched by at last.
LAUNCH = """
import sys
from tests.device.cuda.driver.drivers import REAL, Rig
from interlace.device.cuda.driver.api import CudaError
rig = Rig(REAL)
driver = rig.driver
atoms = driver.split(8).atoms
green = driver.green(atoms[2:4])
driver.enter(green)
driver.enter(None)
whole, rig.stream = rig.stream, driver.stream(green)
for _ in range(2):
    seen, view = rig.mapped(8 * 16)
    rig.launch("smid", seen.device, 0, blocks=16)
    assert set(view[::8].tolist()) == set(range(16, 32)), view
print("way", driver._handles._ways.get(green.handle, 0))
try:
    driver.launch(rig.kernels.smid, (1, 1, 1), (1, 2, 1), rig.stream, (seen.device, 0))
except CudaError as error:
    assert error.name in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE"), error
driver.destroy_stream(rig.stream)
driver.destroy_green(green)
assert driver.split(8, clusters=False).atoms
rig.stream = whole
rig.close()
"""


#: Bytes of the host over a peer's link, and what a thread's own GPU is afterwards.
PEER = """
import ctypes, os
from tests.device.cuda.driver.drivers import real
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.driver.api import CopyGroup
from interlace.device.cuda.memory import weights_memory
weights_memory.HALF_BYTES = 1000
driver = real()
try:
    first = weights_memory.PeerPath(driver, 1)
except CudaError as error:
    driver.close()
    raise SystemExit(print("refused", error.name))
second = weights_memory.PeerPath(driver, 1)  # torch may ask for access to the other GPU, too
host = driver.allocate_mapped(5000)
ctypes.memmove(host.host, sent := os.urandom(5000), 5000)
target, stream, ready = driver.allocate(5000), driver.stream(), driver.event()
pieces = [(target, host.host, 4000), (target + 4000, host.host + 4000, 1000)]
for path in (first, second):
    ctypes.memset(target, 0, 5000)
    path.bring([CopyGroup(0, pieces, ready)])
    assert ctypes.string_at(target, 5000) == sent
    driver.copy(target, host.device, 8, stream)  # of the own GPU, by its own context
    driver.record(ready, stream)
    path.close()
print("passed on")
"""


def include() -> Path | None:
    """Where the toolkit's headers are."""
    nvcc = shutil.which("nvcc")
    places = [Path("/usr/local/cuda/include"), Path("/usr/include")]
    if nvcc is not None:
        places.insert(0, Path(nvcc).resolve().parent.parent / "include")
    return next((one for one in places if (one / "cuda.h").exists()), None)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = include()
    if found is None or shutil.which("g++") is None or shutil.which("nvcc") is None:
        pytest.skip("needs g++ and the CUDA toolkit (nvcc, cuda.h)")
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    folder = tmp_path_factory.mktemp("standin")
    build(folder, found)
    path = os.pathsep.join([str(CONTRACT.parents[4]), *sys.path])
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path}


def test_the_contract_holds(environment: dict[str, str]) -> None:
    options = ["-q", "-k", "real", "-p", "no:cacheprovider"]
    done = run(["-m", "pytest", *options, str(CONTRACT)], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and " passed" in done.stdout, done.stdout


def test_what_a_single_process_can_say_of_the_rest(environment: dict[str, str]) -> None:
    done = run(["-c", SCRIPT], environment)
    assert done.returncode == 0 and "all of it" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("gpus", "near", "said"),
    [
        (2, 1, "passed on"),
        (2, 0, "refused CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
        (1, 1, "refused CUDA_ERROR_INVALID_DEVICE"),
    ],
)
def test_weights_are_passed_on_by_another_gpu(
    environment: dict[str, str], gpus: int, near: int, said: str
) -> None:
    machine = {"STANDIN_GPUS": str(gpus), "STANDIN_PEERS": str(near)}
    done = run(["-c", PEER], {**environment, **machine})
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.parametrize("refuses", [0, 1, 2])
def test_a_handle_that_a_green_stream_refuses_is_replaced(
    environment: dict[str, str], refuses: int
) -> None:
    done = run(["-c", LAUNCH], {**environment, "STANDIN_REFUSES": str(refuses)})
    assert done.returncode == 0 and f"way {refuses}" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("atoms", "mixes", "found"), [(16, 1, (16, 8, 4)), (15, 1, (16, 8, 4)), (14, 0, (8, 16, 4))]
)
def test_a_driver_is_asked_for_its_atoms_in_another_process(
    environment: dict[str, str], atoms: int, mixes: int, found: tuple[int, int, int]
) -> None:
    code = (
        "from interlace.device.cuda.green_contexts.atoms import ask_atoms; "
        "(one,) = ask_atoms(['GPU-0']); print(one.count, one.atom_sms, one.rest_sms)"
    )
    board = {"STANDIN_ATOMS": str(atoms), "STANDIN_MIXES": str(mixes)}
    done = run(["-c", code], {**environment, **board})
    assert tuple(map(int, done.stdout.split())) == found, done.stderr


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=CONTRACT.parents[4],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
