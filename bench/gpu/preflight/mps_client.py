"""What a client of MPS says of itself."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

_CLIENT_S: Final = 8.0
_CLIENT: Final = """
from cuda.bindings import driver as cu
def ask(answer):
    if int(answer[0]): raise SystemExit(str(answer[0]))
    return answer[1]
cu.cuInit(0)
device = ask(cu.cuDeviceGet(0))
context = ask(cu.cuDevicePrimaryCtxRetain(device))
kind = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
print(ask(cu.cuDeviceGetAttribute(kind, device)))
"""


def client_sms(environment: Mapping[str, str], share_pct: int) -> int:
    """The SMs that a client with that percentage has.

    Raises:
        ValueError: what it said instead.
        OSError: it cannot be started, or does not end.
    """
    held = {**os.environ, **environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share_pct)}
    try:
        said = subprocess.run(
            [sys.executable, "-c", _CLIENT], env=held, text=True, timeout=_CLIENT_S, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ).stdout.strip()  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no answer of a client within {_CLIENT_S:g} s") from error
    words = said.split()
    if not words or not words[-1].isdigit():
        raise ValueError(f"a client of MPS said: {said[-300:]}")
    return int(words[-1])
