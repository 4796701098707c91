"""A process of its own that reads another one's weights: ``WeightsHandle`` in, results out."""

import sys

import msgspec
import torch

from interlace.device.cuda.models.weights import DeviceWeights, WeightsHandle, lay_out
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.models.test_loaded import batch, gpu_with, model


def tensor(shared: WeightsHandle) -> str:
    """300 numbers summed, what they cost here, and their type."""
    driver = FakeDriver()
    tensors = {"w": torch.zeros(300)}  # the same model, opened here
    opened = DeviceWeights.open(driver, lay_out(tensors, shared.variant, frozenset()), shared)
    opened.adopt(tensors, "cpu")
    answer = f"{tensors['w'].double().sum().item()} {opened.own_bytes} {tensors['w'].dtype}"
    tensors["w"].data = torch.zeros(0)
    opened.close()
    driver.close()
    return answer


def loaded(shared: WeightsHandle) -> str:
    """The output of one batch, and what the weights cost here."""
    with gpu_with(lent=lambda described: shared) as gpu:
        lane = gpu.carve("b")
        borrowed = gpu.load(model(), lane, batches=(4,))
        found = gpu.run(borrowed, lane, batch(3))["y"].tobytes().hex()
        answer = f"{found} {borrowed.weights_bytes}"
        borrowed.close()
    return answer


if __name__ == "__main__":
    sent = msgspec.msgpack.decode(bytes.fromhex(sys.argv[2]), type=WeightsHandle)
    print({"tensor": tensor, "loaded": loaded}[sys.argv[1]](sent))
