"""Entry of the process that holds a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.worker.context import GpuContext, weight_server_models
from interlace.device.cuda.worker.model_cache import freeze_heap
from interlace.device.cuda.worker.weight_server import WeightServer
from interlace.device.cuda.worker.wire import (
    FromGpu,
    GpuReady,
    GpuReply,
    GpuSetup,
    Notice,
    ToGpu,
    decode_to_gpu,
)
from interlace.device.cuda.worker.worker import GpuWorker
from interlace.device.process.error_text import error_text
from interlace.device.process.wire import Failed, Ready
from interlace.shm.frame_socket import BlockingFrameSocket

Note = Callable[[str], None]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_TIMERSLACK: Final = 29
_SLACK_NS: Final = 1_000  #: a rest of 20 us would take 70 with the usual 50
_OOM_SCORE: Final = "500"  # when memory runs out, a worker goes before the server
#: The main loop and the loader share one interpreter: launches do not wait for 5 ms of Python.
_SWITCH_S: Final = 1e-4
GPU_FAILED: Final = 70  #: exit code when the GPU failed: what it held is not given back piecemeal


def main(descriptor: int, owner_pid: int, name: str) -> None:
    """Serve frames until the owner closes its end; the first frame is ``GpuSetup``."""
    _settle(owner_pid, name)
    frames: BlockingFrameSocket[FromGpu, ToGpu] = BlockingFrameSocket(
        socket.socket(fileno=descriptor), decode_to_gpu
    )
    status = 0
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            status = _serve(frames)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the driver and of torch have nothing more to say


def _serve(frames: BlockingFrameSocket[FromGpu, ToGpu]) -> int:
    setup = frames.receive()
    if setup is None:
        return 0

    def note(text: str) -> None:
        with contextlib.suppress(OSError):  # the other end is closed: nobody reads it
            frames.send(Notice(text))

    try:
        if not isinstance(setup, GpuSetup):
            raise ValueError(f"a {type(setup).__name__} frame is not expected here")
        if setup.lends:
            return _keep(setup, frames, note)
        context = GpuContext(setup, note)
    except Exception as error:
        frames.send(GpuReply("", Failed(error_text("the GPU's process could not start", error))))
        return 0
    worker = GpuWorker(frames, context, setup.patience_s)
    freeze_heap()
    frames.send(GpuReply("", GpuReady(context.lanes.blocks, context.took_s)))
    try:
        worker.serve()
    except CudaError:
        return GPU_FAILED
    if worker.in_flight or not context.loader.idle:
        return 0  # nobody waits for it: the driver gives everything back when the process ends
    context.close()
    return 0


def _keep(setup: GpuSetup, frames: BlockingFrameSocket[FromGpu, ToGpu], note: Note) -> int:
    with ExitStack() as steps:
        server = WeightServer(
            setup.lends, frames.fileno(), *weight_server_models(setup, note, steps)
        )
        frames.send(GpuReply("", Ready()))
        server.serve()
    return 0


def _settle(owner_pid: int, name: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the main process drains, then closes the socket
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner_pid:
        os._exit(0)  # it died before it could be watched
    library.prctl(_PR_SET_NAME, name[:15].encode(), 0, 0, 0)
    library.prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)  # of threads made from now on, too
    sys.setswitchinterval(_SWITCH_S)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
