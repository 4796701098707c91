"""A complete model, from its draft and from what the model said of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from interlace.core.errors import RepositoryError
from interlace.core.model import STREAM_SLO_MS, Format, Model
from interlace.core.tables import did_you_mean
from interlace.core.tensor import BYTES, Signature, TensorSpec
from interlace.repository.draft import Draft, declared_signature, reshape_of
from interlace.repository.model_config import DATA_TYPES
from interlace.repository.model_settings import DEFAULT_MAX_BATCH, ModelSettings
from interlace.repository.sample_values import check_value
from interlace.repository.sequences import join_tensors


def complete(draft: Draft, described: Signature | None, generation: int) -> Model:
    """Join what the files say with what the model says.

    ``described`` is the opened model's own signature (``max_batch`` 0: no bound), ``None`` if it
    was not opened. The files win where both speak, unless they contradict the model.

    Raises:
        RepositoryError: a contradiction (file, key, found, expected), or a part that neither says.
    """
    said = described or _from_files(draft)
    batched = _is_batched(draft, said)
    own_inputs = _as_batched(draft, said.inputs, said.batched, batched)
    own_inputs += _overridable(draft, said, batched)
    inputs = _join(draft, "input", own_inputs, batched)
    own_outputs = _as_batched(draft, said.outputs, said.batched, batched)
    outputs = _join(draft, "output", own_outputs, batched)
    most, sequences = _max_batch(draft, said) if batched else 1, draft.sequences
    if sequences is not None:
        own = None if draft.format is Format.PYTHON else own_outputs
        tensors = join_tensors(sequences, draft.config, inputs, outputs, own)
        sequences, inputs, outputs = tensors
    signature = Signature(inputs, outputs, batched, most, decoupled=said.decoupled)
    terms = draft.terms
    if said.decoupled and not draft.settings.slo_ms:
        terms = replace(terms, slo_ms=STREAM_SLO_MS)  # its code may be the first to say so
    model = replace(
        draft.provisional(),
        terms=terms,
        signature=signature,
        sample=_sample(draft, inputs),
        generation=generation,
        sequences=sequences,
    )
    return draft.with_config(model)


def _from_files(draft: Draft) -> Signature:
    declared = declared_signature(draft.config, draft.asked_batch)
    for kind, specs in (("input", declared.inputs), ("output", declared.outputs)):
        if not specs or len(specs) != len(draft.config.values.get(kind, ())):
            found = f"no full description of every {kind}"
            raise draft.config.error(kind, found, f"{kind} [ {{ name data_type dims }} ]")
    return declared


def _overridable(draft: Draft, said: Signature, batched: bool) -> tuple[TensorSpec, ...]:
    """Initializers that requests may give: those that the config lists, all if it lists no input.

    Of a model that takes batches they need rows, as every input does.
    """
    given = draft.config.values.get("input", ())
    if not given:
        return () if batched else said.overridable
    found = []
    for place, tensor in enumerate(given):
        spec = next((spec for spec in said.overridable if spec.name == tensor["name"]), None)
        if spec is None:
            continue
        if batched and spec.dims[:1] != (-1,):
            raise draft.config.error(
                f"input[{place}].name",
                f"'{spec.name}', an initializer without rows, of a model that takes batches",
                "max_batch_size: 0, or a config without it",
            )
        own = _without_rows(spec) if batched else spec
        found.append(replace(own, optional=bool(tensor.get("optional"))))
    return tuple(found)


def _is_batched(draft: Draft, said: Signature) -> bool:
    if draft.asked_batch is not None:
        return draft.asked_batch > 0
    overridable = {spec.name for spec in said.overridable}
    if any(tensor["name"] in overridable for tensor in draft.config.values.get("input", ())):
        return False
    # Dims that a config gives with the rows in front mean: no batching, as in Triton.
    for tensor in draft.config.values.get("input", ()):
        spec = next((spec for spec in said.inputs if spec.name == tensor["name"]), None)
        if spec is not None and "dims" in tensor:
            own = tensor["dims"] if (shape := reshape_of(tensor)) is None else shape
            return said.batched and len(own) == len(spec.own.dims)
    return said.batched


def _max_batch(draft: Draft, said: Signature) -> int:
    asked = draft.asked_batch
    if not said.max_batch:
        return asked or DEFAULT_MAX_BATCH
    if asked is not None and asked > said.max_batch:
        raise RepositoryError(
            _batch_key(draft), f"{asked} rows", f"at most {said.max_batch}, which the model allows"
        )
    return asked or min(said.max_batch, DEFAULT_MAX_BATCH)


def _batch_key(draft: Draft) -> str:
    if draft.settings.max_batch is not None:
        return draft.settings.where("max_batch")
    return draft.config.where("max_batch_size")


def _as_batched(
    draft: Draft, specs: Sequence[TensorSpec], said: bool, wanted: bool
) -> tuple[TensorSpec, ...]:
    """The specs with dims that exclude the rows if ``wanted``, and include them if not."""
    if said == wanted:
        return tuple(specs)
    if not wanted:
        return tuple(_with_rows(spec.own) for spec in specs)
    for spec in specs:
        if spec.dims[:1] != (-1,):
            found = f"batching, but '{spec.name}' of the model has shape {list(spec.dims)}"
            expected = "a first dim of -1 in every tensor, or 0 for a model that takes no batches"
            raise RepositoryError(_batch_key(draft), found, expected)
    return tuple(_without_rows(spec) for spec in specs)


def _join(
    draft: Draft, kind: str, said: Sequence[TensorSpec], batched: bool
) -> tuple[TensorSpec, ...]:
    given = draft.config.values.get(kind, [])
    by_name = {spec.name: spec if batched else _scalar_as_one(spec) for spec in said}
    joined: dict[str, TensorSpec] = {}
    for place, tensor in enumerate(given):
        name = tensor["name"]
        path = f"{kind}[{place}]"
        if name in joined:
            raise draft.config.error(f"{path}.name", f"'{name}' again", "each name once")
        if name not in by_name:
            raise draft.config.error(
                f"{path}.name", f"'{name}'", f"an {kind} of the model, {_known(name, by_name)}"
            )
        joined[name] = _merge(draft, tensor, by_name[name], path)
    # A config may leave outputs out; inputs it leaves out are still needed.
    if kind == "output" and joined and any("dims" in tensor for tensor in given):
        return tuple(joined.values())
    return tuple(joined.get(name, spec) for name, spec in by_name.items())


def _merge(draft: Draft, tensor: dict[str, Any], said: TensorSpec, path: str) -> TensorSpec:
    config = draft.config
    type_name = tensor.get("data_type", "TYPE_INVALID")
    if type_name in DATA_TYPES and DATA_TYPES[type_name] != said.datatype:
        expected = next(key for key, value in DATA_TYPES.items() if value == said.datatype)
        raise config.error(f"{path}.data_type", type_name, f"{expected}, as the model has it")
    if tensor.get("optional") and not said.optional:
        raise config.error(f"{path}.optional", "true", "false: the model needs this input")
    if "dims" not in tensor:
        return said
    dims, reshape = tuple(tensor["dims"]), reshape_of(tensor)
    if dims in ((), (1,)) and said.own.dims == () and reshape is None:
        dims, reshape = (1,), ()  # a scalar, as Triton has it
    own = dims if reshape is None else reshape
    fits = len(own) == len(said.own.dims) and all(
        model in (-1, size) for size, model in zip(own, said.own.dims, strict=True)
    )
    if not fits:
        key = f"{path}.{'dims' if reshape is None else 'reshape'}"
        raise config.error(key, f"{list(own)}", f"{list(said.own.dims)}, as the model has it")
    free = [size for size, model in zip(own, said.own.dims, strict=True) if model < 0]
    named = zip(free, said.free_names, strict=False)
    names = tuple(name for size, name in named if size < 0)
    return TensorSpec(said.name, said.datatype, dims, said.optional, reshape, names)


def _scalar_as_one(spec: TensorSpec) -> TensorSpec:
    """A scalar has shape [1] on the wire, as in Triton."""
    if spec.dims:
        return spec
    return TensorSpec(spec.name, spec.datatype, (1,), spec.optional, ())


def _with_rows(spec: TensorSpec) -> TensorSpec:
    names = ("", *spec.free_names) if spec.free_names else ()
    return replace(spec, dims=(-1, *spec.dims), free_names=names)


def _without_rows(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dims=spec.dims[1:], free_names=spec.free_names[1:])


def _sample(draft: Draft, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Per input with free dims their sizes, in order; every free dim gets one."""
    settings = draft.settings
    names = {spec.name: spec for spec in inputs}
    for name in (*settings.sample, *settings.values):
        if name not in names:
            where = settings.where(f"sample.{name}")
            raise RepositoryError(where, f"input '{name}'", _known(name, names))
    _check_values(draft, names)
    sample = {}
    named: dict[str, int] = {}
    # Sizes that are given come first: dims of one name have one size.
    for spec in sorted(inputs, key=lambda spec: spec.name not in draft.sizes):
        free = [place for place, dim in enumerate(spec.dims) if dim < 0]
        given: tuple[int, ...] | None = draft.sizes.get(spec.name)
        value = draft.values.get(spec.name)
        if spec.datatype == BYTES and value is not None and value.dtype == "|u1":
            given = settings.sample.get(spec.name)  # the array is one element
        if given is not None and len(given) == len(spec.dims) + 1 and spec.name in draft.values:
            given = given[1:]  # rows
        if given is not None and len(given) != len(free):
            given = _free_of(given, spec, settings.where(f"sample.{spec.name}"))
        if free:
            names_of = (*spec.free_names, *("",) * len(free))
            sizes = given or tuple(
                named.get(names_of[at], spec.free_dim) for at in range(len(free))
            )
            sample[spec.name] = sizes
            _keep_sizes(named, zip(spec.free_names, sizes, strict=False), spec.name, settings)
    return sample


def _check_values(draft: Draft, inputs: Mapping[str, TensorSpec]) -> None:
    warm = draft.config.values.get("model_warmup", ())
    given = warm[0].get("inputs", {}) if warm else {}
    for name, stated in given.items():
        kind = DATA_TYPES.get(stated.get("data_type", ""))
        path = "model_warmup"
        if name not in inputs:
            raise draft.config.error(path, f"input '{name}'", _known(name, inputs))
        if kind is not None and kind != inputs[name].datatype:
            found, expected = f"'{name}' of {stated['data_type']}", f"TYPE_{inputs[name].datatype}"
            raise draft.config.error(path, found, expected.replace("BYTES", "STRING"))
    for name, value in draft.values.items():
        where = draft.config.where("model_warmup")
        if name in draft.settings.values:
            where = draft.settings.where(f"sample.{name}")
        check_value(value, inputs[name], where)


def _keep_sizes(
    named: dict[str, int],
    sizes: Iterable[tuple[str, int]],
    of: str,
    settings: ModelSettings,
) -> None:
    for name, size in sizes:
        if name and named.setdefault(name, size) != size:
            found = f"{size} for dim '{name}'"
            expected = f"{named[name]}, as another input has it: dims of one name have one size"
            raise RepositoryError(settings.where(f"sample.{of}"), found, expected)


def _free_of(given: tuple[int, ...], spec: TensorSpec, where: str) -> tuple[int, ...]:
    fits = len(given) == len(spec.dims) and all(
        dim in (-1, size) for size, dim in zip(given, spec.dims, strict=True)
    )
    if not fits:
        raise RepositoryError(where, f"{list(given)}", f"sizes that fit dims {list(spec.dims)}")
    return tuple(size for size, dim in zip(given, spec.dims, strict=True) if dim < 0)


def _known(name: str, names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}{did_you_mean(name, names)}"
