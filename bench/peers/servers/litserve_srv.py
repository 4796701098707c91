"""The three models behind LitServe, with raw bytes both ways."""

from typing import Annotated

import litserve as ls
import numpy as np
from fastapi import Body
from fastapi.responses import Response

import models

Octets = Annotated[bytes, Body(media_type="application/octet-stream")]


class Raw(ls.LitAPI):
    """One model; ``name`` is set by each subclass."""

    name = ""

    def setup(self, device):
        self.run = models.load(self.name)

    def decode_request(self, request: Octets):
        return np.frombuffer(request, np.float32).reshape(models.SHAPES[self.name][0])

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        return self.run(x)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


class Echo(Raw):
    name = "echo"


class Cnn(Raw):
    name = "cnn"


class Img(Raw):
    name = "img"


if __name__ == "__main__":
    wait_s = models.DELAY_US / 1e6
    apis = [
        kind(max_batch_size=models.MAX_BATCH, batch_timeout=wait_s, api_path=f"/{kind.name}")
        for kind in (Echo, Cnn, Img)
    ]
    server = ls.LitServer(apis, accelerator="cpu", devices=1, workers_per_device=1, timeout=30)
    server.run(
        host="127.0.0.1", port=18900, num_api_servers=1, generate_client_file=False,
        log_level="warning",
    )  # fmt: skip
