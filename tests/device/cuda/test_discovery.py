"""What NVML says becomes accelerators, or words that say what is missing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from interlace.assembly import accelerators
from interlace.core.user_errors import UserError
from interlace.device.cpu.settings import CpuSettings
from interlace.device.cuda import mps
from interlace.device.cuda.discovery import NoGpuError, discover, kind_of, visible
from interlace.device.cuda.green_contexts.atoms import Atoms, ask_atoms
from interlace.device.cuda.mps import MpsControl, MpsError, quit_abandoned
from tests.device.cuda.stand_ins import FakeGpu, FakeNvml, control_program

CPU = CpuSettings((0,), 1 << 30)
#: No driver is asked how it cuts a GPU, unless a test says so.
choose = partial(accelerators.choose_accelerators, ask=lambda uuids: ())
GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "memory_bytes", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 85_520_809_984, "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", 85_520_809_984, "h100-pcie-80gb"),
        ("NVIDIA H200", 150_754_820_096, "h200-sxm5-141gb"),
        ("NVIDIA A100-SXM4-80GB", 85_198_045_184, "a100-sxm4-80gb"),
        ("Tesla V100-SXM2-16GB", 16_945_512_448, "v100-sxm2-16gb"),
        ("NVIDIA GeForce RTX 4090", 25_757_220_864, "rtx-4090-24gb"),
    ],
)
def test_kinds_have_model_form_and_memory(name: str, memory_bytes: int, kind: str) -> None:
    assert kind_of(name, memory_bytes) == kind


def test_a_gpu_is_found_as_nvml_has_it_and_nvml_is_closed() -> None:
    nvml = FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1", mig=None))
    found = discover(nvml)
    assert [(one.uuid, one.sms, one.kind) for one in found] == [
        ("GPU-fake-0", 132, "h100-sxm5-80gb"),
        ("GPU-1", 132, "h100-sxm5-80gb"),
    ]
    assert (found[0].capability, found[0].driver, found[0].mig) == ((9, 0), 13000, False)
    assert nvml.open == 0


def test_no_driver_and_no_gpu_are_told_apart() -> None:
    with pytest.raises(NoGpuError, match="does not answer"):
        discover(FakeNvml(absent=True))
    with pytest.raises(NoGpuError, match="sees no GPU"):
        discover(FakeNvml())
    with pytest.raises(NoGpuError, match=r"capability 99\.0"):
        discover(FakeNvml(FakeGpu(capability=(99, 0))))


def test_an_operator_says_which_gpus_are_seen() -> None:
    small, other = FakeGpu(uuid="MIG-a", sms=16), FakeGpu(uuid="MIG-b", sms=16)
    parted = FakeGpu(uuid="GPU-c2", mig=True, instances=(small, other))
    found = discover(FakeNvml(FakeGpu(uuid="GPU-a0"), FakeGpu(uuid="GPU-b1"), parted))

    def seen(setting: str | None) -> list[str]:
        return [one.uuid for one in visible(found, setting)]

    assert seen(None) == ["GPU-a0", "GPU-b1", "GPU-c2"]
    assert seen("1,0") == ["GPU-b1", "GPU-a0"]
    assert seen("GPU-b") == ["GPU-b1"]
    assert seen("1,7,0") == ["GPU-b1"]  # what follows a name of nothing does not count
    assert seen("") == seen("-1") == []
    (one,) = visible(found, "MIG-b")
    assert [each.uuid for each in one.instances] == ["MIG-b"]
    (one,) = visible(found, "MIG-b,MIG-a")
    assert [each.uuid for each in one.instances] == ["MIG-b", "MIG-a"]

    two = FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1"))
    assert [one.uuid for one in choose("green", CPU, "GPU-1", two).settings] == ["GPU-1"]
    assert choose("auto", CPU, "", two).settings == ()
    with pytest.raises(UserError, match=r"'9' names none of 0 \(GPU-fake-0\), 1 \(GPU-1\)"):
        choose("green", CPU, "9", two)


def test_gpus_behind_nvlink_pass_weights_on_to_each_other() -> None:
    def peers(*links: tuple[str, ...], weights_bytes: int = GIB) -> list[tuple[str, float]]:
        gpus = [FakeGpu(uuid=f"GPU-{at}", links=ends) for at, ends in enumerate(links)]
        chosen = choose("green", CPU, nvml=FakeNvml(*gpus)).with_weights(weights_bytes)
        for at, one in enumerate(chosen.settings):
            links_, seen = one.gpu.links, one.environment(100)["CUDA_VISIBLE_DEVICES"]
            assert one.gpu.link_names[0] == one.gpu.id == f"gpu{at}"
            named = [f"GPU-{name.removeprefix('gpu')}" for name in one.gpu.link_names]
            assert seen == ",".join(named) and len(named) == links_.peers + 1
        rates = [one.gpu.links.peer_bytes_per_ms for one in chosen.settings]
        return list(zip((one.gpu.link_names[-1] for one in chosen.settings), rates, strict=True))

    switch = ("switch",) * 18
    rate = pytest.approx(18 * 26_562e3 * 0.8)
    assert peers(switch, switch) == [("gpu1", rate), ("gpu0", rate)]
    assert [name for name, _ in peers(*[switch] * 4)] == ["gpu2", "gpu3", "gpu0", "gpu1"]
    few = pytest.approx(2 * 26_562e3 * 0.8)
    wired = ("GPU-1", "GPU-1"), ("GPU-0", "GPU-0"), ()
    assert peers(*wired)[:2] == [("gpu1", few), ("gpu0", few)]
    assert peers(*wired)[2][0] == "gpu2", "alone"
    assert peers((), ())[0][0] == "gpu0"
    assert peers(switch, switch, weights_bytes=0)[0][0] == "gpu0"


def test_auto_takes_what_the_gpu_can_do() -> None:
    def kinds(*gpus: FakeGpu, **how: Any) -> list[str]:
        return [gpu.kind for gpu in choose("auto", CPU, nvml=FakeNvml(*gpus, **how)).gpus]

    assert kinds(FakeGpu()) == ["h100-sxm5-80gb"]
    assert kinds(FakeGpu(capability=(8, 0), name="NVIDIA A100-SXM4-80GB")) == [
        "a100-sxm4-80gb-streams"
    ]
    assert kinds(FakeGpu(), driver=12030) == ["h100-sxm5-80gb-streams"]
    assert kinds(FakeGpu(), FakeGpu(uuid="GPU-1")) == ["h100-sxm5-80gb"] * 2
    assert kinds(absent=True)[0].startswith("cpu-")


def test_mig_instances_are_devices_of_their_own() -> None:
    small = FakeGpu(uuid="MIG-a", sms=16, memory_bytes=10 * GIB)
    other = FakeGpu(uuid="MIG-b", sms=16, memory_bytes=10 * GIB)
    chosen = choose("auto", CPU, nvml=FakeNvml(FakeGpu(mig=True, instances=(small, None, other))))
    assert [one.uuid for one in chosen.settings] == ["MIG-a", "MIG-b"]
    assert [gpu.units for gpu in chosen.gpus] == [16, 16]
    assert chosen.settings[1].environment(100) == {"CUDA_VISIBLE_DEVICES": "MIG-b"}
    with pytest.raises(UserError, match="no instance; make some"):
        choose("auto", CPU, nvml=FakeNvml(FakeGpu(mig=True)))
    with pytest.raises(UserError, match="its instances are devices"):
        choose("green", CPU, nvml=FakeNvml(FakeGpu(mig=True, instances=(small,))))


@pytest.mark.parametrize(
    ("device", "nvml", "words"),
    [
        ("tpu", FakeNvml(), "expected one of auto, cpu, green, mps, streams"),
        ("green", FakeNvml(absent=True), "there is no GPU to use: NVML does not answer"),
        ("green", FakeNvml(FakeGpu(capability=(8, 0))), "from 9.0"),
        ("green", FakeNvml(FakeGpu(), driver=12030), "the driver speaks CUDA 12.3"),
        ("mps", FakeNvml(FakeGpu(capability=(6, 0))), "MPS limits SMs from 7.0"),
        ("green", FakeNvml(FakeGpu(), FakeGpu(name="NVIDIA H200")), "several kinds"),
    ],
)
def test_what_cannot_be_is_said_in_words(device: str, nvml: FakeNvml, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose(device, CPU, nvml=nvml)


def test_green_shares_are_whole_atoms_and_planners_see_no_more() -> None:
    (gpu,) = choose("green", CPU, nvml=FakeNvml(FakeGpu())).gpus
    assert gpu.units == 132
    assert len(gpu.shares_pct) == 17  # 16 sizes of atoms, and the whole
    assert gpu.memory_bytes < 85_520_809_984


def test_shares_are_those_that_the_driver_of_every_gpu_can_make() -> None:
    asked: list[object] = []
    found = {"GPU-0": Atoms(15, 8, 12), "GPU-1": Atoms(14, 8, 20)}

    def ask(uuids: Sequence[str]) -> list[Atoms]:
        asked.append(list(uuids))
        return [found[one] for one in uuids]

    nvml = FakeNvml(FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1"))
    both = choose("green", CPU, nvml=nvml, ask=ask).gpus
    assert asked == [["GPU-0", "GPU-1"]]
    assert both[0] == replace(both[1], id="gpu0")
    assert both[0].shares_pct == (6, 12, 18, 24, 30, 36, 42, 48, 54, 60, 66, 72, 78, 84, 100)
    (one,) = choose("green", CPU, "0", nvml, ask=ask).gpus
    assert one.shares_pct[-2:] == (90, 100)
    assert one.legal([42, 48]) and one.legal([100]) and not one.legal([48, 48])
    assert not both[0].legal([42, 48]) and both[0].legal([42, 42])
    asked.clear()
    choose("streams", CPU, nvml=nvml, ask=ask)
    assert not asked
    found["GPU-1"] = Atoms(8, 16, 4)
    with pytest.raises(UserError, match=r"atoms of \[8, 16\] SMs; name some with --gpus"):
        choose("green", CPU, nvml=nvml, ask=ask)


def test_a_driver_that_is_not_there_says_nothing() -> None:
    assert ask_atoms(["GPU-of-no-machine"]) == ()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts the daemon's program on the path, with its folders in the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return partial(control_program, tmp_path)


def test_a_daemon_of_our_own_is_started_and_stopped(program: Callable[..., Path]) -> None:
    log, control = program(), MpsControl("GPU-0")
    control.start()
    control.start()
    folder = Path(control.environment()["CUDA_MPS_PIPE_DIRECTORY"])
    assert folder.is_dir()
    control.stop()
    control.stop()
    assert log.read_text() == "-d GPU-0\nget_server_list GPU-0\nquit -t 5 GPU-0\n"
    assert not folder.parent.exists()


def test_a_daemon_that_is_missing_or_fails_is_told(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(code=1)
    with pytest.raises(MpsError, match="failed with code 1"):
        MpsControl("GPU-0").start()
    monkeypatch.setattr(mps, "PROGRAM", "not-there")
    with pytest.raises(MpsError, match="not-there is not installed"):
        MpsControl("GPU-0").start()


def test_a_daemon_keeps_no_pipe_of_the_one_that_starts_it(
    tmp_path: Path, program: Callable[..., Path]
) -> None:
    """The real one lives on; who waits for the end of what it inherited waits for ever."""
    log, control = program(stays_s=30.0), MpsControl("GPU-0")
    control.start()
    pid = int((tmp_path / "daemon").read_text())
    try:
        opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (1, 2)]
        assert not any(one.startswith("pipe:") for one in opened)
    finally:
        os.kill(pid, signal.SIGKILL)
        control.stop()
    assert log.read_text().startswith("-d GPU-0\nget_server_list GPU-0\n")


def test_a_daemon_whose_server_was_killed_is_ended_by_the_next(
    tmp_path: Path, program: Callable[..., Path]
) -> None:
    log, code = program(), "import interlace.device.cuda.mps as m; m.MpsControl('GPU-0').start()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (left,) = tmp_path.glob("interlace-mps-*")
    living = tmp_path / left.name.replace(left.name.split("-")[3], str(os.getpid()))
    living.mkdir()
    log.unlink()
    assert quit_abandoned() == [left]
    assert log.read_text() == "quit -t 5 -\n"
    assert not left.exists() and living.exists()


def test_nothing_of_torch_or_cuda_is_imported_to_choose() -> None:
    code = (
        "import sys, interlace.assembly.accelerators, interlace.device.cuda.device; "
        "heavy = {'torch', 'cuda', 'pynvml', 'numba'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
