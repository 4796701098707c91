"""The contract of ``Device`` on this GPU: the tests of `tests/contracts`, test by test.

The tests are functions of a stand; here they are called without a test runner, each on a fresh
device, so that each is a row. A device takes seconds to start and nothing is timed, so a few run
at once; over MPS, those that kill a process run alone, as they may take the others along.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.gpu.bench import Bench
from bench.gpu.devices import KINDS, atoms_of, board, lacking
from bench.gpu.rows import Row, attempt, failed, law, skipped
from interlace.core.model import Model
from interlace.device.cuda.mps import MpsControl

#: Each starts processes that take seconds, and more where many start at once.
_AT_ONCE: Final = 4
#: The two that ask the stand about its mechanism.
_DRY_TESTS: Final = (
    "test_a_carve_reports_its_units",
    "test_a_death_ends_all_work_and_is_told_once",
)
_VIOLENT: Final = ("death", "dead", "replacement", "closing")

Environment = Mapping[str, str]
Test = Callable[[Any], None]


def rows(bench: Bench) -> Iterator[Row]:
    """Every test on every mechanism that this GPU has, as far as time goes."""
    for kind in KINDS:
        why = lacking(bench, kind)
        if why:
            yield skipped(kind, why)
            continue
        yield from attempt(kind, partial(contract, bench, kind))


def contract(bench: Bench, kind: str) -> Iterator[Row]:
    """The rows of one mechanism: gentle tests at once, then, over MPS, the violent ones alone."""
    names = bench.size(tuple(tests()), _DRY_TESTS)
    alone = [n for n in names if kind == "mps" and any(word in n for word in _VIOLENT)]
    with _daemon(bench, kind) as environment:
        at_once = min(_AT_ONCE, len(os.sched_getaffinity(0)))
        gentle = [name for name in names if name not in alone]
        yield from _side_by_side(bench, kind, gentle, environment, at_once)
        yield from _side_by_side(bench, kind, alone, environment, 1)


def _side_by_side(
    bench: Bench, kind: str, names: Sequence[str], environment: Environment, at_once: int
) -> Iterator[Row]:
    with ProcessPoolExecutor(at_once, get_context("fork")) as pool:
        todo = {
            pool.submit(_tested, bench.dry, bench.out, bench.end_s, kind, name, environment): name
            for name in names
        }
        for done in as_completed(todo):
            try:
                yield done.result()
            except Exception as error:  # its process died
                yield failed(_words(kind, todo[done]), error)


def _tested(
    dry: bool, out: Path, end_s: float, kind: str, name: str, environment: Environment
) -> Row:
    """One test in a process of its own."""
    bench = Bench(dry, out, end_s, _none)
    what = _words(kind, name)
    if bench.left_s <= 0:
        return skipped(what, "no time was left for it")
    try:
        (row,) = held(what, partial(_stand, bench, kind, environment), tests()[name])
    except Exception as error:
        return failed(what, error)
    return row


def _none() -> Any:
    raise RuntimeError("a test of the contract opens no driver of its own")


def _words(kind: str, name: str) -> str:
    return f"{kind}: {name.removeprefix('test_').replace('_', ' ')}"


def tests() -> dict[str, Test]:
    """The tests of the contract that need a stand alone, by name."""
    from tests.contracts import test_device

    found = inspect.getmembers(test_device, inspect.isfunction)
    return {
        name: test
        for name, test in found
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["stand"]
    }


def held(what: str, make: Callable[[Path], Any], test: Test) -> Iterable[Row]:
    """Whether one test of the contract holds on a fresh stand."""
    import pytest

    from tests.contracts.stands import QUICK, SLOW

    with TemporaryDirectory(prefix="interlace-contract-") as folder:
        stand = make(Path(folder))
        try:
            for known in (QUICK, _in_one_row(SLOW)):
                stand.device.register(known)
            test(stand)
        except pytest.skip.Exception as why:
            yield skipped(what, str(why))
        except (AssertionError, pytest.fail.Exception) as error:
            yield law(what, "holds", f"does not hold: {error}"[:300], False)
        else:
            yield law(what, "holds", "holds", True)
        finally:
            stand.close()


def _in_one_row(known: Model) -> Model:
    """The same with one batch size: a slow model is slow for each that it is captured in."""
    return replace(known, signature=replace(known.signature, max_batch=1))


def _stand(bench: Bench, kind: str, environment: Environment, folder: Path) -> Any:
    from tests.bench.gpu_stand import GpuStand

    switches = replace(bench.switches, atoms=atoms_of(bench))
    return GpuStand(kind, board(bench), environment, switches, fake=bench.dry)


@contextmanager
def _daemon(bench: Bench, kind: str) -> Iterator[Environment]:
    """MPS' daemon for all stands together, where it takes one."""
    if kind != "mps" or bench.dry:
        yield {}
        return
    control = MpsControl(board(bench).uuid)
    control.start()
    try:
        yield control.environment()
    finally:
        control.stop()
