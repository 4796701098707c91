"""Every administrative method, once: HTTP's routes and gRPC's methods are made from this table.

A row says what is asked for, which API key that needs, and how it is answered; HTTP finds it by
path, gRPC by name. The request is the same ``msgspec.Struct`` from both, and so is the result, in
the form of Triton's JSON.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.server.api_keys import Access
from interlace.server.errors import InternalErrors


class AdminAnswers(Protocol):
    """One answer a method, as plain values in the form of Triton's JSON, or an awaitable of that.

    Each may raise ``ServeError``. An empty version is the newest one, an empty name all of them.
    What is left out here is not for a router, which has no models of its own.
    """

    def ready(self) -> bool:
        """Whether load balancers should send requests here."""

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether that model answers; false for an unknown one."""

    def server_metadata(self) -> object: ...
    def models(self) -> object: ...
    def model_metadata(self, name: str, version: str = "") -> object: ...
    def model_config(self, name: str, version: str = "") -> object: ...
    def statistics(self, name: str = "", version: str = "") -> object: ...
    def index(self, ready_only: bool = False) -> object: ...
    def load(self, name: str, parameters: Mapping[str, object] | None = None) -> object:
        """Load or reload a model.

        ``parameters`` may hold ``config`` (JSON of ModelConfig) and ``file:PATH`` (bytes, or
        base64 text).
        """
        raise _not_here("loading a model", "put it into the fleet's folder of models")

    def unload(self, name: str) -> object:
        """Take a model out of service once its queued requests are answered."""
        raise _not_here("unloading a model", "take it out of the fleet's folder of models")

    def node_state(self) -> object:
        """The node's state, for routers and controllers."""
        raise _not_here("the state of a node", "ask the node itself")

    def system_memory_status(self, region: str = "") -> object:
        return []

    def system_memory_register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        raise _not_here("shared memory", "send tensors in the request")

    def system_memory_unregister(self, region: str = "") -> object:
        """Forget one region, or all for an empty name. Unknown names pass."""
        return None

    def cuda_memory_status(self, region: str = "") -> object:
        return []

    def cuda_memory_register(self, region: str) -> None:
        raise _not_here("CUDA shared memory", "send tensors in the request")

    def trace_settings(self, asked: Mapping[str, object] | None = None, model: str = "") -> object:
        """Trace settings, after a request for change if there is one."""
        raise _not_here("tracing", "ask a node")

    def log_settings(self, asked: Mapping[str, object] | None = None) -> object:
        """Log settings, after a request for change if there is one."""
        raise _not_here("logging", "ask a node")


def _not_here(what: str, instead: str) -> ServeError:
    return ServeError(Reason.UNSUPPORTED, f"{what} is not for a router: {instead}")


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
    the field that takes the whole body instead. ``about`` says what is answered, where ``rpc`` does
    not.
    """

    request: type[Asked]
    answer: Callable[[AdminAnswers, Asked], object]
    rpc: str = ""
    access: Access = Access.USE
    field: str = ""
    paths: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ("GET",)
    body: str = ""
    about: str = ""

    @property
    def title(self) -> str:
        """What is answered, in words."""
        words = re.findall("[A-Z][a-z]+", self.rpc.rpartition("/")[2])
        return self.about or " ".join(words).capitalize()

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


def _get(
    request: type[Asked],
    answer: Callable[[AdminAnswers, Asked], object],
    rpc: str,
    *paths: str,
    access: Access = Access.USE,
    field: str = "",
    about: str = "",
) -> AdminMethod[Any]:
    rpc = rpc and _RPC + rpc
    return AdminMethod(request, answer, rpc, access, field, paths, about=about)


def _post(
    request: type[Asked],
    answer: Callable[[AdminAnswers, Asked], object],
    rpc: str,
    *paths: str,
    access: Access = Access.CHANGE,
    field: str = "",
) -> AdminMethod[Any]:
    return AdminMethod(request, answer, _RPC + rpc, access, field, paths, ("POST",))


def _settings(
    answer: Callable[[AdminAnswers, SettingsRequest], object], rpc: str, *paths: str
) -> AdminMethod[Any]:
    verbs, field = ("GET", "POST"), "settings"
    return AdminMethod(SettingsRequest, answer, _RPC + rpc, Access.USE, field, paths, verbs, field)


def _model_ready(api: AdminAnswers, asked: ModelRequest) -> object:
    return {"name": asked.name, "ready": api.model_ready(asked.name, asked.version)}


def _register(api: AdminAnswers, asked: RegisterRequest) -> None:
    api.system_memory_register(asked.name, asked.key, asked.offset, asked.byte_size)


_probe = partial(_get, access=Access.PROBE)

HEALTH_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    _probe(
        NoRequest,
        lambda api, asked: {"name": "interlace", "live": True},
        "",
        "/",
        about="That this is Interlace",
    ),
    _probe(NoRequest, lambda api, asked: {"live": True}, "ServerLive", "/v2/health/live"),
    _probe(NoRequest, lambda api, asked: {"ready": api.ready()}, "ServerReady", "/v2/health/ready"),
    _probe(ModelRequest, _model_ready, "ModelReady", f"{_MODEL}/ready", f"{_VERSION}/ready"),
    AdminMethod(HealthRequest, _check_health, _HEALTH + "Check", Access.PROBE),
    AdminMethod(HealthRequest, _watch_health, _HEALTH + "Watch", Access.PROBE),
)

_MODEL_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    _get(NoRequest, lambda api, asked: api.server_metadata(), "ServerMetadata", "/v2"),
    _get(NoRequest, lambda api, asked: api.models(), "", "/v2/models", about="Models served"),
    _get(
        NoRequest, lambda api, asked: api.node_state(), "", "/v2/node/state",
        about="State of this node, for routers and controllers",
    ),
    _get(
        ModelRequest, lambda api, asked: api.model_metadata(asked.name, asked.version),
        "ModelMetadata", _MODEL, _VERSION,
    ),
    _get(
        ModelRequest, lambda api, asked: api.model_config(asked.name, asked.version),
        "ModelConfig", f"{_MODEL}/config", f"{_VERSION}/config", field="config",
    ),
    _get(
        ModelRequest, lambda api, asked: api.statistics(asked.name, asked.version),
        "ModelStatistics", "/v2/models/stats", f"{_MODEL}/stats", f"{_VERSION}/stats",
    ),
)  # fmt: skip


def _repository_paths(end: str) -> tuple[str, ...]:
    """Paths with and without the name of a repository; there is one repository."""
    return f"/v2/repository/{end}", f"/v2/repository/{{repository_name}}/{end}"


_REPOSITORY_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    _post(
        IndexRequest, lambda api, asked: api.index(asked.ready),
        "RepositoryIndex", *_repository_paths("index"), access=Access.USE, field="models",
    ),
    _post(
        LoadRequest, lambda api, asked: api.load(asked.model_name, asked.parameters),
        "RepositoryModelLoad", *_repository_paths("models/{model_name}/load"),
    ),
    _post(
        LoadRequest, lambda api, asked: api.unload(asked.model_name),
        "RepositoryModelUnload", *_repository_paths("models/{model_name}/unload"),
    ),
)  # fmt: skip

_MEMORY_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    _get(
        RegionRequest, lambda api, asked: api.system_memory_status(asked.name),
        "SystemSharedMemoryStatus", f"{_SYSTEM}/status", f"{_SYSTEM}/region/{{name}}/status",
        field="regions",
    ),
    _post(
        RegisterRequest, _register,
        "SystemSharedMemoryRegister", f"{_SYSTEM}/region/{{name}}/register",
    ),
    _post(
        RegionRequest, lambda api, asked: api.system_memory_unregister(asked.name),
        "SystemSharedMemoryUnregister",
        f"{_SYSTEM}/unregister", f"{_SYSTEM}/region/{{name}}/unregister",
    ),
    _get(
        RegionRequest, lambda api, asked: api.cuda_memory_status(asked.name),
        "CudaSharedMemoryStatus", f"{_CUDA}/status", f"{_CUDA}/region/{{name}}/status",
        field="regions",
    ),
    _post(
        RegionRequest, lambda api, asked: api.cuda_memory_register(asked.name),
        "CudaSharedMemoryRegister", f"{_CUDA}/region/{{name}}/register", access=Access.USE,
    ),
    _post(
        RegionRequest, lambda api, asked: None,
        "CudaSharedMemoryUnregister",
        f"{_CUDA}/unregister", f"{_CUDA}/region/{{name}}/unregister", access=Access.USE,
    ),
)  # fmt: skip

_SETTINGS_METHODS: Final[tuple[AdminMethod[Any], ...]] = (
    _settings(
        lambda api, asked: api.trace_settings(asked.settings, asked.model_name), "TraceSetting",
        "/v2/trace/setting", "/v2/models/{model_name}/trace/setting",
        "/v2/models/{model_name}/versions/{version}/trace/setting",
    ),
    _settings(lambda api, asked: api.log_settings(asked.settings), "LogSettings", "/v2/logging"),
)  # fmt: skip

METHODS: Final = (
    *HEALTH_METHODS,
    *_MODEL_METHODS,
    *_REPOSITORY_METHODS,
    *_MEMORY_METHODS,
    *_SETTINGS_METHODS,
)


class AnswerTasks:
    """Answers administrative requests, at once or from a task.

    A client that leaves does not stop what it asked for.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Future[None]] = set()
        self._errors = InternalErrors()

    def run(
        self,
        what: str,
        ask: Callable[[], Any],
        reply: Callable[[Any], None],
        fail: Callable[[ServeError], None],
    ) -> None:
        """Call ``reply`` with what ``ask`` gives, or with what it gives to be awaited.

        ``fail`` gets why there is none; ``what`` is for the log.
        """
        try:
            answer = ask()
            if not isawaitable(answer):
                reply(answer)
                return
        except Exception as error:
            fail(self._errors.refusal(error, what))
            return
        task = asyncio.ensure_future(self._finish(what, answer, reply, fail))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _finish(
        self,
        what: str,
        answer: Awaitable[Any],
        reply: Callable[[Any], None],
        fail: Callable[[ServeError], None],
    ) -> None:
        try:
            reply(await answer)
        except Exception as error:
            fail(self._errors.refusal(error, what))
