"""Everything a client may ask besides inference, without a transport, in Triton's field names."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Final, Protocol

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.tensor import TensorSpec
from interlace.core.version import __version__
from interlace.runtime.clock import Clock
from interlace.server.administration.methods import AdminAnswers
from interlace.server.dataplane.plane import DataPlane
from interlace.server.model_table import ModelTable, ServedModel
from interlace.server.shared_memory import Regions
from interlace.server.statistics import model_statistics


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of one model in the repository: READY, LOADING, UNLOADING or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str = ""


class ModelControl(Protocol):
    """Load, unload and list; the rest of the server only ever reads the model table."""

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]: ...
    async def load(
        self,
        name: str,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        caller: str = "",
    ) -> None:
        """Load or reload a model and return when it serves.

        ``config`` overrides ``config.pbtxt`` (JSON of ModelConfig). ``files`` maps paths such as
        ``1/model.onnx`` to contents, and stands in for the model's folder until the next load. It
        needs a ``config``. ``caller`` is the model whose code asks for it; empty for a client.

        Raises:
            ServeError: what failed, as the repository or the device reports it; or models would
                load each other in a circle.
        """

    async def unload(self, name: str, caller: str = "") -> None:
        """Take a model out of service: queued requests are answered first. Unknown names pass.

        Raises:
            ServeError: it waits for its ``caller``, the model whose code asks for it.
        """

    def ready(self) -> bool:
        """True once every model that can be served at start is, and until draining."""


#: Tracing is off: values as Triton spells them, all strings.
TRACE: Final[Mapping[str, object]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}

LOGGING: Final[Mapping[str, object]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def changed(kind: str, now: Mapping[str, object], asked: Mapping[str, object]) -> dict[str, object]:
    """The settings after a request for change: the same, as long as nothing else was asked for.

    ``None`` clears a setting to its default, which it already has.

    Raises:
        ServeError: BAD_INPUT for an unknown setting, UNSUPPORTED for another value.
    """
    for name, value in asked.items():
        if name not in now:
            known = ", ".join(now)
            raise bad_input(f"unknown {kind} setting '{name}'; settings: {known}")
        if value is not None and value != now[name] and [value] != now[name]:
            raise ServeError(
                Reason.UNSUPPORTED,
                f"{kind} setting '{name}' is {now[name]!r} and cannot be changed to {value!r} "
                f"while the server runs",
            )
    return dict(now)


EXTENSIONS: Final = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "sequence",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)

#: Bytes that a deployment key holds in memory; ``None`` where unknown.
Resident = Callable[[str], int | None]
#: "resident", "loading" or "cold" by deployment key, where weights are swapped.
WeightsStates = Callable[[], Mapping[str, str]]


@dataclass
class AdminApi(AdminAnswers):
    """Metadata, statistics, repository, shared memory and settings of one server.

    Every method that takes a model or region raises ``ServeError`` if there is none.
    """

    _plane: DataPlane
    _table: ModelTable
    _control: ModelControl
    clock: InitVar[Clock]
    _regions: Regions
    _resident_bytes: Resident = lambda key: None
    _weights_states: WeightsStates = lambda: {}
    _node_state: Callable[[], object] = dict
    #: Whether the code of a deployment has it ready.
    _code_ready: Callable[[str], bool] = lambda key: True

    def __post_init__(self, clock: Clock) -> None:
        self._wall_offset_ms = time.time() * 1000.0 - clock.now_ms()

    # ------------------------------------------------------------------------------ health

    def ready(self) -> bool:
        return self._plane.accepting and self._control.ready()

    def model_ready(self, name: str, version: str = "") -> bool:
        try:
            served = self._table.resolve(name, version)
        except ServeError:
            return False
        return served.ready and self._plane.accepting and self._code_ready(served.key)

    # ---------------------------------------------------------------------------- metadata

    def server_metadata(self) -> dict[str, object]:
        return {"name": "interlace", "version": __version__, "extensions": list(EXTENSIONS)}

    def models(self) -> dict[str, object]:
        """Names of the served models, as KServe's list route gives them."""
        return {"models": sorted({served.model.name for served in self._table.all()})}

    def model_metadata(self, name: str, version: str = "") -> dict[str, object]:
        served = self._table.resolve(name, version)
        return model_metadata(served, self._table.versions(name))

    def model_config(self, name: str, version: str = "") -> dict[str, object]:
        """Triton's ModelConfig as JSON."""
        return dict(self._table.resolve(name, version).config)

    def statistics(self, name: str = "", version: str = "") -> dict[str, object]:
        """Statistics of one version, of all versions of a name, or of everything."""
        chosen = [s for s in self._table.all() if _matches(s, name, version)]
        if name and not chosen:
            which = f" version {version}" if version else ""
            raise bad_input(f"requested model '{name[:128]}'{which} is not available")
        entries = [
            model_statistics(served, self._wall_offset_ms, self._resident_bytes(served.key))
            for served in chosen
        ]
        return {"model_stats": entries}

    # -------------------------------------------------------------------------- repository

    def index(self, ready_only: bool = False) -> list[dict[str, object]]:
        """Every version of every model in the repository, with its state.

        With swapped weights, the reason of a ready version says whether its weights are loaded.
        """
        states = self._weights_states()
        weights = {
            (one.model.name, str(one.model.version)): f"weights: {states[one.key]}"
            for one in self._table.all()
            if one.key in states
        }
        return [
            {
                "name": entry.name,
                "version": entry.version,
                "state": entry.state,
                **({"reason": reason} if reason else {}),
            }
            for entry in self._control.index(ready_only)
            for reason in (entry.reason or weights.get((entry.name, entry.version)),)
        ]

    async def load(
        self, name: str, parameters: Mapping[str, object] | None = None, caller: str = ""
    ) -> None:
        config: str | None = None
        files: dict[str, bytes] = {}
        for key, value in (parameters or {}).items():
            if key == "config":
                config = _text(key, value)
            elif key.startswith("file:"):
                decode = partial(_contents, key, value)  # of many megabytes, perhaps
                path = key.removeprefix("file:").removeprefix("/")  # Triton takes both
                files[path] = await asyncio.to_thread(decode)
            else:
                raise bad_input(f"load takes the parameters 'config' and 'file:PATH', not '{key}'")
        await self._control.load(name, config, files or None, caller)

    def node_state(self) -> object:
        return self._node_state()

    async def unload(self, name: str, caller: str = "") -> None:
        await self._control.unload(name, caller)

    # ----------------------------------------------------------------------- shared memory

    def system_memory_status(self, region: str = "") -> list[dict[str, object]]:
        return [each.shown for each in self._regions.status(region)]

    def system_memory_register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self._regions.register(name, key, offset, byte_size)

    def system_memory_unregister(self, region: str = "") -> None:
        self._regions.unregister(region)

    def cuda_memory_status(self, region: str = "") -> list[dict[str, object]]:
        """No CUDA region can be registered, so there is none to report."""
        if region:
            raise bad_input(f"Unable to find cuda shared memory region: '{region}'")
        return []

    def cuda_memory_register(self, region: str) -> None:
        """Refuse: this server does not take CUDA shared memory."""
        raise ServeError(
            Reason.UNSUPPORTED,
            f"failed to register CUDA shared memory region '{region}': not supported here; send "
            f"tensors in the request or through system shared memory",
        )

    # ---------------------------------------------------------------------------- settings

    def trace_settings(
        self, asked: Mapping[str, object] | None = None, model: str = ""
    ) -> dict[str, object]:
        if model:
            self._table.resolve(model)
        return changed("trace", TRACE, asked or {})

    def log_settings(self, asked: Mapping[str, object] | None = None) -> dict[str, object]:
        return changed("log", LOGGING, asked or {})


def _matches(served: ServedModel, name: str, version: str) -> bool:
    model = served.model
    return (not name or model.name == name) and (not version or str(model.version) == version)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise bad_input(f"parameter '{key}' of load must be a string, got {type(value).__name__}")
    return value


def _contents(key: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(_text(key, value), validate=True)
    except binascii.Error as error:
        raise bad_input(f"parameter '{key}' of load is not base64: {error}") from error


def model_metadata(served: ServedModel, versions: list[str]) -> dict[str, object]:
    """Name, versions, platform, and tensors with the batch dimension in front as -1."""
    model = served.model
    batched = model.signature.batched
    return {
        "name": model.name,
        "versions": versions,
        "platform": served.config.get("platform", ""),
        "inputs": _tensors(model.signature.inputs, batched),
        "outputs": _tensors(model.signature.outputs, batched),
    }


def _tensors(specs: Iterable[TensorSpec], batched: bool) -> list[dict[str, object]]:
    return [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": [-1, *spec.dims] if batched else list(spec.dims),
        }
        for spec in specs
    ]
