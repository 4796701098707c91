"""The three models behind mosec, with raw bytes both ways."""

import numpy as np
from mosec import Runtime, Server, Worker

import models


class Raw(Worker):
    """One model; ``name`` is set by each subclass."""

    name = ""

    def __init__(self):
        self.shape, self.run = models.SHAPES[self.name][0], models.load(self.name)

    def deserialize(self, data):
        return np.frombuffer(data, np.float32).reshape(self.shape)

    def serialize(self, data):
        return data.tobytes()

    def forward(self, data):
        return list(self.run(np.stack(data)))


class Echo(Raw):
    name = "echo"


class Cnn(Raw):
    name = "cnn"


class Img(Raw):
    name = "img"


if __name__ == "__main__":
    server = Server()
    wait_ms = max(1, models.DELAY_US // 1000)
    server.register_runtime(
        {
            f"/{kind.name}": [
                Runtime(
                    kind, num=1, max_batch_size=models.MAX_BATCH, max_wait_time=wait_ms, timeout=30
                )
            ]
            for kind in (Echo, Cnn, Img)
        }
    )
    server.run()
