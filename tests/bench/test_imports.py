"""What benchmarks may import: the package, each other, and what the extra `bench` installs."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Run by other servers' own environments, or written for them.
ELSEWHERE = (
    "bench/peers/servers/",
    "bench/peers/repo/",
    "bench/fleet/ray_serve.py",
)
KNOWN = frozenset(
    {"bench", "interlace", "numpy", "matplotlib", "rich", "msgspec", "uvloop", "httptools", "torch"}
    | {"google", "grpc", "hpack", "tritonclient", "typer"}
    | {"models"}  # of bench/peers, for its programs that run in a peer's environment
)
#: Of the extra `bench` alone, by folder.
MORE = {
    "bench/estimate/": {"timm", "transformers"},
    "bench/gpu/": {"cuda", "pynvml", "triton", "numba", "pytest"},
}
MORE |= {"bench/cold/variants": {"safetensors", "transformers"}}
MORE |= {"bench/harness/": {"pynvml"}, "bench/peers/": {"onnxruntime", "transformers"}}
FILES = [
    path
    for path in sorted(ROOT.glob("bench/**/*.py"))
    if not str(path.relative_to(ROOT)).startswith(ELSEWHERE)
]


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_benchmark_imports_no_test_and_nothing_that_is_not_installed(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    more = {one for folder, names in MORE.items() if name.startswith(folder) for one in names}
    assert not imported(path) - KNOWN - more
