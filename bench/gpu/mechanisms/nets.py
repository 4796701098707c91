"""Networks of the examples in this process, as the papers ran them: no server around them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from typing import Any, NamedTuple

from bench.gpu.bench import Bench
from bench.gpu.models import ZOO


class Net(NamedTuple):
    """A network in half precision, channels last; ``values`` are its inputs as they were sent."""

    module: Any
    values: Any  # (rows, *dims), float32

    def body(self) -> Callable[[], Any]:
        """One execution: what is captured."""
        import torch

        dtype = next(self.module.parameters()).dtype

        def run() -> Any:
            with torch.inference_mode():
                return self.module(self.values.to(dtype))

        return run

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it was sent."""
        return int(self.values[0].numel()) * 4

    @property
    def weights_bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.module.parameters())

    def with_rows(self, rows: int) -> Net:
        """The same weights for batches of another size."""
        return self._replace(values=_values(self.values.shape[1:], rows, self.values.device))

    def copied(self) -> Net:
        """Weights of its own."""
        return self._replace(module=deepcopy(self.module))


def network(bench: Bench, device: str, name: str, rows: int) -> Net:
    """A network of the examples by name; a small one without a GPU."""
    import torch

    if bench.dry:
        small = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
        return Net(small.eval().requires_grad_(False), _values((16,), rows, device))
    file = _imported(name)
    ((_, dims),) = file.INPUTS.values()
    module = file.create_model().eval().requires_grad_(False)
    module = module.to(device, torch.float16, memory_format=torch.channels_last)
    return Net(module, _values(dims, rows, device))


def _values(dims: Any, rows: int, device: Any) -> Any:
    import torch

    made = torch.randn(rows, *dims, device=device)
    assert made.numel() == rows * prod(dims)
    return made


def _imported(name: str) -> Any:
    spec = spec_from_file_location(f"zoo_{name}", ZOO / name / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
