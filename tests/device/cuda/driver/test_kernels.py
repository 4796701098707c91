"""The kernels compile for the GPUs they are for, and what is compiled once is kept."""

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from interlace.device.cuda.driver import kernels
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.driver.kernels import Kernels
from tests.device.cuda.driver.drivers import compile_by_nvcc

NAMES = Kernels._fields[1:]


def no_nvrtc() -> str:
    """Why NVRTC cannot be used; empty if it can."""
    try:
        kernels.compiled("", "sm_90")
    except CudaError as error:
        return str(error)
    return ""


def test_the_source_ships_with_the_package() -> None:
    text = kernels.source()
    assert all(f"__global__ void {name}(" in text for name in NAMES)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_nvcc_compiles_all_kernels(tmp_path: Path, arch: str) -> None:
    made = tmp_path / "kernels.cubin"
    compile_by_nvcc(kernels.source(), made, arch)
    image = made.read_bytes()
    assert all(name.encode() in image for name in NAMES)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_readers_add_what_they_read_once_a_block(tmp_path: Path) -> None:
    source = files(kernels.__package__ or "") / "sources" / "streams.cu"
    made = tmp_path / "streams.ptx"
    flags = ["-arch=sm_90", "-std=c++17", "-ptx", "-o", str(made)]
    subprocess.run(["nvcc", *flags, str(source)], check=True, timeout=100)
    entries = made.read_text().split(".entry ")[1:]
    assert len(entries) == 2
    for entry in entries:
        assert "atom.shared.add.u64" in entry and "bar.sync" in entry


def test_nvrtc_compiles_all_kernels(tmp_path: Path) -> None:
    if reason := no_nvrtc():
        pytest.skip(reason)
    image = kernels.image((9, 0), tmp_path)
    assert image.startswith(b"\x7fELF")
    assert all(name.encode() in image for name in NAMES)
    with pytest.raises(CudaError, match="error: "):
        kernels.compiled("__global__ void broken( {", "sm_90")


def test_what_was_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def compiled(text: str, arch: str) -> bytes:
        asked.append(arch)
        return f"cubin for {arch} of {len(text)}".encode()

    monkeypatch.setattr(kernels, "compiled", compiled)
    folder = tmp_path / "deep" / "cache"
    first = kernels.image((9, 0), folder)
    assert kernels.image((9, 0), folder) == first
    assert kernels.image((10, 0), folder) != first
    assert asked == ["sm_90", "sm_100"]
    monkeypatch.setattr(kernels, "source", lambda: "other")
    assert kernels.image((9, 0), folder) != first
    assert len(asked) == 3
    assert kernels.image((9, 0), None) == kernels.image((9, 0), None)
    assert len(asked) == 5
    assert len(list(folder.iterdir())) == 3  # no half-written files are left


def test_without_nvrtc_it_says_what_to_install() -> None:
    reason = no_nvrtc()
    if not reason:
        pytest.skip("NVRTC is installed")
    assert "pip install 'interlace[cuda]'" in reason
