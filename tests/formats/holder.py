"""A process that opens a model, says so, and holds it until its standard input closes.

Arguments: format, folder of a small model, folder and width of the model, weights folder or "".
"""

import json
import sys

import numpy as np

from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats import open_model
from interlace.formats.runner import Array, ModelRunner
from tests.process_memory import process_memory


def opened(kind: str, folder: str, width: int, weights: str | None) -> tuple[ModelRunner, Array]:
    """The runner, and what it answers to a fixed input."""
    signature = Signature((TensorSpec("x", "FP32", (width,)),), (), True, 8)
    model = Model("m", 1, Format(kind), folder, f"w{width}", signature, ServiceTerms(100.0))
    runner = open_model(model, 1, weights)
    x = np.random.default_rng(0).standard_normal((2, width), np.float32)
    return runner, next(iter(runner.run({"x": x}).values()))


def main() -> None:
    kind, small, large, width, weights = sys.argv[1:]
    opened(kind, small, 16, None)  # libraries take what they take
    before = process_memory().anonymous_bytes
    runner, output = opened(kind, large, int(width), weights or None)
    said = {"before": before, "output": output.tobytes().hex(), "warnings": runner.warnings}
    print(json.dumps(said), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
