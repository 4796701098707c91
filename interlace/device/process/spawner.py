"""The fork server's client: asks for workers and reports their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from interlace.device.process.wire import (
    Exited,
    Forked,
    ForkWorker,
    FromForkServer,
    Preload,
    ToForkServer,
)
from interlace.device.process.wire import decode_from_fork_server as decode
from interlace.shm import children
from interlace.shm.frame_socket import AsyncFrameSocket, frame_pair

_CODE: Final = (
    "import json, sys; descriptor, entry, sys.path[:] = json.loads(sys.argv[1]); "
    "from interlace.device.process.fork_server import main; main(descriptor, entry)"
)
#: In the environment of a model: of the server's packages, those that a worker needs are imported.
_CODE_IN_ENVIRONMENT: Final = (
    "import json, sys; descriptor, entry, folders = json.loads(sys.argv[1]); sys.path += folders; "
    "import interlace, msgspec.msgpack, numpy; del sys.path[-len(folders):]; "
    "from interlace.device.process.fork_server import main; main(descriptor, entry)"
)
#: onnxruntime reports to its maker unless this is set before it is imported, by a thread that it
#: starts on import, which would make forking unsafe.
_QUIET: Final = ("env", "ORT_DISABLE_TELEMETRY=1")
_CLOSE_S: Final = 4.0
_PACKAGES: Final = Path(__file__).resolve().parents[3]  #: where Interlace lies


@dataclass(frozen=True, slots=True)
class SpawnCallbacks:
    """Called when a worker was forked and when it ended; ``status`` as in ``wire.Exited``."""

    forked: Callable[[int], None]  #: its process id
    exited: Callable[[int | None], None]  #: exit status, ``None`` if the fork server died before


class ForkServerSpawner:
    """Starts the fork server when it is first needed, and again if it dies.

    Forking from a small process that has the libraries loaded takes milliseconds, shares their
    pages, and is safe whatever threads the main process has. Nothing here blocks the loop.
    ``entry`` is ``module:function``, run in each worker with its socket and its name. With an
    ``environment``, a folder with its own ``bin/python``, workers run in that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, entry: str, environment: str = "") -> None:
        self._loop = loop
        self._entry = entry
        self._environment = environment
        self._inner: dict[str, ForkServerSpawner] = {}  #: by environment
        self._ids = count(1)
        self._modules: dict[str, None] = {}
        self._callbacks: dict[int, SpawnCallbacks] = {}
        self._frames: AsyncFrameSocket[ToForkServer, FromForkServer] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def within(self, environment: str) -> ForkServerSpawner:
        """The same in an environment, which ends with this one; this one for none."""
        if not environment:
            return self
        if environment not in self._inner:
            made = ForkServerSpawner(self._loop, self._entry, environment)
            self._inner[environment] = made
        return self._inner[environment]

    def preload(self, modules: Iterable[str]) -> None:
        """Have workers forked from now on share these modules; importing begins at once."""
        new = [module for module in modules if module not in self._modules]
        self._modules.update(dict.fromkeys(new))
        if not new:
            return
        with contextlib.suppress(OSError, BufferError):  # reported when a worker is needed
            if self._frames is not None:
                self._frames.send(Preload(tuple(new)))
            else:
                self._started()

    def spawn(self, name: str, descriptor: int, callbacks: SpawnCallbacks) -> None:
        """Fork a worker that talks over ``descriptor``, which must stay open until it is forked."""
        worker = next(self._ids)
        self._callbacks[worker] = callbacks
        try:
            self._started().send(ForkWorker(worker, name), descriptor)
        except (OSError, BufferError):
            self._loop.call_soon(self._exited, worker, None)

    @property
    def pid(self) -> int | None:
        """Process id of the fork server, while it runs."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the fork server and, through it, every worker. Waits four seconds at most."""
        for inner in self._inner.values():
            inner.close()
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        self._bury(_CLOSE_S)

    def _started(self) -> AsyncFrameSocket[ToForkServer, FromForkServer]:
        if self._frames is None:
            ours, theirs = frame_pair()
            folders = [str(_PACKAGES), *sys.path] if self._environment else sys.path
            argument = json.dumps([theirs.fileno(), self._entry, folders])
            try:
                self._process = subprocess.Popen(
                    [*_QUIET, *self._python(), argument],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
            finally:
                theirs.close()
            self._frames = AsyncFrameSocket(self._loop, ours, decode, self._heard, self._lost)
            self._frames.send(Preload(tuple(self._modules)))
        return self._frames

    def _python(self) -> list[str]:
        """What runs the fork server, as arguments of ``env``."""
        if not self._environment:
            return [sys.executable, "-c", _CODE]
        folder = self._environment
        return [
            f"PATH={folder}/bin:/usr/local/bin:/usr/bin:/bin",
            f"LD_LIBRARY_PATH={folder}/lib",
            f"CONDA_PREFIX={folder}",
            f"{folder}/bin/python",
            "-c",
            _CODE_IN_ENVIRONMENT,
        ]

    def _heard(self, frame: FromForkServer) -> None:
        match frame:
            case Forked(worker=worker, pid=pid):
                self._callbacks[worker].forked(pid)
            case Exited(worker=worker, status=status):
                self._exited(worker, status)

    def _exited(self, worker: int, status: int | None) -> None:
        self._callbacks.pop(worker).exited(status)

    def _lost(self) -> None:
        # Workers it forked live on; their own sockets report on them.
        self._frames = None
        self._bury(0.0)
        for worker in list(self._callbacks):
            self._exited(worker, None)

    def _bury(self, patience_s: float) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        children.end(process, patience_s)
