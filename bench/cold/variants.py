"""A repository of as many models as are wanted, of two architectures, each with weights of its own.

``variants(folder, count)``, or ``python -m bench.cold.variants FOLDER --count 2000``. Those of
even number are Python factories that read ``weights.safetensors`` and whose first output is their
number, whatever they are asked: an answer that is another's is seen. The others are small BERTs as
transformers keeps them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

WIDTH: Final = 64
OUTPUTS: Final = 8

_FACTORY: Final = '''\
"""A perceptron; its sizes and weights are those of the file beside it."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

INPUTS = {"x": ("FP32", (64,))}


def create_model():
    weights = load_file(Path(__file__).parent / "weights.safetensors")
    width = weights["0.weight"].shape[0]
    net = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
    )
    net.load_state_dict(weights)
    return net
'''


def variants(folder: Path, count: int, hidden: int = 128, slo_ms: float = 200.0) -> None:
    """Write ``count`` models, ``v0000`` on, of ``hidden`` units; those that are there stay."""
    names = [f"v{number:04d}" for number in range(count)]
    bert = _bert(hidden) if count > 1 else {}
    for number, name in enumerate(names):
        version = folder / name / "1"
        if version.exists():
            continue
        version.mkdir(parents=True)
        (folder / name / "interlace.toml").write_text(f"slo_ms = {slo_ms:g}\n")
        write_variant(version, number, hidden, bert)


def write_variant(version: Path, number: int, hidden: int, bert: dict[str, torch.Tensor]) -> None:
    """One model's files; ``number`` is its seed, too."""
    made = torch.Generator().manual_seed(number)
    if number % 2:
        weights = {
            k: one + 0.01 * torch.randn(one.shape, generator=made) for k, one in bert.items()
        }
        save_file(weights, version / "model.safetensors", {"format": "pt"})
        (version / "config.json").write_text(_bert_config(hidden).to_json_string())
        return
    shapes = {
        "0.weight": (hidden, WIDTH), "0.bias": (hidden,), "2.weight": (hidden, hidden),
        "2.bias": (hidden,), "4.weight": (OUTPUTS, hidden), "4.bias": (OUTPUTS,),
    }  # fmt: skip
    weights = {k: 0.1 * torch.randn(shape, generator=made) for k, shape in shapes.items()}
    weights["4.weight"][0] = 0.0
    weights["4.bias"][0] = float(number)
    save_file(weights, version / "weights.safetensors")
    (version / "model.py").write_text(_FACTORY)


def _bert_config(hidden: int):  # type: ignore[no-untyped-def]
    import transformers

    return transformers.BertConfig(
        vocab_size=512, hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=2 * hidden, max_position_embeddings=64, architectures=["BertModel"],
    )  # fmt: skip


def _bert(hidden: int) -> dict[str, torch.Tensor]:
    import transformers

    torch.manual_seed(0)
    return dict(transformers.BertModel(_bert_config(hidden)).state_dict())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--hidden", type=int, default=128, help="units of a layer")
    chosen = parser.parse_args()
    variants(chosen.folder, chosen.count, chosen.hidden)
