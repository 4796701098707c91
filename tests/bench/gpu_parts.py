"""Parts that end well and badly, in place of gpu-check's own: a plugin of pytest."""

import os
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from bench.gpu import child, parts
from bench.gpu.bench import Bench
from bench.gpu.parts import Part
from bench.gpu.rows import Row, judged, law, seen

#: Files of parts that wait: what they have started.
FAR: Final = "far"


def good(bench: Bench) -> Iterator[Row]:
    yield seen("connections", os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
    yield judged("rate", "1.0", "2.0", False)


def crash(bench: Bench) -> Iterator[Row]:
    yield seen("before", "there")
    os.abort()


def hang(bench: Bench) -> Iterator[Row]:
    yield seen("before", "there")
    far = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (bench.out / FAR).write_text(f"{os.getpid()} {far.pid}")
    time.sleep(600)


def lawless(bench: Bench) -> Iterator[Row]:
    yield law("lost", "none", "3", False)


def grandchild(bench: Bench) -> Iterator[Row]:
    from multiprocessing import get_context

    context = get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_parent, args=(theirs,))
    process.start()
    yield seen("one server for both", str(ours.recv() == os.getppid()))
    process.join()


def _send_parent(pipe: "child.Connection") -> None:
    pipe.send(os.getppid())


def _part(name: str, seconds: float = 60.0) -> Part:
    return Part(name, seconds, name, f"tests.bench.gpu_parts:{name}")


parts.PARTS = (
    _part("crash"),
    _part("good"),
    _part("grandchild"),
    _part("lawless"),
    _part("hang", float(os.environ.get("HANG_S", "60"))),
    _part("long", 1000.0),
)
child.PRELOAD[:] = ["bench.gpu.child"]  # no part needs torch
