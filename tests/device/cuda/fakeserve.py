"""`interlace` on a GPU that is not there: NVML and the driver are stand-ins, the rest is real."""

from dataclasses import replace

from interlace.assembly import accelerators, server
from interlace.assembly.accelerators import Accelerators
from interlace.cli import main, profile
from interlace.device.cpu.settings import CpuSettings
from interlace.device.cuda.green_contexts.atoms import Atoms
from tests.device.cuda.nvml import FakeGpu, FakeNvml

SMS = 16
SHARES_PCT = (50, 100)  #: so that profiles take no time


def _choose(device: str, cpu: CpuSettings, gpus: str | None) -> Accelerators:
    nvml = FakeNvml(FakeGpu(sms=SMS))
    chosen = accelerators.choose_accelerators(
        device, cpu, gpus, nvml, lambda uuids: [Atoms(SMS // 8, 8)]
    )
    made = [
        replace(
            one,
            gpu=replace(one.gpu, shares_pct=SHARES_PCT),
            backend="tests.device.cuda.backends:few_sms",
            arena_bytes=1 << 24,
        )
        for one in chosen.settings
    ]
    return replace(chosen, settings=tuple(made))


def run() -> None:
    """The command line, with another GPU."""
    for module in (server, profile):
        assert hasattr(module, "choose_accelerators")
        module.choose_accelerators = _choose  # type: ignore[attr-defined]
    main.main()
