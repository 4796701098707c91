"""Versions, tools and limits of the machine."""

import os
import platform
import resource
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.rows import Row, attempt, judged, seen, skipped

#: Package, where it is imported from, and what is done without it.
_PACKAGES: Final = (
    ("torch", "torch", "nothing runs"),
    ("numpy", "numpy", "nothing runs"),
    ("msgspec", "msgspec", "nothing runs: carry the wheel"),
    ("highspy", "highspy", "no plans of interlace's own: carry the wheel"),
    ("cuda-bindings", "cuda.bindings", "nothing runs"),
    ("cuda-core", "cuda.core", "nothing is lost"),
    ("triton", "triton", "no compiled models"),
    ("nvidia-ml-py", "pynvml", "no counters, no power"),
    ("transformers", "transformers", "no BERT and no GPT-2"),
)
_TOOLS: Final = ("cc", "nvidia-smi", "nvidia-cuda-mps-control")
_HUGE: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def rows(bench: Bench) -> Iterator[Row]:
    """What is installed, what the driver says it is, what may be page-locked and shared."""
    yield seen("python", platform.python_version())
    for package, module, without in _PACKAGES:
        yield _package(package, module, without)
    yield from attempt("torch", _torch)
    for tool in _TOOLS:
        path = shutil.which(tool)
        yield seen(tool, path) if path else skipped(tool, "not on the path")
    yield from _machine()
    yield from attempt("driver", lambda: _driver(bench))


def _package(package: str, module: str, without: str) -> Row:
    with suppress(PackageNotFoundError, ModuleNotFoundError):
        if find_spec(module) is not None:
            return seen(package, version(package))
    return skipped(package, f"not installed: {without}")


def _torch() -> Iterable[Row]:
    import torch

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    yield seen("torch was built for", f"CUDA {torch.version.cuda}, cuDNN {cudnn}")
    graph = getattr(torch.cuda, "CUDAGraph", None)
    there = hasattr(graph, "raw_cuda_graph_exec")
    words = "there" if there else "missing"
    yield judged("torch.cuda.CUDAGraph.raw_cuda_graph_exec", "there", words, there)


def _machine() -> Iterator[Row]:
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    words = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 20} MiB"
    yield seen("page-locked memory allowed (RLIMIT_MEMLOCK)", words)
    shm = os.statvfs("/dev/shm")
    free_bytes = shm.f_bavail * shm.f_frsize
    yield judged(
        "/dev/shm", "at least 2 GiB free", f"{free_bytes / 2**30:.1f} GiB free",
        free_bytes >= 2 << 30, free_bytes=free_bytes,
    )  # fmt: skip
    if _HUGE.exists():
        yield seen("huge pages", _HUGE.read_text().strip())
    cores = len(os.sched_getaffinity(0))
    yield seen("cores", str(cores), cores=cores)


def _driver(bench: Bench) -> Iterable[Row]:
    with bench.backend() as backend:
        board = backend.driver.board
        yield seen(
            "GPU", f"{board.name}, {board.sms} SMs, {board.memory_bytes / 2**30:.1f} GiB",
            uuid=board.uuid, sms=board.sms, memory_bytes=board.memory_bytes,
            capability=list(board.capability),
        )  # fmt: skip
        words = f"{board.driver // 1000}.{board.driver % 1000 // 10}"
        yield judged("CUDA of the driver", "13.0", words, words == "13.0", driver=board.driver)
        able = board.capability >= (9, 0)
        words = ".".join(map(str, board.capability))
        yield judged("compute capability", "9.0 or later", words, able)
