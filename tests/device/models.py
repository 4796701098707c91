"""Models for device tests that need no framework: each does what its name says."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats.runner import Array

OPENER = "tests.device.models:open_fake"
WEIGHTS_BYTES = 64 << 20
SLOW_S = 0.25

Inputs = Mapping[str, Array]
Outputs = dict[str, Array]


class Fake:
    """A runner around one function, with some memory of its own."""

    warnings: tuple[str, ...] = ()
    cold = None

    def __init__(
        self, signature: Signature, run: Callable[[Inputs], Outputs], memory: Array | None = None
    ) -> None:
        self.signature = signature
        self.run = run
        self._memory = memory
        self.shared_bytes = memory.nbytes if isinstance(memory, np.memmap) else 0
        self.resident_bytes = self.shared_bytes

    def close(self) -> None:
        self._memory = None


def tensor(name: str, datatype: str = "FP32", *dims: int) -> TensorSpec:
    return TensorSpec(name, datatype, dims or (-1,))


def model(
    name: str,
    *,
    inputs: tuple[TensorSpec, ...] = (tensor("x"),),
    outputs: tuple[TensorSpec, ...] = (tensor("y"),),
    batched: bool = True,
    terms: ServiceTerms | None = None,
) -> Model:
    signature = Signature(inputs, outputs, batched, 32 if batched else 1)
    return Model(
        name,
        1,
        Format.FACTORY,
        "",
        name,
        signature,
        terms or ServiceTerms(100.0),
        sample={"x": (4,)},
    )


def open_fake(model: Model, threads: int, weights_dir: str | None, call: object = None) -> Fake:
    """The ``open_model`` of device tests: by model name."""
    if model.name == "broken":
        raise RuntimeError("file model.bin: found nonsense")
    if model.name == "late":
        time.sleep(30)
    if model.name == "crash-load":
        os._exit(3)
    if model.name.startswith("killed"):  # each time, or the first time alone
        tries = Path(tempfile.gettempdir(), model.name)
        tries.touch()
        with tries.open("a") as file:
            file.write("x")
        if model.name == "killed" or tries.stat().st_size < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Fake(model.signature, _double)
    if model.name == "heavy":
        memory: Array = np.ones(WEIGHTS_BYTES, np.uint8)
        return Fake(model.signature, _double, memory)
    if model.name == "shared":
        return Fake(model.signature, _double, _shared_weights(model, weights_dir))
    if model.name == "threads":
        return Fake(model.signature, lambda inputs: {"y": inputs["x"] * 0 + threads})
    return Fake(model.signature, _BEHAVIOURS[model.name])


def _shared_weights(model: Model, weights_dir: str | None) -> Array:
    assert weights_dir is not None
    path = Path(weights_dir, model.digest)
    if not path.exists():
        np.ones(WEIGHTS_BYTES, np.uint8).tofile(path)
    memory = np.memmap(path, np.uint8, "r")
    assert memory[::512].sum() > 0  # touch every page
    return memory


def _double(inputs: Inputs) -> Outputs:
    return {"y": inputs["x"] * 2}


def _identity(inputs: Inputs) -> Outputs:
    return {"y": inputs["x"]}


def _tail(inputs: Inputs) -> Outputs:
    return {"y": inputs["x"].reshape(-1)[1:]}


def _both(inputs: Inputs) -> Outputs:
    return {"y": inputs["x"] + inputs["z"], "same": inputs["z"], "sum": _sums(inputs["x"])}


def _sums(array: Array) -> Array:
    sums: Array = array.sum(axis=1, keepdims=True)
    return sums


def _slow(inputs: Inputs) -> Outputs:
    time.sleep(SLOW_S)
    return _double(inputs)


def _forever(inputs: Inputs) -> Outputs:
    time.sleep(1000)
    return {}


def _fail(inputs: Inputs) -> Outputs:
    raise KeyError("no such word")


def _leave(inputs: Inputs) -> Outputs:
    sys.exit("done")


def _die(inputs: Inputs) -> Outputs:
    os.kill(os.getpid(), 9)
    return {}


def _upper(inputs: Inputs) -> Outputs:
    upper = [element.upper() for element in inputs["x"].reshape(-1)]
    array = np.empty(len(upper), dtype=object)
    array[:] = upper
    return {"y": array.reshape(inputs["x"].shape)}


def _read(inputs: Inputs) -> Outputs:
    """What the named files hold, or why they cannot be read."""
    array = np.empty(inputs["x"].shape, dtype=object)
    for place, name in np.ndenumerate(inputs["x"]):
        try:
            array[place] = Path(os.fsdecode(name)).read_bytes()
        except OSError as error:
            array[place] = type(error).__name__.encode()
    return {"y": array}


def _process(inputs: Inputs) -> Outputs:
    name = Path("/proc/self/comm").read_text().strip()
    facts = [os.getpid(), sum(os.sched_getaffinity(0)), len(name), os.sched_getscheduler(0)]
    return {"y": np.array([facts] * len(inputs["x"]), np.float32)}


def _where(inputs: Inputs) -> Outputs:
    """Where the input lies: the file that is mapped there, and the bytes from its start."""
    address = inputs["x"].__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode = line.split()[:5]
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            facts = [int(inode), address - first + int(offset, 16)]
            return {"y": np.array([facts] * len(inputs["x"]), np.int64)}
    raise LookupError(f"nothing is mapped at {address:x}")


def _pids(inputs: Inputs) -> Outputs:
    """Which process ran it, and from when until when, on the clock of the machine."""
    began_s = time.monotonic()
    time.sleep(SLOW_S)
    facts = [float(os.getpid()), began_s, time.monotonic()]
    return {"y": np.array([facts] * len(inputs["x"]), np.float64)}


_BEHAVIOURS: dict[str, Callable[[Inputs], Outputs]] = {
    "double": _double,
    "identity": _identity,
    "both": _both,
    "tail": _tail,
    "slow": _slow,
    "forever": _forever,
    "fail": _fail,
    "leave": _leave,
    "die": _die,
    "upper": _upper,
    "read": _read,
    "process": _process,
    "where": _where,
    "pids": _pids,
    "count": lambda inputs: {"y": np.full((len(inputs["x"]), 1), len(inputs["x"]), np.int64)},
    "reverse": lambda inputs: {"y": inputs["x"][:, ::-1]},
    "one-row": lambda inputs: {"y": inputs["x"][:1] * 1},
    "tables": lambda inputs: {"y": np.arange(10, dtype=np.float32)[inputs["x"].astype(int)]},
    "nameless": lambda inputs: {"other": inputs["x"]},
    "wide": lambda inputs: {"y": np.zeros((len(inputs["x"]), 1 << 20), np.float32)},
    "writes": lambda inputs: {"y": np.multiply(inputs["x"], 2, out=inputs["x"])},
}
