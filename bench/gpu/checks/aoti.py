"""Whether a compiled package takes weights of ours, also in host memory, and our streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.gpu.bench import Bench
from bench.gpu.checks.host_access import tensor_at
from bench.gpu.lanes import captured, lanes, mapped
from bench.gpu.rows import Row, attempt, judged, seen, skipped
from interlace.device.cuda.backend.base import CudaBackend

_WIDTH, _BATCH = 256, 8


def rows(bench: Bench) -> Iterator[Row]:
    """Compile two layers, give the package weights of ours, capture it on few SMs."""
    if bench.dry:
        yield skipped("compiled packages", "a dry run has no GPU to compile for")
        return
    with TemporaryDirectory(prefix="interlace-aoti-") as folder, bench.backend() as backend:
        network = _network(backend.torch_device)
        made: list[str] = []
        yield from attempt("compile", lambda: _compiled(network, backend, Path(folder), made))
        if made:
            yield from attempt("near weights", partial(_near, backend, network, made[0]))
            yield from attempt("host weights", partial(_far, backend, network, made[0]))


def _network(device: str) -> Any:
    import torch

    parts = (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH))
    return torch.nn.Sequential(*parts).to(device).eval().requires_grad_(False)


def _rows(device: str) -> Any:
    import torch

    return torch.randn(_BATCH, _WIDTH, device=device)


def _compiled(network: Any, backend: CudaBackend, folder: Path, made: list[str]) -> Iterable[Row]:
    import torch

    exported = torch.export.export(network, (_rows(backend.torch_device),))
    options = {"aot_inductor.package_constants_in_so": False}
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(folder / "network.pt2"), inductor_configs=options
    )
    made.append(path)
    yield seen("compiled without weights", f"{Path(path).stat().st_size >> 10} KiB")


def _loaded(path: str) -> Any:
    import torch

    return torch._inductor.aoti_load_package(path, run_single_threaded=True)


def _near(backend: CudaBackend, network: Any, path: str) -> Iterable[Row]:
    package = _loaded(path)
    weights = dict(network.state_dict())
    names = set(package.get_constant_fqns())
    yield judged("its constants", "the weights", ", ".join(sorted(names)), names <= set(weights))
    package.load_constants(weights, check_full_update=True, user_managed=True)
    yield from _uses_ours(backend, network, package, "weights on the GPU")


def _far(backend: CudaBackend, network: Any, path: str) -> Iterable[Row]:
    with ExitStack() as stack:
        weights: dict[str, Any] = {}
        for name, near in network.state_dict().items():
            memory = stack.enter_context(mapped(backend.driver, near.numel() * 4))
            far = tensor_at(memory.device, tuple(near.shape), near.dtype, backend.torch_device)
            far.copy_(near)
            weights[name] = far
        package = _loaded(path)
        package.load_constants(weights, check_full_update=True, user_managed=True)
        yield from _uses_ours(backend, network, package, "weights in host memory", weights)


def _uses_ours(
    backend: CudaBackend, network: Any, package: Any, what: str, weights: Any = None
) -> Iterable[Row]:
    """Right, captured on few SMs, and it sees a change of ours: nothing was copied or folded."""
    import torch

    given = _rows(backend.torch_device)
    ours = weights or dict(network.state_dict())
    with lanes(backend.driver) as cut:
        lane = cut.first(16)
        out: list[Any] = []

        def body() -> None:
            out[:] = [package(given)]

        with captured(backend, lane, body) as graph:
            for change in ("as loaded", "after a change in place"):
                if change != "as loaded":
                    ours["2.bias"].add_(1.0)
                backend.driver.launch_graph(graph, lane.stream)
                backend.driver.synchronize(lane.stream)
                wanted = torch.nn.functional.linear(
                    torch.relu(torch.nn.functional.linear(given, ours["0.weight"], ours["0.bias"])),
                    ours["2.weight"],
                    ours["2.bias"],
                )
                torch.cuda.synchronize()
                same = bool(torch.allclose(out[0], wanted, atol=1e-2))
                words = "right" if same else "wrong"
                yield judged(f"captured package, {what}, {change}", "right", words, same)
