"""Our kernels: what their arguments are, compiled for one kind of GPU by NVRTC, kept on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from interlace.device.cuda.driver.api import CudaError, Driver

#: Where they lie, in the home folder.
FOLDER: Final = "~/.cache/interlace/kernels"


def cached_bytes(
    folder: Path, stem: str, made_of: str, suffix: str, make: Callable[[], bytes]
) -> bytes:
    """The contents of the file, read if it is there, else made and written for the next process.

    A folder that cannot be read or written costs the next process the time to make it again.
    """
    name = f"{stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}{suffix}"
    try:
        return (folder / name).read_bytes()
    except OSError:
        made = make()
    with suppress(OSError):  # a home that is read-only or full is no obstacle
        _keep(folder / name, made)
    return made


def _keep(path: Path, contents: bytes) -> None:
    # Another process may be writing the same file: a whole one takes its place in one step.
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(contents)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


class Kernels(NamedTuple):
    """Handles of our kernels in one loaded module; all arguments are 64-bit words.

    Addresses are those that the GPU sees. A *word* argument is the address of a 64-bit word in
    mapped memory, read when the kernel runs. Grids and blocks are free: kernels stride over them.

    * ``gather_rows(table, rows_word, target, row_bytes, capacity_rows)``: row ``i`` of ``target``
      (rows without gaps) is copied from the address ``table[i]``; rows from ``*rows_word`` up to
      the capacity become zeroes.
    * ``embed_rows(indices, index_bytes, count, table_word, target, row_bytes, table_rows)``: row
      ``i`` of ``target`` is copied from row ``indices[i]`` of the table at the address
      ``*table_word``. Indices are signed, of 4 or 8 bytes; one out of range takes the nearest row.
    * ``publish(source, target_word, rows_word, row_bytes)``: the first ``*rows_word`` rows of
      ``source`` are copied to the address ``*target_word``, and visible to the host at its end.
    * ``signal(flag, sequence_word)``: stores ``*sequence_word`` at ``flag`` with release order at
      system scope. One thread.
    * ``begin(blocks, words, turn_word, target)``: copies one of two adjacent parameter blocks of
      ``words`` words to ``target``, where the kernels after it find their words. The lowest bit of
      ``*turn_word`` selects the block; then the turn is increased by one. The time is written to
      the block's word ``BEGAN``. The copy's word ``ENDED`` is the address of the block's. One block
      of threads.
    * ``finish(flag, block)``: writes the time to the address in the copy's word ``ENDED``, then
      signals the copy's sequence number. One thread. Times are the GPU's own, in ns.
    * ``smid(sms, stay_ns)``: block ``b`` writes the number of its SM to ``sms[b]`` (u64) and stays
      there for ``stay_ns``, so that later blocks find other SMs.
    * ``spin(stay_ns, turns)``: keeps arithmetic units busy; adds its loop turns to ``*turns``.
    * ``l2_stream``, ``dram_stream`` ``(source, nbytes, stay_ns, moved)``: read ``nbytes`` at
      ``source`` (a multiple of 16, aligned to 16) over and over for ``stay_ns``. Each block adds
      the bytes read to ``*moved`` once. It lies in device memory, so that only the reads can reach
      the host. They differ in how they treat caches.
    """

    module: int
    gather_rows: int
    embed_rows: int
    publish: int
    signal: int
    begin: int
    finish: int
    smid: int
    spin: int
    l2_stream: int
    dram_stream: int


def load_kernels(driver: Driver, image: bytes) -> Kernels:
    """Load a cubin with all our kernels; ``driver.unload_kernels(kernels.module)`` gives it back.

    Raises:
        CudaError: the image is for another GPU, or a kernel is missing in it.
    """
    module = driver.load_kernels(image)
    return Kernels(module, *(driver.kernel(module, name) for name in Kernels._fields[1:]))


_OPTIONS: Final = ("--std=c++17",)


def source() -> str:
    """All our kernels as one text; names in one file never clash with another's."""
    folder = files(__package__) / "sources"
    found = sorted((one for one in folder.iterdir() if one.name.endswith(".cu")), key=str)
    return "\n".join(one.read_text(encoding="utf-8") for one in found)


def image(capability: tuple[int, int], cache_dir: Path | None) -> bytes:
    """A cubin of our kernels for GPUs of that compute capability, (9, 0) for H100.

    It is read from ``cache_dir`` if it was compiled before, and written there if not; ``None``
    compiles every time.

    Raises:
        CudaError: NVRTC is not installed, or refuses the source or the GPU; with its own words.
    """
    text, arch = source(), f"sm_{capability[0]}{capability[1]}"
    if cache_dir is None:
        return compiled(text, arch)
    words = "\0".join((text, arch, *_OPTIONS))
    return cached_bytes(cache_dir, arch, words, ".cubin", lambda: compiled(text, arch))


def compiled(text: str, arch: str) -> bytes:
    """A cubin from CUDA C++, ``arch`` as NVRTC writes it ("sm_90")."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        advice = f"pip install 'interlace[cuda]' ({why})"
        raise CudaError("NVRTC", "CUDA_ERROR_NOT_FOUND", advice) from error
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"interlace.cu", 0, [], []))
    try:
        options = [one.encode() for one in (f"--gpu-architecture={arch}", *_OPTIONS)]
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(result[0]) != 0:
            raise CudaError("nvrtcCompileProgram", result[0].name, _log(nvrtc, program))
        cubin = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _checked(result: tuple[Any, ...]) -> Any:
    if int(result[0]) != 0:
        raise CudaError("NVRTC", result[0].name)
    return result[1] if len(result) > 1 else None
