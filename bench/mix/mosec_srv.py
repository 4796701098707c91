"""The mix behind mosec: raw bytes of the inputs one after another, raw bytes of the outputs."""

import os
import sys

import models

THREADS, COUNT = int(os.environ["MIX_THREADS"]), int(os.environ["MIX_INSTANCES"])
models.limit_threads(THREADS)

import numpy as np  # noqa: E402
from mosec import Runtime, Server, Worker  # noqa: E402


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


CLASSES = {sort.name: worker(sort) for sort in models.SORTS}
for made in CLASSES.values():
    setattr(sys.modules[__name__], made.__name__, made)  # children find them by name

if __name__ == "__main__":
    server = Server()
    server.register_runtime(
        {
            f"/{sort.name}": [
                Runtime(
                    CLASSES[sort.name], num=COUNT, max_batch_size=sort.max_batch, max_wait_time=0,
                    timeout=30,
                )
            ]
            for sort in models.SORTS
        }
    )  # fmt: skip
    server.run()
