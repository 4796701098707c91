"""Every administrative method, once: HTTP's routes and gRPC's methods are made from this table.

A row says what is asked for, which API key that needs, and how it is answered; HTTP finds it by
path, gRPC by name. The request is the same ``msgspec.Struct`` from both, and so is the result, in
the form of Triton's JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.server.administration.answers import AdminAnswers
from interlace.server.api_keys import Access

Asked = TypeVar("Asked")
_RPC: Final = "/inference.GRPCInferenceService/"
_HEALTH: Final = "/grpc.health.v1.Health/"
#: What the health service knows under a name; the empty name is the whole server.
_SERVICE: Final = _RPC.strip("/")
_MODEL: Final = "/v2/models/{name}"
_VERSION: Final = _MODEL + "/versions/{version}"
_SYSTEM: Final = "/v2/systemsharedmemory"
_CUDA: Final = "/v2/cudasharedmemory"


class NoRequest(msgspec.Struct):
    """Nothing in particular."""


class ModelRequest(msgspec.Struct):
    """A model; what is left out means the newest version, or all."""

    name: str = ""
    version: str = ""


class IndexRequest(msgspec.Struct):
    """What is in the repository; with ``ready`` only what answers now."""

    ready: bool = False


class LoadRequest(msgspec.Struct):
    """A model to load or to unload; of the parameters see ``AdminAnswers.load``."""

    model_name: str
    parameters: dict[str, Any] = {}


class RegionRequest(msgspec.Struct):
    """A region of shared memory, or all of them."""

    name: str = ""


class RegisterRequest(msgspec.Struct):
    """``byte_size`` bytes from ``offset`` of the shared-memory object ``key``, under a name."""

    name: str
    key: str
    byte_size: int
    offset: int = 0


class SettingsRequest(msgspec.Struct):
    """Settings to change, of one model or of the server; none, to read them."""

    settings: dict[str, Any] = {}
    model_name: str = ""


class HealthRequest(msgspec.Struct):
    """A service by its gRPC name."""

    service: str = ""


@dataclass(frozen=True, slots=True)
class AdminMethod(Generic[Asked]):
    """One method.

    ``answer`` gives what JSON can hold, ``None`` for an empty reply, or the awaitable of that.
    ``rpc`` is gRPC's path, and ``field`` the field of its reply that takes the result (empty: the
    result is the reply). ``verbs`` and ``paths`` are HTTP's: a segment ``{field}`` of a path is
    that field of the request, the members of the JSON body are the other fields; ``body`` names
    the field that takes the whole body instead.
    """

    request: type[Asked]
    answer: Callable[[AdminAnswers, Asked], object]
    rpc: str = ""
    access: Access = Access.USE
    field: str = ""
    paths: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ("GET",)
    body: str = ""

    def call(self, api: AdminAnswers, fields: Mapping[str, Any]) -> object | Awaitable[object]:
        """Answer a request whose fields came as plain values; unknown ones are ignored.

        Raises:
            ServeError: BAD_INPUT for a field that is missing or of another type; as ``answer``.
        """
        try:
            asked = msgspec.convert(fields, self.request)
        except msgspec.ValidationError as error:
            raise ServeError(Reason.BAD_INPUT, f"failed to parse the request: {error}") from error
        return self.answer(api, asked)


def _check_health(api: AdminAnswers, asked: HealthRequest) -> object:
    if asked.service not in ("", _SERVICE):
        text = f"no service '{asked.service[:128]}': ask for '{_SERVICE}'"
        raise ServeError(Reason.UNKNOWN_MODEL, text)
    return _watch_health(api, asked)


def _watch_health(api: AdminAnswers, asked: HealthRequest) -> object:
    if asked.service not in ("", _SERVICE):
        return {"status": "SERVICE_UNKNOWN"}
    return {"status": "SERVING" if api.ready() else "NOT_SERVING"}


HEALTH_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    AdminMethod(
        NoRequest,
        lambda api, asked: {"name": "interlace", "live": True},
        access=Access.PROBE,
        paths=("/",),
    ),
    AdminMethod(
        NoRequest,
        lambda api, asked: {"live": True},
        _RPC + "ServerLive",
        Access.PROBE,
        paths=("/v2/health/live",),
    ),
    AdminMethod(
        NoRequest,
        lambda api, asked: {"ready": api.ready()},
        _RPC + "ServerReady",
        Access.PROBE,
        paths=("/v2/health/ready",),
    ),
    AdminMethod(
        ModelRequest,
        lambda api, asked: {
            "name": asked.name,
            "ready": api.model_ready(asked.name, asked.version),
        },
        _RPC + "ModelReady",
        Access.PROBE,
        paths=(f"{_MODEL}/ready", f"{_VERSION}/ready"),
    ),
    AdminMethod(HealthRequest, _check_health, _HEALTH + "Check", Access.PROBE),
    AdminMethod(HealthRequest, _watch_health, _HEALTH + "Watch", Access.PROBE),
)

_MODEL_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    AdminMethod(
        NoRequest, lambda api, asked: api.server_metadata(), _RPC + "ServerMetadata", paths=("/v2",)
    ),
    AdminMethod(NoRequest, lambda api, asked: api.models(), paths=("/v2/models",)),
    AdminMethod(NoRequest, lambda api, asked: api.node_state(), paths=("/v2/node/state",)),
    AdminMethod(
        ModelRequest,
        lambda api, asked: api.model_metadata(asked.name, asked.version),
        _RPC + "ModelMetadata",
        paths=(_MODEL, _VERSION),
    ),
    AdminMethod(
        ModelRequest,
        lambda api, asked: api.model_config(asked.name, asked.version),
        _RPC + "ModelConfig",
        field="config",
        paths=(f"{_MODEL}/config", f"{_VERSION}/config"),
    ),
    AdminMethod(
        ModelRequest,
        lambda api, asked: api.statistics(asked.name, asked.version),
        _RPC + "ModelStatistics",
        paths=("/v2/models/stats", f"{_MODEL}/stats", f"{_VERSION}/stats"),
    ),
)


def _repository_paths(end: str) -> tuple[str, ...]:
    """With and without the name of a repository, of which there is one."""
    return f"/v2/repository/{end}", f"/v2/repository/{{repository_name}}/{end}"


_REPOSITORY_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    AdminMethod(
        IndexRequest,
        lambda api, asked: api.index(asked.ready),
        _RPC + "RepositoryIndex",
        field="models",
        paths=_repository_paths("index"),
        verbs=("POST",),
    ),
    AdminMethod(
        LoadRequest,
        lambda api, asked: api.load(asked.model_name, asked.parameters),
        _RPC + "RepositoryModelLoad",
        Access.CHANGE,
        paths=_repository_paths("models/{model_name}/load"),
        verbs=("POST",),
    ),
    AdminMethod(
        LoadRequest,
        lambda api, asked: api.unload(asked.model_name),
        _RPC + "RepositoryModelUnload",
        Access.CHANGE,
        paths=_repository_paths("models/{model_name}/unload"),
        verbs=("POST",),
    ),
)

_MEMORY_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    AdminMethod(
        RegionRequest,
        lambda api, asked: api.system_memory_status(asked.name),
        _RPC + "SystemSharedMemoryStatus",
        field="regions",
        paths=(f"{_SYSTEM}/status", f"{_SYSTEM}/region/{{name}}/status"),
    ),
    AdminMethod(
        RegisterRequest,
        lambda api, asked: api.regions.register(
            asked.name, asked.key, asked.offset, asked.byte_size
        ),
        _RPC + "SystemSharedMemoryRegister",
        Access.CHANGE,
        paths=(f"{_SYSTEM}/region/{{name}}/register",),
        verbs=("POST",),
    ),
    AdminMethod(
        RegionRequest,
        lambda api, asked: api.regions.unregister(asked.name),
        _RPC + "SystemSharedMemoryUnregister",
        Access.CHANGE,
        paths=(f"{_SYSTEM}/unregister", f"{_SYSTEM}/region/{{name}}/unregister"),
        verbs=("POST",),
    ),
    AdminMethod(
        RegionRequest,
        lambda api, asked: api.cuda_memory_status(asked.name),
        _RPC + "CudaSharedMemoryStatus",
        field="regions",
        paths=(f"{_CUDA}/status", f"{_CUDA}/region/{{name}}/status"),
    ),
    AdminMethod(
        RegionRequest,
        lambda api, asked: api.cuda_memory_register(asked.name),
        _RPC + "CudaSharedMemoryRegister",
        paths=(f"{_CUDA}/region/{{name}}/register",),
        verbs=("POST",),
    ),
    AdminMethod(
        RegionRequest,
        lambda api, asked: None,
        _RPC + "CudaSharedMemoryUnregister",
        paths=(f"{_CUDA}/unregister", f"{_CUDA}/region/{{name}}/unregister"),
        verbs=("POST",),
    ),
)

_SETTINGS_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    AdminMethod(
        SettingsRequest,
        lambda api, asked: api.trace_settings(asked.settings, asked.model_name),
        _RPC + "TraceSetting",
        field="settings",
        paths=(
            "/v2/trace/setting",
            "/v2/models/{model_name}/trace/setting",
            "/v2/models/{model_name}/versions/{version}/trace/setting",
        ),
        verbs=("GET", "POST"),
        body="settings",
    ),
    AdminMethod(
        SettingsRequest,
        lambda api, asked: api.log_settings(asked.settings),
        _RPC + "LogSettings",
        field="settings",
        paths=("/v2/logging",),
        verbs=("GET", "POST"),
        body="settings",
    ),
)

METHODS: Final = (
    *HEALTH_METHODS,
    *_MODEL_METHODS,
    *_REPOSITORY_METHODS,
    *_MEMORY_METHODS,
    *_SETTINGS_METHODS,
)
