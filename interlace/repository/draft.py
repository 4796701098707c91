"""A model as its files describe it, and what of Triton's settings is not supported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from interlace.core.errors import RepositoryError
from interlace.core.model import STREAM_SLO_MS, Format, Model, Precision, SampleValue, ServiceTerms
from interlace.core.sequence import ControlInput, SequenceTerms
from interlace.core.tensor import Signature, TensorSpec
from interlace.repository.config_json import config_json
from interlace.repository.digest import Digests
from interlace.repository.environment import environment_of, stamp
from interlace.repository.folder import (
    check_config_name,
    check_name,
    find_model,
    is_ensemble,
    leads_out,
    read_config,
    read_text,
)
from interlace.repository.model_config import DATA_TYPES, ModelConfig, parse_json
from interlace.repository.model_settings import (
    DEFAULT_QUEUE_LIMIT,
    DEFAULT_SLO_MS,
    MAX_BATCH_LIMIT,
    ModelSettings,
    read_settings,
)
from interlace.repository.sample_values import given_values, warmup_values
from interlace.repository.sequences import iterative_controls, read_sequences

_LIMIT_BYTES: Final = 4 << 20
_TRANSACTIONS: Final = "model_transaction_policy"


def read_labels(folder: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Labels by output name; a file lies in the model folder, next to ``config.pbtxt``.

    A trailing newline ends the last label; spaces are part of one.

    Raises:
        RepositoryError: the file is missing, too large, not UTF-8, or outside the folder.
    """
    labels = {}
    for place, output in enumerate(config.values.get("output", [])):
        name = output.get("label_filename", "")
        if name:
            labels[output["name"]] = _read(folder, name, config, f"output[{place}].label_filename")
    return labels


def _read(folder: Path, name: str, config: ModelConfig, key: str) -> tuple[str, ...]:
    if leads_out(name):
        raise config.error(key, f"'{name}'", "a file in the model's own folder")
    file = folder / name
    try:
        text = read_text(file, _LIMIT_BYTES)
    except RepositoryError as error:
        found = f"{file} ({error.found})"
        raise config.error(key, found, "a file with one label a line") from error
    return tuple(text.removesuffix("\n").split("\n"))


#: Settings of Triton's scheduler that have no meaning here: the planner decides.
_PASSED_OVER: Final = {
    "instance_group": "the planner decides where and how often a model runs",
    "optimization": "formats are run with their own optimisations",
    "response_cache": "replies are not cached",
    "cc_model_filenames": "there is one file a model",
    "metric_tags": "metrics carry model and version only",
    "model_metrics": "metrics have buckets of their own",
}
#: What is not supported, and what to do instead.
_REFUSED: Final = {
    "batch_input": ("ragged batches", "a model without"),
    "batch_output": ("ragged batches", "a model without"),
    "model_repository_agents": ("repository agents", "a model without"),
}
_RAGGED: Final = "allow_ragged_batch"
_TENSOR_REFUSED: Final = (_RAGGED, "is_shape_tensor", "is_non_linear_format_io")


def check_supported(config: ModelConfig) -> None:
    """Refuse what would change a model's meaning and is not done here.

    Raises:
        RepositoryError: the key, and that it is not supported.
    """
    values = config.values
    for key, (what, instead) in _REFUSED.items():
        if values.get(key):
            raise config.error(key, f"{what}, which are not supported", instead)
    if values.get("model_operations", {}).get("op_library_filename"):
        raise config.error(
            "model_operations", "libraries", "none: custom operations are not loaded"
        )
    for kind in ("input", "output"):
        for place, tensor in enumerate(values.get(kind, [])):
            _check_tensor(config, tensor, f"{kind}[{place}]")


def _check_tensor(config: ModelConfig, tensor: dict[str, Any], path: str) -> None:
    if not tensor.get("name"):
        raise config.error(path, "no name", 'name: "..."')
    for key in _TENSOR_REFUSED:
        if tensor.get(key) and not (key == _RAGGED and _takes_ragged(config)):
            raise config.error(f"{path}.{key}", "true", "false: not supported")
    shape = reshape_of(tensor)
    if shape is not None and _between_free_dims(shape) != _between_free_dims(tensor["dims"]):
        expected = f"as many elements as dims {tensor['dims']}, free dims (-1) in the same order"
        raise config.error(f"{path}.reshape", str(list(shape)), expected)


def _takes_ragged(config: ModelConfig) -> bool:
    """True for models that get requests as they are, so that the flag changes nothing."""
    return config.values.get("backend") == "python" or is_ensemble(config)


def reshape_of(tensor: dict[str, Any]) -> tuple[int, ...] | None:
    """The model's own dims of a tensor of a config, where they are not what clients send."""
    if "reshape" not in tensor or "dims" not in tensor:
        return None
    shape: list[int] = tensor["reshape"].get("shape", [])
    return None if shape == tensor["dims"] else tuple(shape)


def _between_free_dims(dims: Sequence[int]) -> list[int]:
    """How many elements lie before, between and after the free dims."""
    counts = [1]
    for dim in dims:
        if dim < 0:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


_QUEUE_PASSED_OVER: Final = {
    "preferred_batch_size": "batches follow from the SLO and the profile",
    "max_queue_delay_microseconds": "batches follow from the SLO and the profile",
    "preserve_ordering": "requests are answered as they end",
    "priority_levels": "priorities need no number of levels",
    "priority_queue_policy": "all priorities of a model share one queue",
    "default_queue_policy.timeout_action": "requests that expire are always refused",
    "default_queue_policy.allow_timeout_override": "requests may always have a shorter timeout",
}


def ignored_settings(config: ModelConfig) -> Iterator[str]:
    """One line for each setting that is read and has no effect."""
    for key, why in _PASSED_OVER.items():
        if config.values.get(key):
            yield f"{config.where(key)} has no effect: {why}"
    for place, tensor in enumerate(config.values.get("input", [])):
        if tensor.get(_RAGGED):
            key = config.where(f"input[{place}].{_RAGGED}")
            yield f"{key} has no effect: the requests of a batch have equal shapes"
    batching = config.values.get("dynamic_batching", {})
    policy = batching.get("default_queue_policy", {})
    written = batching | {f"default_queue_policy.{key}": value for key, value in policy.items()}
    for key, why in _QUEUE_PASSED_OVER.items():
        if written.get(key):
            yield f"{config.where(f'dynamic_batching.{key}')} has no effect: {why}"
    for strategy in ("direct", "oldest"):
        path = f"sequence_batching.{strategy}"
        for key, value in config.values.get("sequence_batching", {}).get(strategy, {}).items():
            if value and key != "max_candidate_sequences":
                why = "batches follow from the SLO and the profile"
                yield f"{config.where(f'{path}.{key}')} has no effect: {why}"
    key = "default_queue_policy.default_timeout_microseconds"
    if written.get(key):
        slo = f"slo_ms = {written[key] / 1000:g} in interlace.toml"
        yield f"{config.where(f'dynamic_batching.{key}')} has no effect: say {slo} instead"


def _missing_versions(folder: Path, config: ModelConfig) -> Iterator[str]:
    wanted = config.values.get("version_policy", {}).get("specific", {}).get("versions", [])
    for version in sorted(set(wanted)):
        if not (folder / str(version)).is_dir():
            where = config.where("version_policy.specific.versions")
            yield f"{where}: version {version} has no folder, and is not served"


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything the files of one version say.

    ``notes`` are settings that have no effect, for the operator to read.
    """

    name: str
    version: int
    format: Format
    path: str
    digest: str
    config: ModelConfig
    settings: ModelSettings
    terms: ServiceTerms
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    values: Mapping[str, SampleValue] = field(default_factory=dict)
    file: str = ""
    environment: str = ""  #: of a Python backend model, its archive or folder
    sequences: SequenceTerms | None = None
    controls: tuple[ControlInput, ...] = ()

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of sample inputs: those of ``[sample]``, else those of their values."""
        of_values = {name: value.shape for name, value in self.values.items() if value.shape}
        return {**of_values, **self.settings.sample}

    def provisional(self) -> Model:
        """A model to open once, so that it can describe itself.

        Its signature is what ``config.pbtxt`` says in full, perhaps nothing; generation -1.
        """
        model = Model(
            name=self.name,
            version=self.version,
            format=self.format,
            path=self.path,
            digest=self.digest,
            signature=declared_signature(self.config, self.asked_batch),
            terms=self.terms,
            sample=self.sizes,
            values=self.values,
            labels=self.labels,
            file=self.file,
            environment=self.environment,
            sequences=self.sequences,
            controls=self.controls,
            generation=-1,
        )
        return self.with_config(model)

    def with_config(self, model: Model) -> Model:
        """The same model with its ModelConfig, which the Python backend hands to the model."""
        if self.format is not Format.PYTHON:
            return model
        rendered = config_json(model, self.config)
        if model.generation < 0 and _TRANSACTIONS not in self.config.values:
            del rendered[_TRANSACTIONS]  # the model may set it
        return replace(model, config_json=json.dumps(rendered))

    @property
    def asked_batch(self) -> int | None:
        """The largest batch that the files ask for: 0 for none, ``None`` if they say nothing."""
        if self.settings.max_batch is not None:
            return self.settings.max_batch
        asked: int | None = self.config.values.get("max_batch_size")
        return asked


def read(
    root: Path,
    name: str,
    version: int,
    config_json: str | None = None,
    digests: Digests | None = None,
) -> Draft:
    """Read the folder of one version of one model.

    ``config_json`` stands in for ``config.pbtxt``. ``digests`` remembers what was hashed before.

    Raises:
        RepositoryError: file, key, what was found, what was expected.
    """
    check_name(name)
    folder = root / name
    path = folder / str(version)
    config = read_config(folder) if config_json is None else parse_json(config_json)
    if not path.is_dir() and not is_ensemble(config):
        raise RepositoryError(str(path), "no such folder", f"version {version} of '{name}'")
    check_config_name(config, name)
    check_supported(config)
    settings = read_settings(folder, config)
    format, file = find_model(path, config)
    _check_python(format, config, settings)
    environment = environment_of(config, folder) if format is Format.PYTHON else ""
    return Draft(
        name=name,
        version=version,
        format=format,
        file=file,
        sequences=read_sequences(config, folder, format),
        controls=iterative_controls(config),
        path=str(path.absolute()),
        digest=_digest(
            _files_digest(path, config, digests or Digests()),
            settings,
            _extra(format, file, config, settings) + stamp(environment),
        ),
        config=config,
        settings=settings,
        terms=_terms(settings, config),
        labels=read_labels(folder, config),
        notes=(*ignored_settings(config), *_missing_versions(folder, config)),
        values={**warmup_values(folder, config), **given_values(folder, settings)},
        environment=environment,
    )


def declared_signature(config: ModelConfig, asked_batch: int | None) -> Signature:
    """The tensors that a config describes in full; ``max_batch`` 0 if it says nothing of batches.

    Raises:
        RepositoryError: a batch or a dim that cannot be.
    """
    if asked_batch is not None and not 0 <= asked_batch <= MAX_BATCH_LIMIT:
        raise config.error("max_batch_size", str(asked_batch), f"0 to {MAX_BATCH_LIMIT}")
    most = 1 if asked_batch == 0 else asked_batch or 0
    inputs, outputs = _declared(config, "input"), _declared(config, "output")
    return Signature(inputs, outputs, bool(asked_batch), most, decoupled=is_decoupled(config))


def is_decoupled(config: ModelConfig) -> bool:
    """Whether a config says that the model sends any number of responses to a request."""
    return bool(config.values.get(_TRANSACTIONS, {}).get("decoupled"))


def _declared(config: ModelConfig, kind: str) -> tuple[TensorSpec, ...]:
    specs = []
    for place, tensor in enumerate(config.values.get(kind, [])):
        for dim in tensor.get("dims", []):
            if dim < -1 or dim == 0:
                raise config.error(f"{kind}[{place}].dims", str(dim), "-1 or a size above 0")
        if tensor.get("data_type") in DATA_TYPES and "dims" in tensor:
            datatype = DATA_TYPES[tensor["data_type"]]
            dims = tuple(tensor["dims"])
            optional = tensor.get("optional", False)
            specs.append(TensorSpec(tensor["name"], datatype, dims, optional, reshape_of(tensor)))
    return tuple(specs)


def _files_digest(path: Path, config: ModelConfig, digests: Digests) -> str:
    """Of what is computed: the files of a version; of an ensemble, its config."""
    if not is_ensemble(config):
        return digests.of(path)
    return hashlib.sha256(repr(config.values).encode()).hexdigest()


def _check_python(format: Format, config: ModelConfig, settings: ModelSettings) -> None:
    """Refuse what concerns the Python backend and cannot be done.

    Raises:
        RepositoryError: the key, and what to do instead.
    """
    if settings.batching.stack and format is not Format.PYTHON:
        where, expected = settings.where("batching.stack"), "a TritonPythonModel"
        raise RepositoryError(where, f"true, for a model of {format.value}", expected)
    if is_decoupled(config) and format is not Format.PYTHON:
        found = f"true, for a model of {format.value}"
        raise config.error("model_transaction_policy.decoupled", found, "a TritonPythonModel")
    if is_decoupled(config) and settings.batching.stack:
        where, found = settings.where("batching.stack"), "true, for a decoupled model"
        raise RepositoryError(where, found, "false: it responds to each request on its own")


def _extra(format: Format, file: str, config: ModelConfig, settings: ModelSettings) -> str:
    """What besides files and precision decides what a model computes."""
    if format is not Format.PYTHON:
        return file
    return f"{file} {config.values} {settings.batching.stack}"


def _digest(files: str, settings: ModelSettings, extra: str) -> str:
    """The files' digest, or another where settings choose what of them is computed, and how."""
    precision = settings.precision or Precision.FP32
    if precision is Precision.FP32 and not settings.compiled and not extra:
        return files
    text = f"{files} {precision.value} {bool(settings.compiled)} {extra}".rstrip()
    return hashlib.sha256(text.encode()).hexdigest()


def _terms(settings: ModelSettings, config: ModelConfig) -> ServiceTerms:
    batching = config.values.get("dynamic_batching", {})
    queue_size = batching.get("default_queue_policy", {}).get("max_queue_size", 0)
    level = batching.get("default_priority_level", 0)
    limit_bytes = settings.memory_limit_bytes
    memory = settings.memory
    return ServiceTerms(
        slo_ms=settings.slo_ms or (STREAM_SLO_MS if is_decoupled(config) else DEFAULT_SLO_MS),
        slo_assumed=not settings.slo_ms,
        priority=level if settings.priority is None else settings.priority,
        memory_limit_bytes=None if limit_bytes is None else int(limit_bytes),  # plain, for msgspec
        rate_rps=settings.rate_rps,
        queue_limit=settings.queue_limit or queue_size or DEFAULT_QUEUE_LIMIT,
        precision=settings.precision or Precision.FP32,
        compiled=bool(settings.compiled),
        resident=memory.resident,
        keep_s=memory.keep_s,
        most_weights_bytes=None if memory.max_mb is None else int(1e6 * memory.max_mb),
        stacked=settings.batching.stack,
        first_response_ms=settings.stream.first_response_ms,
        gap_ms=settings.stream.gap_ms,
    )
