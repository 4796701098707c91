"""Hugging Face folders: ``config.json`` and safetensors, through transformers, offline."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import TensorSpec
from interlace.formats.architecture import architecture
from interlace.formats.opened import ModelCall, OpenedModel
from interlace.formats.pooling import Pooling, read_pooling
from interlace.formats.runner import ModelRunner
from interlace.formats.torch_runner import open_on_cpu
from interlace.formats.torch_sharing import module_tensors
from interlace.formats.trial import DeclaredSignature

EMBEDDING: Final = "sentence_embedding"
#: What a row without them means: all of it is text, and of the first kind.
_DEFAULTS: Final = {"attention_mask": 1, "token_type_ids": 0}
#: Angles of rotary positions, which transformers keeps in FP32 whatever the model's type is.
_FREQUENCIES: Final = ("inv_freq", "original_inv_freq")


def open_runner(model: Model, threads: int, weights_dir: str | None) -> ModelRunner:
    """As ``open_call``, on the CPU."""
    return open_on_cpu(open_call, model, threads, weights_dir)


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
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = json.loads((folder / "config.json").read_text())
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
