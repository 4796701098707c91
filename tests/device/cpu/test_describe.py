"""Models described by a process of their own: what they say, why they do not load, in time."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Description, Format, Model
from interlace.device.cpu.device import CoreAllocator, cpu_kind
from interlace.device.cpu.settings import CpuSettings
from interlace.device.process.spawner import ForkServerSpawner
from tests.device.cpu.conftest import MakeRig
from tests.device.cpu.rig import Rig
from tests.device.models import model
from tests.processes import children, memory_maps


def error_of(rig: Rig, known: Model, limit_s: float = 30.0) -> str:
    with pytest.raises(ServeError) as caught:
        rig.loop.run_until_complete(rig.device.describe(known, limit_s))
    assert caught.value.reason is Reason.BACKEND
    return caught.value.detail


def test_why_it_does_not_load(rig: Rig) -> None:
    assert error_of(rig, model("broken")) == (
        "model broken does not load: RuntimeError: file model.bin: found nonsense"
    )
    assert error_of(rig, model("crash-load")) == (
        "describe: the worker process ended with exit code 3"
    )


def test_one_that_is_killed_from_outside_is_opened_once_more(rig: Rig) -> None:
    found = rig.loop.run_until_complete(rig.device.describe(model("killed-once"), 30.0))
    assert found.signature.inputs
    assert "killed by signal 9 (SIGKILL), by the kernel for lack" in error_of(rig, model("killed"))


def test_a_model_that_takes_too_long(rig: Rig) -> None:
    assert "'load late/1#0' took longer than 0.5 s" in error_of(rig, model("late"), 0.5)


def test_the_fork_server_has_the_libraries_and_no_threads(make_rig: MakeRig) -> None:
    defaults = CpuSettings((0,), 0)
    rig = make_rig(opener=defaults.opener, preload=defaults.preload)
    for kind in Format:
        rig.device.register(replace(model("double"), name=kind.value, format=kind))
    assert rig.carve().failure is None
    pid = rig.device.fork_server_pid
    assert pid is not None
    maps = memory_maps(pid)
    assert "libtorch_cpu" in maps and "onnxruntime" in maps
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    code = re.search(
        r" r-xp .*libtorch_cpu(?:.*\n)*?Rss: +(\d+) kB", Path(f"/proc/{pid}/smaps").read_text()
    )
    assert code and int(code[1]) < 4096  # importing maps 45 MB


@pytest.mark.parametrize("code", ["", "import other"])
def test_those_of_the_same_code_share_processes(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """One file of code, that is; and one that fails there is tried in a process of its own."""
    begun: list[str] = []
    spawn = ForkServerSpawner.spawn

    def counted(self: ForkServerSpawner, name: str, *how: Any) -> None:
        begun.append(name)
        spawn(self, name, *how)

    monkeypatch.setattr(ForkServerSpawner, "spawn", counted)
    (tmp_path / "model.py").write_text(code)
    if code:
        (tmp_path / "other.py").touch()
    names = ["double", "identity", "reverse"] * 8 + ["broken"]
    models = [
        replace(model(name), generation=number, path=str(tmp_path))
        for number, name in enumerate(names)
    ]

    async def all_at_once() -> list[Description | BaseException]:
        return await asyncio.gather(*map(rig.device.describe, models), return_exceptions=True)

    *found, last = rig.loop.run_until_complete(all_at_once())
    assert [one.signature for one in found if isinstance(one, Description)] == [
        one.signature for one in models[:-1]
    ]
    assert isinstance(last, ServeError) and "found nonsense" in last.detail
    assert len(begun) == len(models) if code else 4 <= len(begun) <= 8
    assert rig.device.workers() == {}


def test_giving_up_ends_the_process(make_rig: MakeRig) -> None:
    rig = make_rig()

    async def give_up() -> None:
        async with asyncio.timeout(0.5):
            await rig.device.describe(model("late"))

    with pytest.raises(TimeoutError):
        rig.loop.run_until_complete(give_up())
    assert rig.device.workers() == {}


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_closing_the_device_ends_it_too(make_rig: MakeRig, after_s: float) -> None:
    """What has not begun, too."""
    before = children()
    rig = make_rig()

    async def close_meanwhile() -> None:
        waiting = asyncio.ensure_future(rig.device.describe(model("late")))
        await asyncio.sleep(after_s)
        rig.device.close()
        with pytest.raises(ServeError, match="the device is closed"):
            await waiting

    rig.loop.run_until_complete(close_meanwhile())
    assert children() <= before


@given(st.integers(1, 100))
def test_shares_are_whole_cores_in_order_up_to_all(total: int) -> None:
    cores = CoreAllocator(range(total))
    shares = cores.shares_pct
    assert list(shares) == sorted(set(shares))
    assert shares[-1] == 100
    for share in shares:
        granted = cores.grant(share)
        assert len(granted) * 100 // total == share
        cores.give_back(granted)


@given(st.integers(1, 32), st.data())
def test_what_fits_in_cores_fits_in_percent(total: int, data: st.DataObject) -> None:
    cores = CoreAllocator(range(total))
    left, used_pct = total, 0
    while left:
        count = data.draw(st.integers(1, left))
        used_pct += cores.shares_pct[count - 1]
        left -= count
    assert used_pct <= 100


def test_the_least_held_cores_are_granted() -> None:
    cores = CoreAllocator((4, 5, 6, 7))
    first = cores.grant(50)
    second = cores.grant(50)
    assert (first, second) == ((4, 5), (6, 7))
    assert cores.grant(25) == (4,)  # partitions may overlap
    cores.give_back(second)
    assert cores.grant(75) == (5, 6, 7)


def test_cores_are_shared_with_those_who_leave_rather_than_with_those_who_stay() -> None:
    cores = CoreAllocator((0, 1))
    stays, leaves = cores.grant(50), cores.grant(50)
    assert (stays, leaves) == ((0,), (1,))
    assert cores.grant(50, leaves) == leaves
    assert cores.grant(50, leaves) == stays  # nobody leaves twice


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"a share of 30 %: expected one of \[50, 100\]"):
        CoreAllocator((0, 1)).grant(30)
    with pytest.raises(ValueError, match="at least one, each once"):
        CoreAllocator(())
    with pytest.raises(ValueError, match="at least one, each once"):
        CoreAllocator((1, 1))


def test_the_kind_is_one_word_with_the_number_of_cores() -> None:
    assert re.fullmatch(r"cpu-[a-z0-9-]*[a-z0-9]-3c", cpu_kind(3))
