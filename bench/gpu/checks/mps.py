"""Whether MPS can be had here, with percentages, and whether it leaves the card as it was.

The daemon is started on pipes of its own, the compute mode is left alone, and it is stopped again
whatever happens. Nothing here is done if somebody else's daemon runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.rows import Row, attempt, judged, seen, skipped
from interlace.device.cuda.mps import PROGRAM, MpsControl

_CLIENT_S: Final = 8.0
#: What a client says of itself, and a green context of it where no percentage was set.
_CLIENT: Final = """
import sys
from cuda.bindings import driver as cu
def ask(answer):
    if int(answer[0]): raise SystemExit(str(answer[0]))
    return answer[1]
cu.cuInit(0)
device = ask(cu.cuDeviceGet(0))
context = ask(cu.cuDevicePrimaryCtxRetain(device))
kind = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
print(ask(cu.cuDeviceGetAttribute(kind, device)))
if "green" in sys.argv:
    sms = cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = ask(cu.cuDeviceGetDevResource(device, sms))
    answer = cu.cuDevSmResourceSplitByCount(1, whole, 0, 16)
    groups = ask(answer)
    described = ask(cu.cuDevResourceGenerateDesc(groups[:1], 1))
    green = ask(cu.cuGreenCtxCreate(described, device, 1))
    print(ask(cu.cuGreenCtxGetDevResource(green, sms)).sm.smCount)
"""


def rows(bench: Bench) -> Iterator[Row]:
    """Daemon up, two clients with percentages, green contexts inside a client, daemon down."""
    if shutil.which(PROGRAM) is None:
        yield skipped("MPS", f"{PROGRAM} is not on the path: MPS cannot be had here")
        return
    if bench.dry:
        yield skipped("MPS", "a dry run starts no daemon")
        return
    with bench.driver() as driver:
        sms, uuid = driver.board.sms, driver.board.uuid
    before = _compute_mode()
    control = MpsControl(uuid)
    control.start()
    environment = {**os.environ, **control.environment()}
    try:
        yield from attempt("clients", lambda: _clients(environment, sms))
    finally:
        control.stop()
    yield from attempt("after MPS", lambda: _after(before, sms))


def _tell(environment: Mapping[str, str], words: str) -> str:
    said = subprocess.run(
        [PROGRAM], env=environment, input=f"{words}\n", capture_output=True, text=True,
        timeout=6, check=False,
    )  # fmt: skip
    return (said.stdout + said.stderr).strip()


def _client(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CLIENT, *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def client_sms(environment: Mapping[str, str], share_pct: int) -> int:
    """The SMs that a client with that percentage has.

    Raises:
        ValueError: what it said instead.
        OSError: it cannot be started, or does not end.
    """
    held = {**os.environ, **environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share_pct)}
    with _client(held) as client:
        try:
            said = client.communicate(timeout=_CLIENT_S)[0].strip()
        except subprocess.TimeoutExpired as error:
            client.kill()
            raise TimeoutError(f"no answer of a client within {_CLIENT_S:g} s") from error
    words = said.split()
    if not words or not words[-1].isdigit():
        raise ValueError(f"a client of MPS said: {said[-300:]}")
    return int(words[-1])


def _clients(environment: dict[str, str], sms: int) -> Iterator[Row]:
    shares_pct = (40, 60)
    pair = [
        _client({**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)})
        for share in shares_pct
    ]
    whole = _client(environment, "green")
    said = [one.communicate(timeout=_CLIENT_S)[0].split() for one in (*pair, whole)]
    for share, words in zip(shares_pct, said, strict=False):
        wanted = sms * share // 100
        holds = words[-1:] != [] and abs(int(words[-1]) - wanted) <= 2
        yield judged(f"SMs of a client at {share} %", f"about {wanted}", " ".join(words), holds)
    *_, last = said
    yield judged(
        "green context of 16 SMs inside a client", f"{sms}, 16", ", ".join(last),
        last == [str(sms), "16"],
    )  # fmt: skip
    yield seen("the server's clients afterwards", _tell(environment, "get_server_list") or "none")


def _compute_mode() -> str:
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_mode,memory.used", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=5, check=False,
    )  # fmt: skip
    return said.stdout.partition(",")[0].strip()


def _after(before: str, sms: int) -> Iterator[Row]:
    mode = _compute_mode()
    yield judged("compute mode after MPS", before, mode, mode == before)
    said = _client(os.environ).communicate(timeout=_CLIENT_S)[0].split()
    yield judged("SMs of a process after MPS", str(sms), " ".join(said), said == [str(sms)])
    left = subprocess.run(["ps", "-eo", "comm"], capture_output=True, text=True, check=False)
    there = [name for name in left.stdout.split() if name.startswith("nvidia-cuda-mps")]
    yield judged("processes of MPS left", "none", ", ".join(there) or "none", not there)
