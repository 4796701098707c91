"""The fork server: one small single-threaded process from which every worker is forked."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import mmap
import os
import re
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, NoReturn

import msgspec

from interlace.device.process.wire import (
    Exited,
    Forked,
    ForkWorker,
    FromForkServer,
    Preload,
    decode_to_fork_server,
)
from interlace.shm.frame_socket import FRAME_BYTES_MAX

Entry = Callable[[socket.socket, str], None]
#: How long workers may take to end by themselves, ``finalize`` of their models included; less than
#: the main process waits for all.
_PATIENCE_S: Final = 3.0
_LOOK_S: Final = 0.005
#: In smaps, begin and end of what is mapped read-only and as it is in its file.
_UNCHANGED: Final = re.compile(
    r"^(\w+)-(\w+) r-.p .*/.*\n(?:\w+: .*\n)*?Anonymous: +0 kB\n(?:\w+: .*\n)*?Swap: +0 kB", re.M
)


def main(descriptor: int, entry: str) -> None:
    """Fork a worker per ``ForkWorker`` frame until the main process closes its end.

    ``entry`` is ``module:function``: what a worker runs, with its socket and its name.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # The main process drains, then closes the socket. Programs that models start would ignore
        # what is ignored here; what is handled ends them.
        signal.signal(number, lambda *_: None)
    # Thread pools that libraries make on import are sized by the affinity: with one core there are
    # none, and forking stays safe. Each worker sets its own affinity.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sock = socket.socket(fileno=descriptor)
    sys.argv = [""]  # as in Triton: libraries of models that parse it would take our arguments
    # Workers have a folder of their own: other users' and the operator's files lie in /tmp.
    with tempfile.TemporaryDirectory(prefix="interlace-locked-workers-") as folder:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)  # unlocked ones are swept
        tempfile.tempdir = folder
        _ForkServer(sock, resolve_name(entry)).serve()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # processes that the code of models left


def _let_go(sock: socket.socket) -> None:
    """In a process that the code of a model forked: it does not answer, and can be ended."""
    sock.close()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class _ForkServer:
    def __init__(self, sock: socket.socket, entry: Entry) -> None:
        self._sock = sock
        self._entry = entry
        self._encode = msgspec.msgpack.Encoder().encode
        self._children: dict[int, int] = {}  # worker by pid
        self._wakeup, wake = socket.socketpair()
        for end in (self._wakeup, wake):
            end.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wakeup:
                    self._reap()
                elif not self._carry_out():
                    self._end()
                    return

    def _carry_out(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, FRAME_BYTES_MAX, 1)
        except ConnectionError:
            return False
        if not data:
            return False
        match decode_to_fork_server(memoryview(data)):
            case Preload(modules=modules):
                _preload(modules)
            case ForkWorker() as fork:
                self._fork(fork, descriptors[0])
        return True

    def _fork(self, fork: ForkWorker, descriptor: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(fork, descriptor)
        os.close(descriptor)
        self._children[pid] = fork.worker
        self._send(Forked(fork.worker, pid))

    def _become_worker(self, fork: ForkWorker, descriptor: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for thing in (self._selector, self._wakeup, self._wake, self._sock):
                thing.close()
            sock = socket.socket(fileno=descriptor)
            os.register_at_fork(after_in_child=partial(_let_go, sock))
            self._entry(sock, fork.name)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker = self._children.pop(pid)
            self._send(Exited(worker, os.waitstatus_to_exitcode(status)))

    def _end(self) -> None:
        # Workers end by themselves when their sockets close; one that is busy would not soon.
        ends_s = time.monotonic() + _PATIENCE_S
        while self._children and time.monotonic() < ends_s:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            self._children.pop(pid, None)
            if not pid:
                time.sleep(_LOOK_S)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _send(self, frame: FromForkServer) -> None:
        with contextlib.suppress(OSError):  # the main process is gone: the next read says so
            self._sock.send(self._encode(frame))


def _preload(modules: tuple[str, ...]) -> None:
    for module in modules:
        # A library that is missing or broken is the error of the model that needs it.
        with contextlib.suppress(Exception):
            import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a worker would touch, and so copy, every shared page
    _release_file_pages()


def _release_file_pages() -> None:
    """Give back the pages of libraries' files that importing read: 54 MB with torch.

    They are read again where they are needed. Forked workers do not inherit such pages.
    """
    for begin, end in _UNCHANGED.findall(Path("/proc/self/smaps").read_text()):
        place = ctypes.c_void_p(int(begin, 16)), ctypes.c_size_t(int(end, 16) - int(begin, 16))
        ctypes.CDLL(None).madvise(*place, mmap.MADV_DONTNEED)
