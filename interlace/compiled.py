"""Which modules are machine code when the package is built, and whether Python may import that.

``setup.py`` compiles ``HOT`` with mypyc, into this package, where mypy and a C compiler are there.
An extension module is imported before a source of the same name. Where both lie in a checkout, the
build leaves a manifest of the sources it saw, and once one of them differs all modules are imported
from their sources until they are compiled again.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Final

_ROOT: Final = Path(__file__).parent
#: What every request goes through; docs/architecture.md says what they may not do.
HOT: Final = (
    *(f"engine/{name}.py" for name in (
        "corrections", "engine", "failures", "input_pool", "input_staging", "live_partition",
        "rate_tracker", "refusals", "request_queue", "request_scheduler", "state", "turns", "view",
    )),
    *(f"perf/{name}.py" for name in ("buckets", "latency")),
    *(f"policy/{name}.py" for name in (
        "admission", "batching", "fairness", "view",
    )),
    *(f"policy/dispatchers/{name}.py" for name in (
        "clockwork", "deadline", "duty", "dynamic_batching", "elastic", "greedy", "spatial",
        "spatiotemporal", "temporal",
    )),
    *(f"runtime/{name}.py" for name in ("clock", "runtime")),
    *(f"shm/{name}.py" for name in ("arena", "blocks")),
    *(f"device/simulated/{name}.py" for name in (
        "device", "partition_table", "physics", "running_batches",
    )),
    *(f"device/process/{name}.py" for name in (
        "batch_frames", "link", "output_arena",
    )),
    "device/cpu/device.py",
    *(f"sim/{name}.py" for name in ("observers", "recorder", "run")),
    *(f"server/{name}.py" for name in (
        "limits", "model_table", "shared_memory", "tensor_json",
    )),
    *(f"server/dataplane/{name}.py" for name in ("call", "inference", "plane", "validation")),
    *(f"server/http/{name}.py" for name in (
        "bodies", "connection", "exchange", "generation", "inference", "inference_handler",
        "request_head", "responses", "timeouts",
    )),
    *(f"server/grpc/{name}.py" for name in (
        "buffered_sink", "epoll_loop", "frame_reader", "frame_writer", "headers",
        "http2_connection", "http2_frames", "infer_calls", "infer_decoder", "infer_head",
        "infer_wire", "service", "stream",
    )),
    *(f"routing/{name}.py" for name in ("believed_node", "routes")),
    *(f"router/{name}.py" for name in ("attempts", "directory", "polling")),
    *(
        f"router/grpc/{name}.py"
        for name in ("forwarding", "node_call", "node_channel", "passed_calls")
    ),
    *(f"router/http/{name}.py" for name in (
        "forwarding", "node_connections", "passed_heads",
    )),
)  # fmt: skip
MANIFEST: Final = _ROOT / "compiled.json"


class _SourceFinder:
    """Finds this package's modules as sources only."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("interlace."):
            return None
        return FileFinder(path[0], (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)


def sources() -> Mapping[str, list[int]]:
    """Size and time of change in ns of every source of the package, by its path in it."""
    found = {}
    for path in sorted(_ROOT.rglob("*.py")):
        seen = path.stat()
        found[path.relative_to(_ROOT).as_posix()] = [seen.st_size, seen.st_mtime_ns]
    return found


def is_compiled() -> bool:
    """True if the hot modules are imported as machine code."""
    spec = importlib.util.find_spec("interlace.engine.engine")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def prefer_sources() -> None:
    """Import modules from their sources from now on, compiled or not."""
    sys.meta_path.insert(0, _SourceFinder)


def prefer_sources_if_changed() -> None:
    """Import modules from their sources if one is not what was compiled in this checkout."""
    if MANIFEST.exists() and json.loads(MANIFEST.read_text()) != sources():
        prefer_sources()
