"""The first part of gpu-check: it finds which way of green contexts works, and says so."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from bench.fidelity.stand import cores
from bench.gpu.bench import Bench
from bench.gpu.devices import board, green_gpu, lacking, maker
from bench.gpu.preflight import answers, green, mps_client, part, tries
from bench.gpu.preflight.green import basics, convolutions
from bench.gpu.preflight.part import Seen, chosen
from bench.gpu.preflight.tries import Opened, Try, tried
from bench.gpu.rows import Row, Verdict, failed, judged, seen
from bench.gpu.switches import Switches, choose
from bench.gpu.switches import chosen as switches_of
from interlace.device.cuda.backend.base import CudaBackend, LibraryContext
from interlace.device.cuda.discovery import NoGpuError
from interlace.device.cuda.green_contexts.atoms import Atoms
from tests.device.cuda.fake import FakeDriver
from tests.device.cuda.fake.capture import on
from tests.device.cuda.fake.handles import HERE, convolution

Said = dict[str, Row]
BOTH = {"primary": True, "green": True}


def bench(out: Path, make: Callable[[], FakeDriver] = FakeDriver) -> Bench:
    def backend() -> CudaBackend:
        return on(make())

    return Bench(True, out, time.monotonic() + 60.0, backend)


def asked(made: Bench, some: Sequence[Try], context: LibraryContext = "primary") -> Said:
    return {row.what: row for row in tried(made, some, context)}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are a library's, which minds what context a stream is of."""

    def conv2d(*arguments: torch.Tensor, padding: int) -> torch.Tensor:
        if HERE.libraries is not None:
            convolution()
        return functional.conv2d(*arguments, padding=padding)

    monkeypatch.setattr(green, "functional", SimpleNamespace(conv2d=conv2d))


def refusing() -> FakeDriver:
    driver = FakeDriver()
    driver.libraries.refuse_green = True
    return driver


# --------------------------------------------------------------------------- green contexts


def test_what_holds_on_the_fake_is_found_to_hold(tmp_path: Path) -> None:
    found = asked(bench(tmp_path), [*basics(), *convolutions("")])
    assert len(found) == 13
    plans = found.pop("a matrix product on 16 SMs, planned for all or for 16")
    assert plans.verdict is Verdict.SEEN
    assert all(row.verdict is Verdict.AS_EXPECTED for row in found.values()), found


def test_small_partitions_that_wait_for_each_other_are_found_out(tmp_path: Path) -> None:
    class OneQueue(FakeDriver):
        def launch(
            self,
            kernel: int,
            grid: tuple[int, int, int],
            block: tuple[int, int, int],
            stream: int,
            arguments: Sequence[int],
        ) -> None:
            time.sleep(0.02)
            super().launch(kernel, grid, block, stream, arguments)

    (one,) = (each for each in basics() if each.what.startswith("small partitions"))
    (row,) = asked(bench(tmp_path, OneQueue), [one]).values()
    assert row.verdict is Verdict.OTHER
    assert row.figures["all_ms"] > 8 * row.figures["one_ms"]


def uneven() -> FakeDriver:
    driver = FakeDriver()
    driver.clusters, driver.mixes = (16, 16, 16, 16, 18, 18, 18, 14), False
    return driver


def test_a_gpu_that_is_cut_otherwise_is_found_out_and_later_parts_know(tmp_path: Path) -> None:
    (row,) = asked(bench(tmp_path, uneven), basics()[:1]).values()
    assert row.verdict is Verdict.OTHER
    assert "atoms of 8: 15 of 8 SMs and 12 left" in row.found
    made = bench(tmp_path, uneven)
    atoms = Atoms(*row.figures["atoms"])
    choose(tmp_path, True, Switches("primary", atoms, {}, board(made).uuid))
    assert made.switches.atoms == atoms
    assert green_gpu(made).blocks == (atoms.count, atoms.atom_sms)


def test_how_another_gpu_is_cut_does_not_count_on_this_one(tmp_path: Path) -> None:
    made, usual = bench(tmp_path), green_gpu(bench(tmp_path)).blocks
    choose(tmp_path, True, Switches("primary", Atoms(15, 8, 12), {}, "GPU-another"))
    assert green_gpu(made).blocks == usual != (15, 8)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("make", "context", "right"),
    [(FakeDriver, "primary", False), (FakeDriver, "green", True), (refusing, "green", False)],
)
def test_a_library_that_refuses_streams_of_another_context_is_found_out(
    tmp_path: Path, make: Callable[[], FakeDriver], context: LibraryContext, right: bool
) -> None:
    for row in asked(bench(tmp_path, make), convolutions(""), context).values():
        assert (row.verdict is Verdict.AS_EXPECTED) is right, row
        if not right:
            assert "eager refused: cuDNN error" in row.found
            assert row.figures["against"] == ["eager", "captured"]


def test_what_goes_wrong_on_plain_streams_too_is_no_matter_of_green_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = functional.conv2d

    def wrong(*arguments: torch.Tensor, padding: int) -> torch.Tensor:
        return right(*arguments, padding=padding) * (2.0 if HERE.libraries else 1.0)

    monkeypatch.setattr(green, "functional", SimpleNamespace(conv2d=wrong))
    for row in asked(bench(tmp_path), convolutions("")).values():
        assert row.verdict is Verdict.OTHER
        assert "wrong by" in row.found and "on a plain stream as well" in row.found
        assert row.figures["against"] == []


# --------------------------------------------------------------------- a crash costs one row


def _good(opened: Opened) -> Row:
    return seen("good", str(os.getpid()))


def _crash(opened: Opened) -> Row:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(opened: Opened) -> Row:
    raise ValueError("no")


def _hang(opened: Opened) -> Row:
    time.sleep(600)
    return seen("hang", "")


def test_a_crash_costs_its_own_row_and_the_next_has_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "_DRY_TRY_S", 6.0)
    questions = (_good, _crash, _good, _raise, _good, _hang, _good, _good)
    some = [Try(ask.__name__, ask) for ask in questions]
    found = list(tried(bench(tmp_path), some, "primary"))
    failures = [row.found for row in found if row.verdict is Verdict.FAILED]
    assert len(found) == len(questions)
    assert "ended without a word" in failures[0]
    assert failures[1] == "ValueError: no"
    assert failures[2] == "did not end within 6 s"
    processes = [row.found for row in found if row.verdict is Verdict.SEEN]
    assert len(set(processes)) == 4 and processes[-1] == processes[-2]
    assert not Path(f"/proc/{processes[2]}").exists()


def test_a_gpu_that_cannot_be_opened_fails_each_row_and_no_more(tmp_path: Path) -> None:
    def none() -> FakeDriver:
        raise OSError("no such GPU")

    found = asked(bench(tmp_path, none), [Try("one", _good), Try("two", _good)])
    assert [row.found for row in found.values()] == ["OSError: no such GPU"] * 2


def test_without_time_questions_are_left_out(tmp_path: Path) -> None:
    made = Bench(True, tmp_path, time.monotonic(), lambda: on(FakeDriver()))
    (row,) = tried(made, [Try("one", _good)], "primary")
    assert row.verdict is Verdict.SKIPPED


# ------------------------------------------------------------------------------ whole models


def test_models_are_held_against_the_cpus_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "maker", lambda *_, **__: cores)

    async def ask() -> list[Row]:
        return [row async for row in answers.answers(bench(tmp_path), "cores")]

    found = asyncio.run(ask())
    assert [row.what for row in found] == ["little on cores", "middle on cores"]
    assert all(row.verdict is Verdict.AS_EXPECTED for row in found), found
    assert all(row.figures["nearest"] == [0, 1, 2, 3] for row in found)


def test_rows_that_were_mixed_up_or_are_off_are_seen() -> None:
    wanted = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    assert answers.compared(wanted, wanted) == (0.0, [0, 1, 2])
    assert answers.compared(wanted[[1, 0, 2]], wanted)[1] == [1, 0, 2]
    assert answers.compared(wanted + 0.5, wanted)[0] == pytest.approx(0.5)


# -------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("convolutions_", "models", "streams", "context", "out"),
    [
        ({"primary": True}, {"primary": True}, True, "primary", False),
        ({"primary": False, "green": True}, {"green": True}, True, "green", False),
        (BOTH, {"primary": False, "green": True}, True, "green", False),
        ({"primary": False, "green": False}, {}, True, "primary", True),
        # Models go wrong, convolutions do not: it is green contexts' matter if streams are right.
        (BOTH, {"primary": False, "green": False}, True, "primary", True),
        (BOTH, {"primary": False, "green": False}, False, "primary", False),
    ],
)  # fmt: skip
def test_the_choice(
    convolutions_: dict[LibraryContext, bool],
    models: dict[LibraryContext, bool],
    streams: bool,
    context: str,
    out: bool,
) -> None:
    found = Seen(convolutions_, models, streams, ["why"])
    assert chosen(found, "", "") == (context, {"green": part._NO_GREEN + "why"} if out else {})
    assert chosen(found, "too old", "no daemon")[1] == {"green": "too old", "mps": "no daemon"}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("make", "context", "out"), [(FakeDriver, "green", False), (refusing, "primary", True)]
)
def test_later_parts_use_what_was_chosen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], FakeDriver],
    context: str,
    out: bool,
) -> None:
    async def right(made: Bench, kind: str, context: str | None = None):  # type: ignore[no-untyped-def]
        yield judged(f"model on {kind}", "right", "right", True)

    monkeypatch.setattr(part, "answers", right)
    choose(tmp_path, True, Switches("green", None, {"green": "of an earlier run"}))
    made = bench(tmp_path, make)
    *_, told = part.rows(made)
    assert not [row for row in _ if row.verdict is Verdict.FAILED]
    assert made.switches.handle_context == context == told.figures["handle_context"]
    assert ("cuDNN error" in lacking(made, "green")) is out
    assert not lacking(made, "mps") and not lacking(made, "streams")
    with made.backend() as backend:
        used = type(backend.threads).__name__
    assert used == ("ContextThreads" if context == "green" else "LibraryThreads")
    assert maker(made, "green") is not None


def test_a_daemon_that_cannot_be_had_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(tmp_path, True, Switches("primary", None, {"mps": "no daemon"}))
    assert lacking(bench(tmp_path), "mps") == "no daemon"
    assert switches_of(tmp_path, True).lacking == {"mps": "no daemon"}
    monkeypatch.setattr(mps_client, "_CLIENT", "print('CUDA_ERROR_MPS_CONNECTION_FAILED')")
    with pytest.raises(ValueError, match="MPS_CONNECTION_FAILED"):
        mps_client.client_sms({}, 50)
    monkeypatch.setattr(mps_client, "_CLIENT", "print('66')")
    assert mps_client.client_sms({}, 50) == 66
    assert failed("x", "y").broken


def test_what_nvml_does_not_know_costs_its_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(made: Bench, kind: str) -> str:
        raise NoGpuError("NVML does not answer")

    async def none(made: Bench, kind: str, context: str | None = None):  # type: ignore[no-untyped-def]
        yield failed(f"model on {kind}", "NVML does not answer")

    monkeypatch.setattr(part, "lacking", unknown)
    monkeypatch.setattr(part, "answers", none)
    made = bench(tmp_path)
    found = {row.what: row.verdict for row in part.rows(made)}
    assert found["the GPU as NVML sees it"] is found["a client of MPS"] is Verdict.FAILED
    assert found["convolution fp16 NCHW on a green stream"] is Verdict.AS_EXPECTED
    assert "green" not in made.switches.lacking  # what fails on streams too is no matter of it
