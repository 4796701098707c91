"""`interlace` on a GPU that is not there: NVML and the driver are stand-ins, the rest is real."""

from __future__ import annotations

from dataclasses import replace

from interlace.assembly import accelerators
from interlace.assembly.accelerators import Accelerators
from interlace.cli import main, profile, serve
from interlace.device.cpu.settings import CpuSettings
from interlace.device.cuda.green_contexts.atoms import Atoms
from tests.device.cuda.nvml import FakeGpu, FakeNvml

SMS = 16  #: two shares, so that profiles take no time


def _choose(device: str, cpu: CpuSettings, gpus: str | None) -> Accelerators:
    nvml = FakeNvml(FakeGpu(sms=SMS))
    chosen = accelerators.choose_accelerators(
        device, cpu, gpus, nvml, lambda uuids: [Atoms(SMS // 8, 8)]
    )
    made = [
        replace(
            one,
            backend="tests.device.cuda.backends:few_sms",
            completion="blocking",
            arena_bytes=1 << 24,
        )
        for one in chosen.settings
    ]
    return replace(chosen, settings=tuple(made))


def run() -> None:
    """The command line, with another GPU."""
    for module in (serve, profile):
        module.choose = _choose
    main.main()
