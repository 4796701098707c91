"""The driver itself: the contract on ``cuda.bindings``. Imported only where a GPU is opened.

Groups of copies are enqueued by one compiled call, or call by call where nothing compiles it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from cuda.bindings import driver as cu

from interlace.device.cuda.driver.api import (
    Atom,
    CopyGroup,
    CudaError,
    DeviceMemory,
    DeviceProperties,
    GreenContext,
    MappedBlock,
    SmSplit,
)
from interlace.device.cuda.driver.calls import LaunchHandles, PrimaryContext
from interlace.device.cuda.driver.flag_poller import c_library

_SM: Final = cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
_NON_BLOCKING: Final = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
_EXTERNAL: Final = int(cu.CUevent_wait_flags.CU_EVENT_WAIT_EXTERNAL)
_NO_TIMING: Final = int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
_NAME_CHARS: Final = 256
_IPC_BYTES: Final = 64
#: CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, whose enum some versions do not show.
_NO_CLUSTERS: Final = 1
#: Flags of memory calls by value: the header's names are macros, not enums.
_ALL_CONTEXTS_MAPPED: Final = 1 | 2
_READ_ONLY: Final = 8


class BoundDriver:
    """``Driver`` on a real GPU, by its ordinal among those that this process sees.

    Any thread may call. Handles go in and out as integers.

    Raises:
        CudaError: there is no such GPU, or its driver is too old for a call.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self._ordinal = ordinal
        self._context = PrimaryContext(ordinal)
        self._call = self._context.call
        self._handles = LaunchHandles(self._context)
        self._greens: dict[int, int] = {}  # the green context of each stream that has one
        self.board = self._describe()

    def memory(self) -> DeviceMemory:
        return DeviceMemory(*self._call(cu.cuMemGetInfo))

    def close(self) -> None:
        self._context.release()

    # ------------------------------------------------------------------------------------ memory
    def allocate(self, nbytes: int) -> int:
        return int(self._call(cu.cuMemAlloc, nbytes))

    def free(self, address: int) -> None:
        self._call(cu.cuMemFree, address)

    def allocate_mapped(self, nbytes: int) -> MappedBlock:
        host = int(self._call(cu.cuMemHostAlloc, nbytes, _ALL_CONTEXTS_MAPPED))
        return MappedBlock(host, self._device_address(host), nbytes)

    def free_mapped(self, mapped: MappedBlock) -> None:
        self._call(cu.cuMemFreeHost, mapped.host)

    def register(self, host: int, nbytes: int, read_only: bool = False) -> MappedBlock:
        flags = _ALL_CONTEXTS_MAPPED | (_READ_ONLY if read_only else 0)
        self._call(cu.cuMemHostRegister, host, nbytes, flags)
        return MappedBlock(host, self._device_address(host), nbytes)

    def unregister(self, mapped: MappedBlock) -> None:
        self._call(cu.cuMemHostUnregister, mapped.host)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._call(cu.cuMemcpyAsync, target, source, nbytes, stream)

    def copy_groups(self, groups: Sequence[CopyGroup], stream: int) -> None:
        enqueue(self._context, groups, stream)

    def peer(self, place: int) -> BoundPeer:
        return BoundPeer(self._context, self._ordinal + place)

    def ipc_handle(self, address: int) -> bytes:
        handle = self._call(cu.cuIpcGetMemHandle, address)
        return ctypes.string_at(handle.getPtr(), _IPC_BYTES)

    def ipc_open(self, handle: bytes) -> int:
        # By address: some versions of the bindings do not show the structure's bytes.
        opened = cu.CUipcMemHandle()
        ctypes.memmove(opened.getPtr(), handle, _IPC_BYTES)
        flags = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return int(self._call(cu.cuIpcOpenMemHandle, opened, flags))

    def ipc_close(self, address: int) -> None:
        self._call(cu.cuIpcCloseMemHandle, address)

    # --------------------------------------------------------------------------------------- SMs
    def split(self, atom_sms: int, clusters: bool = True) -> SmSplit:
        # CUDA 13.0 cuts equal groups only; its rest may be put together with groups of the split.
        whole = self._call(cu.cuDeviceGetDevResource, self._context.device, _SM)
        groups = whole.sm.smCount // max(1, atom_sms)
        flags = 0 if clusters else _NO_CLUSTERS
        found, count, rest = self._call(
            cu.cuDevSmResourceSplitByCount, groups, whole, flags, atom_sms
        )
        atoms = tuple(Atom(one.sm.smCount, one) for one in found[:count])
        left = Atom(rest.sm.smCount, rest) if rest.sm.smCount else None
        return SmSplit(atoms, left, clusters)

    def green(self, atoms: Sequence[Atom]) -> GreenContext:
        resources = [atom.resource for atom in atoms]
        described = self._call(cu.cuDevResourceGenerateDesc, resources, len(resources))
        flags = int(cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        handle = self._call(cu.cuGreenCtxCreate, described, self._context.device, flags)
        granted = self._call(cu.cuGreenCtxGetDevResource, handle, _SM)
        return GreenContext(int(handle), granted.sm.smCount)

    def destroy_green(self, green: GreenContext) -> None:
        self._handles.forget(green.handle)
        self._call(cu.cuGreenCtxDestroy, green.handle)

    def enter(self, green: GreenContext | None) -> None:
        self._context.enter(None if green is None else self._context.of(green.handle))

    # ------------------------------------------------------------------------ streams and events
    def stream(self, green: GreenContext | None = None) -> int:
        if green is None:
            return int(self._call(cu.cuStreamCreateWithPriority, _NON_BLOCKING, 0))
        made = int(self._call(cu.cuGreenCtxStreamCreate, green.handle, _NON_BLOCKING, 0))
        self._greens[made] = green.handle
        return made

    def destroy_stream(self, stream: int) -> None:
        self._greens.pop(stream, None)
        self._call(cu.cuStreamDestroy, stream)

    def synchronize(self, stream: int) -> None:
        self._call(cu.cuStreamSynchronize, stream)

    def idle(self, stream: int) -> bool:
        return self._over(cu.cuStreamQuery, stream)

    def event(self, timing: bool = False) -> int:
        flags = 0 if timing else _NO_TIMING
        return int(self._call(cu.cuEventCreate, flags))

    def destroy_event(self, event: int) -> None:
        self._call(cu.cuEventDestroy, event)

    def record(self, event: int, stream: int) -> None:
        self._call(cu.cuEventRecord, event, stream)

    def wait(self, stream: int, event: int, external: bool = False) -> None:
        self._call(cu.cuStreamWaitEvent, stream, event, _EXTERNAL if external else 0)

    def ended(self, event: int) -> bool:
        return self._over(cu.cuEventQuery, event)

    def elapsed_ms(self, begin: int, end: int) -> float:
        return float(self._call(cu.cuEventElapsedTime, begin, end))

    # --------------------------------------------------------------------------- kernels, graphs
    def load_kernels(self, image: bytes) -> int:
        # A library is not bound to a context: its kernels run in that of the stream.
        return int(self._call(cu.cuLibraryLoadData, image, [], [], 0, [], [], 0))

    def kernel(self, module: int, name: str) -> int:
        try:
            found = self._call(cu.cuLibraryGetKernel, module, name.encode())
        except CudaError as error:
            raise CudaError(error.call, error.name, f"kernel {name}") from error
        return self._handles.add(int(found))  # loads it now: in a capture it cannot be

    def unload_kernels(self, module: int) -> None:
        self._call(cu.cuLibraryUnload, module)

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: int,
        arguments: Sequence[int],
    ) -> None:
        words = (ctypes.c_uint64 * len(arguments))(*arguments)
        begin = ctypes.addressof(words)
        places = (ctypes.c_void_p * len(arguments))(*(begin + 8 * i for i in range(len(words))))
        pointers = ctypes.addressof(places)
        green = self._greens.get(stream)
        refused: CudaError | None = None
        for handle in self._handles.of(kernel, green):
            try:
                self._call(cu.cuLaunchKernel, handle, *grid, *block, 0, stream, pointers, 0)
                return
            except CudaError as error:
                refused = refused or error
                if not self._handles.refused(green, error):
                    break
        assert refused is not None
        raise refused

    def launch_graph(self, executable: int, stream: int) -> None:
        self._call(cu.cuGraphLaunch, executable, stream)

    # -------------------------------------------------------------------------------- inside
    def _over(self, query: Callable[..., tuple[Any, ...]], handle: int) -> bool:
        try:
            self._call(query, handle)
        except CudaError as error:
            if error.name == "CUDA_ERROR_NOT_READY":
                return False
            raise
        return True

    def _device_address(self, host: int) -> int:
        return int(self._call(cu.cuMemHostGetDevicePointer, host, 0))

    def _describe(self) -> DeviceProperties:
        device = self._context.device
        name = self._call(cu.cuDeviceGetName, _NAME_CHARS, device)
        major, minor, sms = (
            self._call(cu.cuDeviceGetAttribute, one, device)
            for one in (
                cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        return DeviceProperties(
            name.rstrip(b"\0").decode(),
            _uuid(bytes(self._call(cu.cuDeviceGetUuid, device).bytes)),
            (major, minor),
            sms,
            self._call(cu.cuDeviceTotalMem, device),
            self._call(cu.cuDriverGetVersion),
        )


def _uuid(raw: bytes) -> str:
    digits = raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
    return "GPU-" + "-".join(parts)


_KNOWN: Final = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"


class BoundPeer:
    """Its primary context is current for the length of each call alone: threads keep ``own``.

    Raises:
        CudaError: there is no such GPU, or ``own`` cannot read its memory.
    """

    def __init__(self, own: PrimaryContext, ordinal: int) -> None:
        self._there = PrimaryContext(ordinal)
        try:
            self._let_in(own)
        except BaseException:
            self._there.release()
            raise

    def allocate(self, nbytes: int) -> int:
        return int(self._call(cu.cuMemAlloc, nbytes))

    def free(self, address: int) -> None:
        self._call(cu.cuMemFree, address)

    def stream(self) -> int:
        return int(self._call(cu.cuStreamCreateWithPriority, _NON_BLOCKING, 0))

    def destroy_stream(self, stream: int) -> None:
        self._call(cu.cuStreamDestroy, stream)

    def event(self) -> int:
        return int(self._call(cu.cuEventCreate, _NO_TIMING))

    def destroy_event(self, event: int) -> None:
        self._call(cu.cuEventDestroy, event)

    def copy_groups(self, groups: Sequence[CopyGroup], stream: int) -> None:
        with self._there.pushed():
            enqueue(self._there, groups, stream)

    def synchronize(self, stream: int) -> None:
        self._call(cu.cuStreamSynchronize, stream)

    def close(self) -> None:
        self._there.release()

    def _let_in(self, own: PrimaryContext) -> None:
        if not own.call(cu.cuDeviceCanAccessPeer, own.device, self._there.device):
            why = "neither NVLink nor PCIe lets this GPU read the other's memory"
            raise CudaError("cuDeviceCanAccessPeer", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", why)
        with self._there.pushed() as context:
            pass
        try:
            own.call(cu.cuCtxEnablePeerAccess, context, 0)
        except CudaError as error:
            if error.name != _KNOWN:  # torch asks for it, too
                raise

    def _call(self, function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
        with self._there.pushed():
            return self._there.call(function, *arguments)


_COPY, _RECORD, _WAIT = range(3)
_NAMES: Final = ("cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent")
_WORDS: Final = 4

#: Steps of four words, how many there are, the stream: the step that failed and its status, or 0.
_Compiled = Callable[[object, int, int], int]


def enqueue(context: PrimaryContext, groups: Sequence[CopyGroup], stream: int) -> None:
    """
    Raises:
        CudaError: the driver refused a step; those before it are enqueued.
    """
    compiled = _compiled()
    steps = list(_steps(groups))
    if compiled is None:
        for what, one, other, nbytes in steps:
            if what == _COPY:
                context.call(cu.cuMemcpyAsync, one, other, nbytes, stream)
            elif what == _RECORD:
                context.call(cu.cuEventRecord, one, stream)
            else:
                context.call(cu.cuStreamWaitEvent, stream, one, 0)
        return
    context.enter_once()
    words = (ctypes.c_uint64 * (_WORDS * len(steps)))(*(word for step in steps for word in step))
    failed = compiled(words, len(steps), stream)
    if failed:
        step, status = steps[(failed >> 32) - 1], cu.CUresult(failed & 0xFFFFFFFF)
        raise CudaError(_NAMES[step[0]], status.name)


def _steps(groups: Sequence[CopyGroup]) -> Iterator[tuple[int, int, int, int]]:
    for group in groups:
        if group.after:
            yield _WAIT, group.after, 0, 0
        for piece in group.pieces:
            yield _COPY, *piece
        if group.ready:
            yield _RECORD, group.ready, 0, 0


@cache
def _compiled() -> _Compiled | None:
    try:
        source = (files(__package__) / "sources" / "copies.c").read_text(encoding="utf-8")
        call = c_library("copies", source).copy_groups
        driver = ctypes.CDLL("libcuda.so.1")
        there = [ctypes.cast(getattr(driver, name), ctypes.c_void_p) for name in _NAMES]
    except (OSError, AttributeError):
        return None
    u64 = ctypes.c_uint64
    call.argtypes = [ctypes.c_void_p, u64, u64, *[ctypes.c_void_p] * len(_NAMES)]
    call.restype = u64
    return lambda words, steps, stream: int(call(words, steps, stream, *there))
