"""Our kernels compiled for one kind of GPU by NVRTC, and kept on disk."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from interlace.device.cuda.disk_cache import cached_bytes
from interlace.device.cuda.driver.errors import CudaError

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
    """A cubin from CUDA C++, ``arch`` as NVRTC writes it ("sm_90").

    Raises:
        CudaError: see ``image``.
    """
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
