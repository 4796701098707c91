"""A model as the repository describes it, and which models may run code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import RepositoryError
from interlace.core.sequence import ControlInput, SequenceTerms
from interlace.core.tensor import Signature

#: The promise for a decoupled model whose operator states none: until the last of its responses.
STREAM_SLO_MS: Final = 60_000.0
#: Of files that are a model by themselves.
MODEL_SUFFIXES: Final = (".onnx", ".pt2", ".pt")


class Format(Enum):
    """Model formats, by what lies in the version folder."""

    ONNX = "onnx"  #: model.onnx
    TORCHSCRIPT = "torchscript"  #: model.pt
    EXPORTED = "exported"  #: model.pt2 (torch.export)
    HUGGINGFACE = "huggingface"  #: config.json and model.safetensors
    FACTORY = "factory"  #: model.py with ``create_model() -> nn.Module``
    TENSORRT = "tensorrt"  #: model.plan, on GPUs alone
    PYTHON = "python"  #: model.py with ``class TritonPythonModel``
    ENSEMBLE = "ensemble"  #: an app: config.pbtxt alone, which names other models
    PROFILE = "profile"  #: profile.csv: what a model takes, without the model; simulated alone

    @property
    def hears_clients(self) -> bool:
        """Whether its code, or that of members, reads what clients say besides tensors."""
        return self in (Format.PYTHON, Format.ENSEMBLE)


#: The file of a model in its version folder, unless ``default_model_filename`` says another.
MODEL_FILES: Final[Mapping[Format, str]] = {
    Format.ONNX: "model.onnx",
    Format.TORCHSCRIPT: "model.pt",
    Format.EXPORTED: "model.pt2",
    Format.FACTORY: "model.py",
    Format.PYTHON: "model.py",
    Format.TENSORRT: "model.plan",
}


class Precision(Enum):
    """What a GPU computes a model's FP32 in. Inputs and outputs keep their datatypes."""

    FP32 = "fp32"  #: as the model came
    FP16 = "fp16"
    BF16 = "bf16"
    AUTO = "auto"  #: the fastest of them whose results are close to FP32's


@dataclass(frozen=True, slots=True)
class ServiceTerms:
    """What the operator promises and allows for one model.

    ``precision`` and ``compiled`` (by ``torch.compile``) say how a GPU executes it. Where weights
    are swapped, those of a ``resident`` model stay, and others' stay for ``keep_s`` after a batch.
    At most ``most_weights_bytes`` of them are ever loaded; the rest is read in place. ``stacked``
    hands a Python backend model one request for a whole batch. ``first_response_ms`` and ``gap_ms``
    are promised for the responses of a decoupled model, beside ``slo_ms`` for the last.
    ``slo_assumed`` if nobody set ``slo_ms``.
    """

    slo_ms: float
    priority: int = 0
    memory_limit_bytes: int | None = None
    rate_rps: float | None = None  #: expected requests per second, where the operator knows it
    queue_limit: int = 4096
    precision: Precision = Precision.FP32
    compiled: bool = False
    resident: bool = False
    keep_s: float = 0.0
    most_weights_bytes: int | None = None
    stacked: bool = False
    first_response_ms: float | None = None
    gap_ms: float | None = None
    slo_assumed: bool = False


class Description(msgspec.Struct, frozen=True):
    """What a model said when it was opened; ``architecture`` as ``Model`` has it."""

    signature: Signature
    architecture: str = ""


class SampleValue(msgspec.Struct, frozen=True):
    """The value of one input that profiling, warm-up and trials use: JSON text, a file, or zeros.

    ``shape`` is empty where only the file tells it; ``stamp`` changes with the file, whose NumPy
    ``dtype`` is empty if it is not NumPy's.
    """

    text: str = ""
    file: str = ""  #: .npz (by the input's name), .npy, or bytes in the v2 binary form
    shape: tuple[int, ...] = ()
    stamp: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """One version of one model.

    ``path`` is the version folder; ``file`` is the model's file in it, if its name is not the usual
    one. ``digest`` covers every file that changes what the model computes. ``sample`` gives sizes
    for dims that are -1, per input, used to profile and warm up. ``values`` are their contents
    where the operator gives them.
    Models of one ``architecture`` differ in their weights alone; empty if that is not known.
    ``config_json`` is the ModelConfig of a Python backend model as JSON; empty for other formats.
    ``environment`` is the packed environment that it names, and, once opened, its folder.
    A model with ``sequences`` has inputs and outputs that its clients do not see.
    """

    name: str
    version: int
    format: Format
    path: str
    digest: str
    signature: Signature
    terms: ServiceTerms
    sample: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generation: int = 0
    architecture: str = ""
    values: Mapping[str, SampleValue] = field(default_factory=dict)
    file: str = ""
    config_json: str = ""
    environment: str = ""
    sequences: SequenceTerms | None = None
    controls: tuple[ControlInput, ...] = ()  #: inputs of code that reschedules its requests

    @property
    def for_clients(self) -> Model:
        """The model with the inputs that clients give and the outputs that they get."""
        if self.sequences is None:
            return self
        hidden = {spec.name for spec in (*self.sequences.inputs, *self.sequences.outputs)}
        inputs = tuple(spec for spec in self.signature.inputs if spec.name not in hidden)
        outputs = tuple(spec for spec in self.signature.outputs if spec.name not in hidden)
        return replace(self, signature=replace(self.signature, inputs=inputs, outputs=outputs))

    @property
    def limit_ms(self) -> float:
        """How long a request may take: its SLO, or longer in code for which nobody set one.

        What it takes depends on the request there, and a trial does not show it.
        """
        patient = self.terms.slo_assumed and self.format is Format.PYTHON
        return max(self.terms.slo_ms, STREAM_SLO_MS) if patient else self.terms.slo_ms

    @property
    def source(self) -> Path:
        """The model's file; the version folder for formats of several files."""
        return Path(self.path, self.file or MODEL_FILES.get(self.format, ""))

    @property
    def key(self) -> str:
        """The deployment key as text: unique per (name, version, load)."""
        return str(DeploymentKey(self.name, self.version, self.generation))


#: Formats whose files are programs: opening or running one does what its author wants. torch
#: evaluates expressions of a ``.pt2`` as Python, and TorchScript reads and writes files. A plan is
#: machine code of a GPU. All other formats, and all configs, are data.
CODE_FORMATS: Final = frozenset(
    {Format.FACTORY, Format.PYTHON, Format.TORCHSCRIPT, Format.EXPORTED, Format.TENSORRT}
)
#: How the names of their files end.
CODE_SUFFIXES: Final = tuple(Path(MODEL_FILES[form]).suffix for form in CODE_FORMATS)


@dataclass(frozen=True, slots=True)
class TrustedModels:
    """The models that may be code: those named, or ``everyone``."""

    names: frozenset[str] = frozenset()
    everyone: bool = False

    @classmethod
    def of(cls, text: str) -> TrustedModels:
        """Read ``all``, ``none``, or names of models, with commas between them.

        Names beside ``all`` are those whose code clients may send with a load.
        """
        names = frozenset(name for part in text.split(",") if (name := part.strip()))
        return cls(names - {"all", "none"}, "all" in names)

    def check(self, name: str, form: Format, path: str, sent: bool = False) -> None:
        """Refuse a model that is code and is not trusted; one that was ``sent``, by its name.

        Raises:
            RepositoryError: which file, and how the operator allows it.
        """
        everyone = ["all"] if self.everyone else []
        if form in CODE_FORMATS and name not in self.names and (sent or not everyone):
            wanted = ",".join([*everyone, *sorted(self.names), name])
            raise RepositoryError(
                path,
                f"{MODEL_FILES[form]} ({form.value}), which is code, "
                f"in a model that is not trusted",
                f"ONNX or safetensors; or --trust-models {wanted} if you trust its author",
            )
