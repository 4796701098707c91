"""A libcuda of host code, so that the real driver object and the kernels' source run anywhere."""

import re
import subprocess
from pathlib import Path

from interlace.device.cuda.driver import kernels

HERE = Path(__file__).parent
#: Instructions of the GPU, and what they are in C++.
_LOAD = re.compile(r'asm volatile\("ld\.global[^"]*"\s*:[^;]*?:\s*"l"\((\w+)\)\);')
_PLAIN = (
    ('asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));', "now = standin_now_ns();"),
    ('asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));', "sm = standin_sm;"),
    (
        'asm volatile("st.release.sys.global.u64 [%0], %1;"'
        ' : : "l"(flag), "l"(sequence) : "memory");',
        "__atomic_store_n(reinterpret_cast<u64 *>(flag), sequence, __ATOMIC_RELEASE);",
    ),
)


def host_source() -> str:
    """Our kernels with each instruction of the GPU in C++."""
    text = _LOAD.sub(r"part = *\1;", kernels.source())
    for gpu, host in _PLAIN:
        assert gpu in text, gpu
        text = text.replace(gpu, host)
    assert "asm" not in text
    return text


def build(folder: Path, include: Path) -> Path:
    """Compile ``libcuda.so.1`` into ``folder``; ``include`` holds the toolkit's ``cuda.h``."""
    (folder / "our_kernels.inc").write_text(host_source())
    made = folder / "libcuda.so.1"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    places = [f"-I{folder}", f"-I{HERE}", f"-isystem{include}"]
    command = ["g++", *flags, *places, "-o", str(made), str(HERE / "libcuda.cpp"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made
