"""The three models behind BentoML."""

import bentoml
import numpy as np

import models

BATCHED = {"batchable": True, "batch_dim": 0, "max_batch_size": models.MAX_BATCH}


@bentoml.service(workers=1, traffic={"timeout": 60})
class Service:
    """One worker; the batcher adapts, its latency limit is out of reach."""

    def __init__(self) -> None:
        self.run = {name: models.load(name) for name in models.SHAPES}

    @bentoml.api(max_latency_ms=60_000, **BATCHED)
    def echo(self, x: np.ndarray) -> np.ndarray:
        return self.run["echo"](x)

    @bentoml.api(max_latency_ms=60_000, **BATCHED)
    def cnn(self, x: np.ndarray) -> np.ndarray:
        return self.run["cnn"](np.asarray(x, np.float32))

    @bentoml.api(max_latency_ms=60_000, **BATCHED)
    def img(self, x: np.ndarray) -> np.ndarray:
        return self.run["img"](x)
