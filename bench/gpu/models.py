"""The models of the comparisons: the ten of the examples on a GPU, three small ones without."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from bench.fidelity.stand import network, write_network
from bench.gpu.bench import Bench
from interlace.core.model import Model

ZOO: Final = Path(__file__).resolve().parents[2] / "examples" / "zoo"
#: All ten, the ones that comparisons use first.
NAMES: Final = (
    "resnet50", "vgg19", "bert_base", "mobilenet_v2", "resnext50", "densenet121", "inception_v3",
    "resnet18", "alexnet", "gpt2",
)  # fmt: skip
#: These are written with transformers.
_TRANSFORMERS: Final = ("bert_base", "gpt2")
#: What every contestant runs: graphs, channels last and this.
PRECISION: Final = "fp16"
_SMALL: Final = ("little", "middle", "large")


@contextmanager
def repository(bench: Bench, precision: str = PRECISION) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A repository of the models and their names; every model in that precision."""
    with TemporaryDirectory(prefix="interlace-zoo-") as folder:
        root = Path(folder)
        if bench.dry:
            for place, name in enumerate(_SMALL):
                made = network(16 << place, 1 + place)
                write_network(root, made, "slo_ms = 200\nmax_batch = 4\n", name)
            yield root, _SMALL
            return
        names = tuple(name for name in NAMES if _can_be_made(name))
        shutil.copytree(ZOO, root, dirs_exist_ok=True)
        for name in names:
            settings = root / name / "interlace.toml"
            settings.write_text(f'{settings.read_text()}precision = "{precision}"\n')
        yield root, names


def _can_be_made(name: str) -> bool:
    return name not in _TRANSFORMERS or find_spec("transformers") is not None


def remember(bench: Bench, models: Sequence[Model]) -> None:
    """Keep what was found by opening models, which takes seconds for each."""
    (bench.out / "models.json").write_bytes(msgspec.json.encode(list(models)))


def remembered(bench: Bench) -> dict[str, Model]:
    """Models by name as they were when somebody opened them; none if nobody did."""
    try:
        found = msgspec.json.decode((bench.out / "models.json").read_bytes(), type=list[Model])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {model.name: model for model in found}
