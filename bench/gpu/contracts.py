"""The contract of ``Device`` on this GPU: the tests of `tests/contracts`, test by test.

The tests are functions of a stand; here they are called without a test runner, each on a fresh
device, so that each is a row. pytest is needed, as they are written with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.gpu.bench import Bench
from bench.gpu.devices import KINDS, lacking
from bench.gpu.rows import Row, attempt, judged, skipped

#: Where the stands of real GPUs and of the fake driver are, by mechanism.
_STANDS = "tests.contracts.stands"


def rows(bench: Bench) -> Iterator[Row]:
    """Every test on every mechanism that this GPU has, as far as time goes."""
    if find_spec("pytest") is None:
        yield skipped("contracts", "pytest is not installed")
        return
    for kind in KINDS:
        why = lacking(bench, kind)
        if why:
            yield skipped(kind, why)
            continue
        yield from attempt(kind, partial(contract, bench, kind))


def contract(bench: Bench, kind: str) -> Iterable[Row]:
    """The rows of one mechanism."""
    make = _stand(bench, kind)
    for name, test in tests().items():
        what = f"{kind}: {name.removeprefix('test_').replace('_', ' ')}"
        if bench.left_s <= 0:
            yield skipped(what, "no time was left for it")
            continue
        yield from attempt(what, partial(held, what, make, test))


def tests() -> dict[str, Callable[[Any], None]]:
    """The tests of the contract that need a stand alone, by name."""
    from tests.contracts import test_device

    found = inspect.getmembers(test_device, inspect.isfunction)
    return {
        name: test
        for name, test in found
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["stand"]
    }


def held(what: str, make: Callable[[Path], Any], test: Callable[[Any], None]) -> Iterable[Row]:
    from tests.contracts.stands import QUICK, SLOW

    with TemporaryDirectory(prefix="interlace-contract-") as folder:
        stand = make(Path(folder))
        try:
            for known in (QUICK, SLOW):
                stand.device.register(known)
            test(stand)
        except AssertionError as error:
            yield judged(what, "holds", f"does not hold: {error}"[:300], False)
        else:
            yield judged(what, "holds", "holds", True)
        finally:
            stand.close()


def _stand(bench: Bench, kind: str) -> Callable[[Path], Any]:
    """The maker of a stand of that mechanism, on the GPU or on the fake driver."""
    raise NotImplementedError
