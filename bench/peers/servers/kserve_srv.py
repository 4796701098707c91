"""The three models behind KServe's own Python server, kept to loopback."""

from __future__ import annotations

import grpc.aio
import uvicorn

HTTP_PORT, GRPC_PORT = 18900, 18901
configure, make_server = uvicorn.Config.__init__, grpc.aio.server


def loopback(self, *args, **kwargs):  # the SDK asks for 0.0.0.0 and has no option for it
    kwargs["host"] = "127.0.0.1"
    configure(self, *args, **kwargs)


def loopback_server(*args, **kwargs):
    server = make_server(*args, **kwargs)
    bind = server.add_insecure_port
    server.add_insecure_port = lambda _: bind(f"127.0.0.1:{GRPC_PORT}")
    return server


uvicorn.Config.__init__ = loopback
grpc.aio.server = loopback_server

import kserve  # noqa: E402
import numpy as np  # noqa: E402
from kserve import InferOutput, InferRequest, InferResponse  # noqa: E402

import models  # noqa: E402


class Model(kserve.Model):
    """It answers in binary when asked; a reply without an id would be refused by the SDK."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = False

    def load(self) -> None:
        self.run = models.load(self.name)
        self.ready = True

    def predict(self, payload: InferRequest, headers=None, response_headers=None):
        y = np.ascontiguousarray(self.run(payload.inputs[0].as_numpy()))
        output = InferOutput("OUTPUT", list(y.shape), "FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(
            payload.id or "0",
            self.name,
            [output],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )


if __name__ == "__main__":
    served = [Model(name) for name in models.SHAPES]
    for model in served:
        model.load()
    kserve.ModelServer(http_port=HTTP_PORT, grpc_port=GRPC_PORT, workers=1, enable_grpc=True).start(
        served
    )
