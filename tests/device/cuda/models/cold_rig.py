"""A model in layers whose weights come and go, on a driver whose streams have threads."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from interlace.core.model import Model
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory import weights_memory
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.cuda.models.swapped_weights import SwappedWeights
from interlace.formats.opened import DeclaredSignature, OpenedModel
from tests.device.cuda.models.rig import Bench
from tests.device.models import model

ROWS, TOKENS, VOCABULARY = 4, 3, 50
#: Layers by index, in the order in which they run: the whole comes first, for its buffer; then four
#: with weights, an activation between them, and what is between modules.
TABLE, FIRST, SECOND, LAST = 1, 2, 4, 5
ALL = range(7)
WEIGHTED = {TABLE, FIRST, SECOND, LAST}
NAN = 0xFF  #: as all bytes of a float


class Net(nn.Module):
    """A table, three products, and a buffer that no layer has."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(VOCABULARY, 8)
        self.first, self.act = nn.Linear(8, 16), nn.ReLU()
        self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("places", torch.arange(TOKENS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table((x + self.places) % VOCABULARY).mean(1)
        return self.last(self.second(self.act(self.first(rows))))


EAGER: list[bool] = []  #: with an entry: models cannot be captured


def described(seed: int = 1) -> Model:
    inputs = (TensorSpec("x", "INT64", (TOKENS,)),)
    signature = Signature(inputs, (TensorSpec("y", "FP32", (4,)),), True, ROWS)
    return replace(model(f"net{seed}"), signature=signature)


def opened(one: Model) -> OpenedModel:
    net = Net(int(one.name.removeprefix("net"))).eval().requires_grad_(False)
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    because = "as a test has it" if EAGER else ""
    return OpenedModel(
        lambda values: {"y": net(values["x"])}, tensors, DeclaredSignature("fake"),
        eager_because=because,
    )  # fmt: skip


class Stand:
    """Models with weights that come and go, on a driver whose streams have threads."""

    def __init__(self, budget_bytes: int = 1 << 16, peers: int = 0) -> None:
        self.gpu = Bench("threads")
        self.driver = self.gpu.driver
        self.driver.libraries.lenient = True
        self.driver.peers.count = peers
        self.memory = WeightsMemory(self.driver, budget_bytes, 1 << 16, peers)
        self.gpu.context = self.gpu.context._replace(weights=self.memory, open_model=opened)
        self.poison(self.memory._slab, budget_bytes)
        for path in self.memory.paths:
            self.poison(path._buffer, 2 * weights_memory.HALF_BYTES)
        self.models: dict[int, LoadedModel] = {}
        self._lanes: dict[str, Lane] = {}

    def poison(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, NAN, nbytes)

    def lane(self, name: str = "p") -> Lane:
        if name not in self._lanes:
            self._lanes[name] = self.gpu.carve(name)
        return self._lanes[name]

    def load(self, seed: int = 1, *names: str, batches: tuple[int, ...] = (1, 4)) -> SwappedWeights:
        made = self.models[seed] = LoadedModel(self.gpu.context, described(seed), True)
        for name in names or ("p",):
            made.prepare(self.lane(name), batches)
        assert made.cold is not None
        return made.cold

    def start(self, seed: int = 1, name: str = "p", rows: int = 4) -> Callable[[], bool]:
        """Launch a batch; what is returned waits for it and says whether its answer is right."""
        served, lane = self.models[seed], self.lane(name)
        values = np.random.default_rng(seed + rows).integers(0, VOCABULARY, (rows, TOKENS))
        program = served.program(lane, rows, {"x": values.shape})
        source, target = self.gpu.memory.take(values.nbytes), self.gpu.memory.take(16 * rows)
        ctypes.memmove(source.host, values.tobytes(), values.nbytes)
        ctypes.memset(target.host, NAN, target.nbytes)
        self.gpu.sequence += 1
        addresses = [source.device + 8 * TOKENS * row for row in range(rows)]
        program.launch(self.gpu.sequence, rows, [addresses], [target.device])
        wanted = Net(seed).eval()(torch.from_numpy(values)).detach().numpy()

        def right() -> bool:
            self.driver.synchronize(lane.stream)
            found = np.frombuffer(ctypes.string_at(target.host, 16 * rows), np.float32)
            self.gpu.memory.give_back(source)
            self.gpu.memory.give_back(target)
            # A graph of more rows may add up in another order, as the processor has it.
            return bool(np.allclose(found.reshape(rows, 4), wanted, rtol=1e-5, atol=1e-6))

        return right

    def runs(self, seed: int = 1, name: str = "p", rows: int = 4) -> bool:
        return self.start(seed, name, rows)()

    @property
    def streams(self) -> list[int]:
        """All that weights come on, those of peers before those that pass on from there."""
        over = [one.over for one in self.memory.paths]
        return [*over, *self.memory.incoming]

    def settle(self) -> None:
        for stream in self.streams:
            self.driver.synchronize(stream)

    def close(self) -> None:
        for one in self.models.values():
            one.close()
        assert self.memory.used_bytes == 0
        assert not any(self.memory._windows.values()), "windows go with their models"
        self.memory.close()
        self.gpu.close()


@contextmanager
def stand(**sizes: int) -> Iterator[Stand]:
    made = Stand(**sizes)
    yield made
    made.close()
