"""Models behind mosec: raw bytes of the inputs one after another, raw bytes of the outputs.

In the environment: MODELS their names, THREADS and INSTANCES of each, WAIT_MS for company.
"""

import os
import sys

import numpy as np
from mosec import Runtime, Server, Worker

import models

NAMES, WAIT_MS = os.environ["MODELS"].split(), int(os.environ["WAIT_MS"])
THREADS, COUNT = int(os.environ["THREADS"]), int(os.environ["INSTANCES"])


def worker(sort):
    """A worker class for one model."""
    dtypes = [np.dtype(models.DTYPES[tensor.datatype]) for tensor in sort.inputs]

    class Model(Worker):
        def __init__(self):
            self.run = models.load(sort.name, THREADS)

        def deserialize(self, data):
            at, arrays = 0, []
            for tensor, dtype in zip(sort.inputs, dtypes, strict=True):
                count = int(np.prod(tensor.dims))
                arrays.append(np.frombuffer(data, dtype, count, at).reshape(tensor.dims))
                at += count * dtype.itemsize
            return arrays

        def serialize(self, data):
            return b"".join(array.tobytes() for array in data)

        def forward(self, data):
            outputs = self.run([np.stack(column) for column in zip(*data, strict=True)])
            return list(zip(*outputs, strict=True))

    Model.__name__ = Model.__qualname__ = f"Model_{sort.name}"
    return Model


CLASSES = {name: worker(models.BY_NAME[name]) for name in NAMES}
for made in CLASSES.values():
    setattr(sys.modules[__name__], made.__name__, made)  # children find them by name

if __name__ == "__main__":
    server = Server()
    server.register_runtime(
        {
            f"/{name}": [
                Runtime(
                    made, num=COUNT, max_batch_size=models.BY_NAME[name].max_batch,
                    max_wait_time=WAIT_MS, timeout=30,
                )
            ]
            for name, made in CLASSES.items()
        }
    )  # fmt: skip
    server.run()
