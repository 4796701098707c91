"""The files that a worker may reach: Landlock confines it, where the kernel has that."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from interlace.core.model import CODE_SUFFIXES, MODEL_FILES

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every processor
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_NO_NEW_PRIVS: Final = 38
_CAPABILITIES_VERSION: Final = 0x20080522
#: Capabilities to look into other processes: SYS_PTRACE, SYS_ADMIN and PERFMON.
_WATCHING: Final = (19, 21, 38)
#: Version 1 cannot rename between folders, which the shared weights need.
_LEAST_VERSION: Final = 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_TRUNCATE, _DEVICE_CONTROL = 1 << 14, 1 << 15
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
#: Neither signals nor abstract sockets leave the worker.
_SCOPES: Final = 3

#: What libraries read of the system; no folder in which keys are kept.
_SYSTEM: Final = (
    "/usr", "/lib", "/lib64", "/bin", "/proc", "/sys", "/dev/urandom", "/dev/random",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/ssl", "/etc/mime.types", "/etc/os-release",
)  # fmt: skip
_WRITTEN: Final = ("/dev/null", "/dev/zero")
_VERSION: Final = re.compile("[1-9][0-9]*")
#: Keys are smaller; so are few weights.
_KEY_BYTES: Final = 64 << 10
SystemCall = Callable[..., int]


def _system_call(number: int, *arguments: object) -> int:
    """As ``syscall(2)``. Raises OSError."""
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def why_unconfined(system_call: SystemCall = _system_call) -> str:
    """Why workers cannot be confined on this kernel; empty if they can."""
    try:
        version = system_call(_CREATE, None, 0, _ASK_VERSION)
    except OSError as error:
        return f"this kernel has no Landlock ({error.strerror})"
    return "" if version >= _LEAST_VERSION else "Landlock of this kernel is older than Linux 5.19"


def confine(
    models: Path,
    writable: Iterable[str],
    system_call: SystemCall = _system_call,
    readable: Iterable[str] = (),
) -> None:
    """Let this process read models, Python and system libraries, and write ``writable`` alone.

    It reads ``readable`` folders, too.

    It loses the right to look into processes outside, too, so that no key can be read there. Only
    the calling thread and its children are confined. Nothing happens where the kernel cannot.

    Raises:
        OSError: the kernel refuses what it offers.
    """
    if why_unconfined(system_call):
        return
    version = system_call(_CREATE, None, 0, _ASK_VERSION)
    handled = (1 << (13 + min(version, 3) - 1)) - 1 | (_DEVICE_CONTROL if version >= 5 else 0)
    fields = (handled,) if version < 6 else (handled, 0, _SCOPES)
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = system_call(_CREATE, attributes, len(attributes), 0)
    try:
        for path in (*_SYSTEM, *_python_folders(), *_model_folders(models), *readable):
            _allow(ruleset, path, _READ & handled, system_call)
        for path in (*_WRITTEN, tempfile.gettempdir(), *writable):
            _allow(ruleset, path, handled & ~_DEVICE_CONTROL, system_call)
        _give_up_privileges()
        system_call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _give_up_privileges() -> None:
    """A superuser could look into other processes in spite of Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITIES_VERSION, 0))
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; and again, of the second 32
    failed = libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 or libc.capget(header, data) < 0
    for capability in _WATCHING:
        for kind in range(3):
            data[capability // 32 * 3 + kind] &= ~(1 << capability % 32)
    if failed or libc.capset(header, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _allow(ruleset: int, path: str, access: int, system_call: SystemCall) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rights = access if os.path.isdir(path) else access & _OF_FILES
            rule = struct.pack("=Qi", rights, descriptor)
            system_call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)


def _python_folders() -> Iterator[str]:
    package = Path(__file__).resolve().parents[2]
    yield from (sys.prefix, sys.base_prefix, str(package))
    here = Path.cwd()  # ``python -m`` searches it, whatever lies there
    yield from (one for one in sys.path if one and (Path(one) != here or package.parent == here))


def _model_folders(models: Path) -> Iterator[str]:
    """The repository, and what links in it lead to, if it is models: folders of them, their data.

    A link that lies beside code leads nowhere, nor does one to what may be a key.
    """
    yield str(models)
    for name in _entries(models):
        if os.path.islink(name) and os.path.isdir(name):
            yield name
        inside = _entries(Path(name))
        versions = [entry for entry in inside if _VERSION.fullmatch(os.path.basename(entry))]
        files = [file for entry in (name, *versions) for file in _entries(Path(entry))]
        yield from (one for one in versions if os.path.islink(one) and _holds_model(one))
        if not any(file.endswith(CODE_SUFFIXES) for file in files):
            yield from (file for file in files if os.path.islink(file) and not _may_be_key(file))


def _holds_model(folder: str) -> bool:
    files = [os.path.basename(file) for file in _entries(Path(folder))]
    weights = any(file.endswith(".safetensors") for file in files)  # others have a config.json, too
    return any(file in MODEL_FILES.values() for file in files) or (
        weights and "config.json" in files
    )


def _may_be_key(file: str) -> bool:
    """A folder, or a small file that its owner alone can read."""
    try:
        status = os.stat(file)
    except OSError:
        return True
    private = not status.st_mode & (stat.S_IRGRP | stat.S_IROTH)
    return not stat.S_ISREG(status.st_mode) or (private and status.st_size < _KEY_BYTES)


def _entries(folder: Path) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:
        return []
