"""The three models behind PyTriton."""

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

import models


def function(name):
    run = models.load(name)

    @batch
    def infer(INPUT):
        return {"OUTPUT": np.ascontiguousarray(run(INPUT))}

    return infer


if __name__ == "__main__":
    config = TritonConfig(
        http_address="127.0.0.1", http_port=18900, grpc_address="127.0.0.1", grpc_port=18901,
        metrics_port=18902, allow_gpu_metrics=False,
    )  # fmt: skip
    batcher = DynamicBatcher(max_queue_delay_microseconds=models.DELAY_US)
    with Triton(config=config) as triton:
        for name, (inputs, outputs) in models.SHAPES.items():
            triton.bind(
                model_name=name,
                infer_func=function(name),
                inputs=[Tensor(name="INPUT", dtype=np.float32, shape=inputs)],
                outputs=[Tensor(name="OUTPUT", dtype=np.float32, shape=outputs)],
                config=ModelConfig(max_batch_size=models.MAX_BATCH, batcher=batcher),
                strict=False,
            )
        triton.serve()
