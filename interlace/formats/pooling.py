"""Sentence embeddings from token embeddings, as a sentence-transformers folder describes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from interlace.core.errors import RepositoryError

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_EPSILON: Final = 1e-9
_KNOWN: Final = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Pooling:
    """How tokens become one vector: the concatenation of ``pools``, then unit length if asked.

    Called with token embeddings (rows, tokens, width) and the attention mask (rows, tokens), it
    returns (rows, width * number of pools).
    """

    pools: tuple[Pool, ...]
    normalize: bool

    def __call__(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        vector = torch.cat([pool(tokens, weights) for pool in self.pools], dim=-1)
        return torch.nn.functional.normalize(vector, dim=-1) if self.normalize else vector


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling a folder asks for in ``modules.json`` and its pooling ``config.json``, if any.

    Raises:
        RepositoryError: a module or a pooling mode this does not know.
    """
    modules_file = folder / "modules.json"
    if not modules_file.exists():
        config = folder / "1_Pooling" / "config.json"
        return Pooling(_pools(config), False) if config.exists() else None
    modules = json.loads(modules_file.read_text())
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    for kind in kinds:
        if kind not in _KNOWN:
            raise RepositoryError(
                str(modules_file), f"module {kind}", f"one of {', '.join(_KNOWN)}"
            )
    if "Pooling" not in kinds:
        return None
    place = modules[kinds.index("Pooling")]["path"]
    return Pooling(_pools(folder / place / "config.json"), "Normalize" in kinds)


def _pools(file: Path) -> tuple[Pool, ...]:
    config = json.loads(file.read_text())
    asked = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
    single = config.get("pooling_mode")
    if isinstance(single, str):  # newer folders name one mode
        asked = [f"pooling_mode_{single}"]
    unknown = [key for key in asked if key not in _POOLS]
    if unknown or not asked:
        raise RepositoryError(str(file), f"{unknown or 'no mode'}", f"one of {', '.join(_POOLS)}")
    return tuple(_POOLS[key] for key in asked)


def _cls(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    first = weights.squeeze(-1).argmax(dim=1)  # not 0 where padding comes first
    return tokens[torch.arange(len(tokens), device=tokens.device), first]


def _last(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    mask = weights.squeeze(-1)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    rows = torch.arange(len(tokens), device=tokens.device)
    return tokens[rows, last] * mask.amax(dim=1, keepdim=True)


def _max(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return tokens.masked_fill(weights == 0, torch.finfo(tokens.dtype).min).amax(dim=1)


def _mean(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (tokens * weights).sum(1) / weights.sum(1).clamp(min=_EPSILON)


def _mean_sqrt(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (tokens * weights).sum(1) / weights.sum(1).clamp(min=_EPSILON).sqrt()


def _weighted(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1, tokens.shape[1] + 1, dtype=tokens.dtype, device=tokens.device)
    return _mean(tokens, weights * places[None, :, None])


_POOLS: Final[dict[str, Pool]] = {
    "pooling_mode_cls_token": _cls,
    "pooling_mode_cls": _cls,
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_mean": _mean,
    "pooling_mode_max_tokens": _max,
    "pooling_mode_max": _max,
    "pooling_mode_mean_sqrt_len_tokens": _mean_sqrt,
    "pooling_mode_weightedmean_tokens": _weighted,
    "pooling_mode_weightedmean": _weighted,
    "pooling_mode_lasttoken": _last,
}
