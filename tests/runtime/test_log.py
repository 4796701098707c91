"""A log of a run replays to the same decisions, from its beginning or from a checkpoint."""

import errno
import math
import os
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import (
    Command,
    EpochEnded,
    Failure,
    Run,
    SendReply,
    WakeAt,
    WorkFinished,
)
from interlace.core.request import Batch, Outcome, Reply, Request
from interlace.core.tensor import Span, Tensor
from interlace.device.simulated.physics import HostLink, Physics, Transfer
from interlace.policy.catalog import resolve
from interlace.runtime.log import write
from interlace.runtime.log.codec import (
    LENGTH,
    MAGIC,
    LogError,
    LogFile,
    LogHeader,
    decode,
    digest,
    encode,
    frame,
    open_log,
)
from interlace.runtime.log.replay import Replay
from interlace.runtime.log.write import LogWriter, previous_file, restore
from tests.builders import World, distinct_rows, line_profile

MODELS = ("a", "b")
TRUTH = {m: line_profile(m, 1.0 + i, 0.5 + 0.3 * i) for i, m in enumerate(MODELS)}
COPIES = Physics(link=HostLink(1_000.0), transfers={"a": Transfer(500, 10)})


def logged(path: Path, name: str, limit_bytes: int = 1 << 30) -> tuple[World, LogWriter]:
    """A world with some traffic, faults and a change of plan, and the log of it."""
    world = World(TRUTH, system=resolve(name), physics=COPIES)
    header = LogHeader("test", name, world.fleet)
    writer = LogWriter(path, header, world.engine, limit_bytes)
    world.runtime._observers.append(writer)
    world.deploy({"a": 40.0, "b": 60.0}, rows_per_s=100.0)
    world.run(100.0)
    for index in range(400):
        world.send("ab"[index % 2], 40.0, rows=1 + index % 3, shape=("x", (3, index % 2)))
        if index % 50 == 0:
            world.runtime.count_refused("a", 2)
        world.run(2.0 + index % 5)
    world.devices["g0"].fail_next(Run, "bad batch")
    world.devices["g0"].fail_next(Run, Failure("bad values", bad_input=True))
    cancelled = world.send("a", 40.0)
    world.runtime.cancel(cancelled)
    world.send("b", 40.0)
    partition = next(iter(world.devices["g0"].partitions), None)
    if partition is not None:
        world.devices["g0"].kill(partition)
    world.run(3_000.0)
    writer.close()
    return world, writer


def commands_of(log: LogFile, name: str) -> Sequence[tuple[float, Sequence[Command]]]:
    steps = list(Replay(log, resolve(name)).steps())
    assert steps, "nothing was logged"
    assert all(step.same for step in steps)
    return [(step.now_ms, step.commands) for step in steps]


@pytest.mark.parametrize("name", distinct_rows("dispatcher"))
def test_every_system_replays_alike(name: str, tmp_path: Path) -> None:
    world, _ = logged(tmp_path / "run.log", name)
    log = open_log(tmp_path / "run.log")
    found = commands_of(log, name)
    assert log.cut_bytes == 0
    assert [now_ms for now_ms, _ in found] == [now_ms for now_ms, _, _ in world.log]
    told = [digest(commands) for _, commands in found]
    assert told == [digest(commands) for _, _, commands in world.log]


@pytest.mark.parametrize(
    "errors", [(), (None, ServeError(Reason.BAD_INPUT, "no", retry_after_ms=2.0))]
)
def test_requests_that_a_model_refused_are_logged(errors: tuple[ServeError | None, ...]) -> None:
    run = Run("g0", "p", Batch(3, "a", (Request(1, "a", 0.0, 9.0), Request(2, "a", 0.0, 9.0)), 2))
    event = WorkFinished(run, ((), ()), errors=errors)
    assert decode(encode(1.5, event, ()), {3: run}) == (1.5, 0, event)


@pytest.mark.sources
@pytest.mark.parametrize("name", ["interlace", "dstack", "e2bird"])
def test_a_file_that_follows_another_replays_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    world, _ = logged(path, name, limit_bytes=64_000)
    parts = [open_log(previous_file(path)), open_log(path)]
    assert parts[1].header.checkpoint
    played = [step for log in parts for step in commands_of(log, name)]
    ended = [(now_ms, digest(commands)) for now_ms, _, commands in world.log]
    assert [(now_ms, digest(commands)) for now_ms, commands in played] == ended[-len(played) :]
    assert sum(part.stat().st_size for part in (path, previous_file(path))) < 2 * 64_000


def test_another_system_decides_otherwise(tmp_path: Path) -> None:
    logged(tmp_path / "run.log", "interlace")
    log = open_log(tmp_path / "run.log")
    same = [step.same for step in Replay(log, resolve("temporal")).steps()]
    assert same[0]
    assert not all(same)


@pytest.fixture(scope="module")
def path_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "run.log"
    logged(path, "interlace")
    return path


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_log_cut_anywhere_replays_up_to_there(data: st.DataObject, path_of_a_run: Path) -> None:
    path = path_of_a_run
    whole = path.read_bytes()
    begins = open_log(path).begins
    length = data.draw(st.integers(begins, len(whole)))
    cut = path.with_suffix(".part")
    cut.write_bytes(whole[:length])
    log = open_log(cut)
    sizes = [LENGTH + len(entry) for entry in log.entries()]
    assert begins + sum(sizes) + log.cut_bytes == length
    assert all(step.same for step in Replay(log, resolve("interlace")).steps())


def test_what_is_no_log_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"something else")
    with pytest.raises(LogError, match="not an event log"):
        open_log(path)


@pytest.mark.parametrize("entry", [b"\xc1" * 9, b"\x91" * 100_000])
def test_a_damaged_entry_is_told_with_its_place(
    entry: bytes, path_of_a_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(path_of_a_run.read_bytes()[: open_log(path_of_a_run).begins] + frame(entry))
    with pytest.raises(LogError, match="event 0"):
        list(Replay(open_log(path), resolve("interlace")).steps())


@pytest.mark.parametrize(
    "checkpoint",
    [
        b"\x80\x04\x95" + b"\xff" * 8,  # a frame longer than the file
        b"\x80\x04cinterlace.engine.engine\nEngine\n.",  # no tuple of two
        b"\x80\x04\x82\x01.",
        b"\x80\x04h\x05.",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x05\x96" + (20 << 30).to_bytes(8, "little"),
    ],
)
def test_a_damaged_checkpoint_is_told(
    tmp_path: Path, path_of_a_run: Path, checkpoint: bytes
) -> None:
    path = tmp_path / "run.log"
    header = msgspec.structs.replace(open_log(path_of_a_run).header, checkpoint=checkpoint)
    path.write_bytes(MAGIC + frame(msgspec.msgpack.encode(header)))
    with pytest.raises(LogError, match="cannot take over"):
        list(Replay(open_log(path), resolve("interlace")).steps())


def test_a_fifo_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.log")
    with pytest.raises(LogError, match="a FIFO; expected a regular file"):
        open_log(tmp_path / "run.log")


def test_a_checkpoint_holds_no_code() -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.getcwd, ()

    with pytest.raises(pickle.UnpicklingError, match="no part of an engine"):
        restore(pickle.dumps((Evil(), {})), resolve("interlace"))


class _FullDisk:
    """Writes that take a part of what they are given once there is no room, and then fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room_bytes: float = math.inf
        self._write = write._write
        monkeypatch.setattr(write, "_write", self)

    def __call__(self, file: IO[bytes], content: bytes | bytearray) -> int:
        if len(content) > self.room_bytes:
            file.write(content[: int(self.room_bytes)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(file, content)


@pytest.mark.sources
def test_a_log_goes_on_once_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk, world = tmp_path / "run.log", _FullDisk(monkeypatch), World(TRUTH)
    writer = LogWriter(path, LogHeader("test", "interlace", world.fleet), world.engine)
    world.runtime._observers.append(writer)
    world.deploy({"a": 40.0, "b": 60.0}, rows_per_s=100.0)
    traffic = partial(_ask, world)
    traffic(5_000.0)
    disk.room_bytes = 100
    traffic(25_000.0)  # it is tried again, twice
    assert len(caplog.messages) == 1 and "No space left" in caplog.messages[0]
    assert sorted(os.listdir(tmp_path)) == ["run.log"]
    disk.room_bytes = math.inf
    traffic(30_000.0)
    writer.close()
    assert len(caplog.messages) == 2 and "are not in it" in caplog.messages[1]
    before, after = open_log(previous_file(path)), open_log(path)
    found = [commands_of(log, "interlace") for log in (before, after)]
    assert not before.cut_bytes and not after.cut_bytes
    lost = after.header.lost_events
    assert lost > 0 and sum(map(len, found)) + lost == len(world.log)
    assert found[0][-1][0] <= after.header.lost_from_ms < found[1][0][0]
    assert [now_ms for now_ms, _ in found[1]] == [at for at, _, _ in world.log[-len(found[1]) :]]


def _ask(world: World, during_ms: float) -> None:
    for index in range(int(during_ms / 50)):
        world.send("ab"[index % 2], 40.0)
        world.run(50.0)


def test_an_event_after_its_end_begins_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    world, writer = logged(path, "interlace")
    writer.close()
    whole = path.read_bytes()
    writer(world.clock.now_ms() + 1.0, EpochEnded(), [])
    writer.close()
    assert path.read_bytes() == whole and not previous_file(path).exists()


def test_a_log_without_an_engine_ends_on_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _FullDisk(monkeypatch)
    writer = LogWriter(tmp_path / "l", LogHeader("test", "interlace", World(TRUTH).fleet))
    disk.room_bytes = 1
    for epoch in range(30):
        writer(1e3 * epoch, EpochEnded(), [])
    writer.close()
    assert "No space left" in caplog.messages[0]
    assert caplog.messages[1:] == [f"{tmp_path / 'l'}: the last 30 events are not in it"]


REQUEST = Request(7, "m", 1.0, 2.0)


def _answer(outcome: Outcome, error: ServeError | None = None) -> SendReply:
    return SendReply(Reply(REQUEST, outcome, error=error))


DIFFERENT: list[list[Command]] = [
    [],
    [_answer(Outcome.OK)],
    [_answer(Outcome.LATE)],
    [_answer(Outcome.REFUSED, ServeError(Reason.DEADLINE, "late", late_ms=1.0))],
    [_answer(Outcome.REFUSED, ServeError(Reason.DEADLINE, "late", late_ms=2.0))],
    [WakeAt(1.0)],
    [WakeAt(2.0)],
    [WakeAt(1.0), WakeAt(1.0)],
    [Run("g", "p", Batch(1, "m", (REQUEST,), 1))],
    [Run("g", "p", Batch(1, "m", (REQUEST,), 1, 2))],
    [Run("g", "p", Batch(1, "m", (REQUEST,), 1, 1, 0))],
    [Run("g", "q", Batch(1, "m", (REQUEST,), 1))],
]


def test_digests_tell_commands_apart() -> None:
    assert len({digest(commands) for commands in DIFFERENT}) == len(DIFFERENT)


def test_tensors_count_for_nothing() -> None:
    tensor = Tensor("x", "FP32", (1,), Span(0, 0, 4))
    with_bytes = Batch(1, "m", (replace(REQUEST, inputs=(tensor,)),), 1)
    assert digest([Run("g", "p", with_bytes)]) == digest(DIFFERENT[8])
    assert encode(0.0, EpochEnded(), [Run("g", "p", with_bytes)]) == encode(
        0.0, EpochEnded(), DIFFERENT[8]
    )
