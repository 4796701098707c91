"""The engine as machine code, for long simulations: `python scripts/compile_engine.py DIR`.

Copies the package into DIR and compiles the engine's hot modules there with mypyc (which comes with
mypy; a C compiler is needed). Nothing changes in the source tree, where Python stays Python:
`PYTHONPATH=DIR interlace simulate ...` uses the copy.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What every event goes through. Dispatchers and admission of the rows that are swept most often.
HOT = (
    "core/request.py",
    "core/plan.py",
    "core/messages.py",
    *(
        f"engine/{name}.py"
        for name in (
            "beliefs", "partitions", "queues", "pool", "rates", "refusals", "state", "staging",
            "view", "serving", "engine",
        )
    ),
    "policy/admission.py",
    "policy/batching.py",
    "policy/dispatchers/deadline.py",
    "policy/dispatchers/duty.py",
)  # fmt: skip


def compile_engine(into: Path) -> None:
    """Copy the package and compile it there.

    Raises:
        subprocess.CalledProcessError: mypyc or the C compiler refused.
    """
    package = into / "interlace"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "interlace", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", into)  # mypy's settings
    modules = [f"interlace/{name}" for name in HOT]
    mypyc = Path(sys.executable).with_name("mypyc")
    subprocess.run([str(mypyc), *modules], cwd=into, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("into", type=Path, metavar="DIR")
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    compile_engine(into)


if __name__ == "__main__":
    main()
