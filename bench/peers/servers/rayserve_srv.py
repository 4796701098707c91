"""The three models behind Ray Serve, with raw bytes both ways."""

import os
import signal
import sys
import time

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

import models

ENV = {"env_vars": {"PYTHONPATH": os.environ["HARNESS"], "OMP_NUM_THREADS": "1"}}
WAIT_S = models.DELAY_US / 1e6


@serve.deployment(num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": 0.1})
class Model:
    """One model."""

    def __init__(self, name):
        self.shape, self.run = models.SHAPES[name][0], models.load(name)

    @serve.batch(max_batch_size=models.MAX_BATCH, batch_wait_timeout_s=WAIT_S)
    async def infer(self, rows):
        return list(self.run(np.stack(rows)))

    async def __call__(self, request: Request):
        x = np.frombuffer(await request.body(), np.float32).reshape(self.shape)
        return Response((await self.infer(x)).tobytes(), media_type="application/octet-stream")


def stop(*_):
    serve.shutdown()
    ray.shutdown()
    sys.exit(0)


if __name__ == "__main__":
    ray.init(
        num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", runtime_env=ENV,
        object_store_memory=200_000_000, log_to_driver=False,
    )  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": 18900})
    for name in models.SHAPES:
        serve.run(Model.bind(name), name=name, route_prefix=f"/{name}")
    signal.signal(signal.SIGTERM, stop)
    while True:
        time.sleep(1)
