"""Hugging Face folders: ``config.json`` and safetensors, through transformers, offline."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import TensorSpec
from interlace.formats.architecture import architecture
from interlace.formats.opened import DeclaredSignature, ModelCall, OpenedModel
from interlace.formats.torch_sharing import module_tensors

# On import, before workers are forked: the first writes to every logger, in pages that they share.
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
with suppress(ImportError):  # before transformers 5
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("")  # makes the table that each model is looked up in

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: transformers looks for it by itself.
_ADAPTER: Final = "adapter_config.json"
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
    within(modules_file, place)
    return Pooling(_pools(folder / place / "config.json"), "Normalize" in kinds)


def within(file: Path, name: str) -> None:
    """Refuse a path that a model's file names and that leads out of the model's folder.

    Raises:
        RepositoryError: which file names it.
    """
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise RepositoryError(str(file), f"the path '{name}'", "one within the model's folder")


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


EMBEDDING: Final = "sentence_embedding"
#: What a row without them means: all of it is text, and of the first kind.
_DEFAULTS: Final = {"attention_mask": 1, "token_type_ids": 0}
#: Angles of rotary positions, which transformers keeps in FP32 whatever the model's type is.
_FREQUENCIES: Final = ("inv_freq", "original_inv_freq")


def open_call(model: Model) -> OpenedModel:
    """Open the model that ``config.json`` names, with the head its architecture has.

    A folder of sentence-transformers gives ``sentence_embedding``; any other the tensors that the
    model returns. Code that comes with a model is never run, nothing is looked up on the network,
    and weights are read from safetensors only.

    Raises:
        RepositoryError: an architecture transformers does not have, or inputs it cannot tell.
    """
    folder = Path(model.path)
    pooling = read_pooling(folder)
    module = _load(folder, bare=pooling is not None)
    spoken = _describe(module, folder)
    call = _plain_call(module) if pooling is None else _pooled_call(module, pooling)
    tensors = module_tensors(module)
    exact = frozenset(name for name in tensors if name.rpartition(".")[2] in _FREQUENCIES)
    return OpenedModel(
        call,
        tensors,
        spoken,
        exact,
        _DEFAULTS,
        _below(module),
        _longest(module),
        architecture=lambda: architecture(module, tensors, folder, pooling),
    )


def _load(folder: Path, bare: bool) -> Any:
    config = json.loads((folder / "config.json").read_text())
    for index in folder.glob("*.index.json"):
        for name in json.loads(index.read_text()).get("weight_map", {}).values():
            within(index, name)
    if (folder / _ADAPTER).exists():  # it names another model, wherever that lies
        raise RepositoryError(str(folder / _ADAPTER), "an adapter", "the merged model")
    attention = str(config.get("_attn_implementation") or config.get("attn_implementation") or "")
    if "/" in attention or ":" in attention:  # code of a hub
        found = f"_attn_implementation '{attention[:80]}'"
        raise RepositoryError(str(folder / "config.json"), found, "one of transformers' own")
    named = (config.get("architectures") or [None])[0]
    kind = None if bare else getattr(transformers, str(named), None)
    loader = kind or transformers.AutoModel
    return loader.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()


def _describe(module: Any, folder: Path) -> DeclaredSignature:
    source = str(folder / "config.json")
    if module.config.is_encoder_decoder:
        raise RepositoryError(source, "an encoder-decoder", "a model of one forward pass")
    accepted = inspect.signature(module.forward).parameters
    return DeclaredSignature(source, _inputs(module, accepted, source), None, True)


def _inputs(module: Any, accepted: Mapping[str, Any], source: str) -> tuple[TensorSpec, ...]:
    config = module.config
    match module.main_input_name:
        case "input_ids":
            specs = [TensorSpec("input_ids", "INT64", (-1,))]
            if "attention_mask" in accepted:
                specs.append(TensorSpec("attention_mask", "INT64", (-1,), optional=True))
            if "token_type_ids" in accepted and getattr(config, "type_vocab_size", 0) > 1:
                specs.append(TensorSpec("token_type_ids", "INT64", (-1,), optional=True))
            return tuple(specs)
        case "pixel_values":
            channels = getattr(config, "num_channels", 3)
            size = getattr(config, "image_size", -1)
            height, width = size if isinstance(size, list | tuple) else (size, size)
            return (TensorSpec("pixel_values", "FP32", (channels, height, width)),)
        case "input_values":
            return (TensorSpec("input_values", "FP32", (-1,)),)
        case "input_features":
            mels = getattr(config, "num_mel_bins", -1)
            return (TensorSpec("input_features", "FP32", (mels, -1)),)
        case other:
            raise RepositoryError(
                source,
                f"main input '{other}'",
                "input_ids, pixel_values, input_values or _features",
            )


def _below(module: Any) -> dict[str, int]:
    sizes = {
        "input_ids": getattr(module.config, "vocab_size", 0),
        "token_type_ids": getattr(module.config, "type_vocab_size", 0),
    }
    return {name: size for name, size in sizes.items() if size}


def _longest(module: Any) -> dict[str, int]:
    most = getattr(module.config, "max_position_embeddings", None)
    if not isinstance(most, int):
        return {}
    for name, part in module.named_modules():
        # Some count positions from behind the padding's.
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            most = min(most, part.num_embeddings - part.padding_idx - 1)
    return dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), most)


def _plain_call(module: Any) -> ModelCall:
    cached = "use_cache" in inspect.signature(module.forward).parameters

    def call(values: Mapping[str, Any]) -> Any:
        options = {"use_cache": False} if cached else {}
        return module(**_with_mask(values), **options, return_dict=True)

    return call


def _pooled_call(module: Any, pooling: Pooling) -> ModelCall:
    plain = _plain_call(module)

    def call(values: Mapping[str, Any]) -> Any:
        filled = _with_mask(values)
        tokens = plain(filled).last_hidden_state
        mask = filled.get("attention_mask")
        if mask is None:
            mask = torch.ones(tokens.shape[:2], device=tokens.device)
        return {EMBEDDING: pooling(tokens, mask)}

    return call


def _with_mask(values: Mapping[str, Any]) -> Mapping[str, Any]:
    # Rows that come without a mask are all text.
    if "input_ids" not in values or "attention_mask" in values:
        return values
    return {**values, "attention_mask": torch.ones_like(values["input_ids"])}
