"""Small models for a server: each multiplies, some misbehave when they are told to."""

from pathlib import Path
from typing import Final

_MULTIPLIES: Final = """
import ctypes, os, sys, threading, time
import torch

INPUTS = {{"x": ("FP32", (4,))}}
OUTPUTS = {{"y": ("FP32", (4,))}}
OPTIMISE = False
KEPT = []


class Multiplies(torch.nn.Module):
    def forward(self, x):
        {extra}
        return x * {factor}


def create_model():
    return Multiplies()
"""
#: Told by an input, never by the samples a model is measured with.
TOLD: Final = 1e6
#: What a model does to its own process, by name; ``{told}`` is true for the input that tells it to.
MISBEHAVIOURS: Final[dict[str, str]] = {
    "raises": "raise RuntimeError('not today')",
    "wrong_shape": "return x[:, :2]",
    "wrong_type": "return x.to(torch.int64)",
    "a_row_too_many": "return torch.cat([x, x[:1]])",
    "nan": "return x * float('nan')",
    "exits": "sys.exit(3)",
    "aborts": "os.abort()",
    "segfault": "ctypes.string_at(0)",
    "killed": "os.kill(os.getpid(), 9)",
    "out_of_memory": "raise MemoryError",
    "interrupt": "raise KeyboardInterrupt",
    "sleeps": "time.sleep(1.0)",
    "spins": "exec('while True: pass')",
    "leaks": "KEPT.append(torch.ones(50_000_000))",
    "threads": "[threading.Thread(target=lambda: exec('while True: pass'), daemon=True).start()"
    " for _ in range(4)]",
    "closes_descriptors": "os.closerange(3, 64)",
    "writes_to_descriptors": "[_write(n) for n in range(3, 64)]",
}
_WRITE: Final = """

def _write(descriptor):
    try:
        os.write(descriptor, b"garbage" * 9)
    except OSError:
        pass
"""


def write_model(
    root: Path,
    name: str,
    factor: float = 2.0,
    slo_ms: float = 30_000.0,
    extra: str = "pass",
) -> None:
    """A model that multiplies rows of four FP32, with an SLO; ``extra`` is done before.

    The SLO is one that no loaded machine misses, whatever begins or dies meanwhile.
    """
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    text = _MULTIPLIES.format(factor=factor, extra=extra)
    (folder / "model.py").write_text(text + (_WRITE if "_write(" in extra else ""))
    (root / name / "interlace.toml").write_text(f"slo_ms = {slo_ms}\nmax_batch = 4\n")


def misbehaving(root: Path, what: str, slo_ms: float = 100.0) -> str:
    """A model that does ``what`` for an input above ``TOLD``; its name."""
    name = f"bad_{what}"
    act = MISBEHAVIOURS[what]
    write_model(root, name, 2.0, slo_ms, f"if x.max() > {TOLD}: {act}")
    return name
