"""The three models that every server serves; needs numpy, and torch for the CNN.

echo  FP32[16] to the same: the server's own cost
cnn   FP32[3,64,64] to FP32[100]: a small residual CNN
img   FP32[3,224,224] to the same: 602,112 bytes in and out
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Batch = np.ndarray[Any, Any]
#: Input and output dims, without the batch.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "echo": ((16,), (16,)),
    "cnn": ((3, 64, 64), (100,)),
    "img": ((3, 224, 224), (3, 224, 224)),
}
MAX_BATCH = 16
#: Queue delay of every peer that waits for company.
DELAY_US = 1000
REPO = Path(__file__).parent / "repo"


def load(name: str) -> Callable[[Batch], Batch]:
    """A callable from a numpy batch to a numpy batch."""
    return _cnn() if name == "cnn" else lambda x: x


def sample(name: str) -> Batch:
    """One input, the same every time."""
    return np.random.default_rng(3).standard_normal(SHAPES[name][0], dtype=np.float32)


def _cnn() -> Callable[[Batch], Batch]:
    import torch

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("bench_cnn", REPO / "cnn" / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.create_model()

    def run(x: Batch) -> Batch:
        with torch.inference_mode():
            answer: Batch = net(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return answer

    run(np.zeros((1, *SHAPES["cnn"][0]), np.float32))
    return run
