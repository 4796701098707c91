"""Administrative gRPC methods on top of ``AdminApi``: plain dicts in, plain dicts out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from interlace.core.errors import Reason, ServeError
from interlace.server.administration.api import AdminApi

#: A request as the gRPC process read it: fields by name, parameters as plain values.
Body = Mapping[str, Any]
Result = dict[str, object]
Method = Callable[[Body], Result | Awaitable[Result]]
#: The service whose health is the server's, besides the empty name.
_SERVICE: Final = "inference.GRPCInferenceService"
_HEALTH: Final = "grpc.health.v1.Health"


class AdminDoor:
    """Methods by their full name. Results are in protobuf's JSON form of the response message."""

    def __init__(self, admin: AdminApi) -> None:
        self._admin = admin
        methods: dict[str, Method] = {
            "ServerLive": lambda body: {"live": True},
            "ServerReady": lambda body: {"ready": admin.ready()},
            "ModelReady": lambda body: {"ready": admin.model_ready(*_model(body))},
            "ServerMetadata": lambda body: admin.server_metadata(),
            "ModelMetadata": lambda body: admin.model_metadata(*_model(body)),
            "ModelConfig": lambda body: {"config": admin.model_config(*_model(body))},
            "ModelStatistics": lambda body: admin.statistics(*_model(body)),
            "RepositoryIndex": lambda body: {"models": admin.index(body["ready"])},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": self._system_status,
            "SystemSharedMemoryRegister": self._system_register,
            "SystemSharedMemoryUnregister": self._system_unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": lambda body: {},
            "TraceSetting": self._trace,
            "LogSettings": self._log,
        }
        self._methods = {f"{_SERVICE}.{name}": method for name, method in methods.items()}
        self._methods[f"{_HEALTH}.Check"] = self._check
        self._methods[f"{_HEALTH}.Watch"] = self._watch

    @property
    def methods(self) -> frozenset[str]:
        """Full names of what can be asked."""
        return frozenset(self._methods)

    def answer(self, method: str, body: Body) -> Result | Awaitable[Result]:
        """The result, or what will be it.

        Raises:
            ServeError: refused, and why.
        """
        found = self._methods.get(method)
        if found is None:
            raise ServeError(Reason.UNSUPPORTED, f"unknown method {method}")
        return found(body)

    async def _load(self, body: Body) -> Result:
        await self._admin.load(body["model_name"], body["parameters"])
        return {}

    async def _unload(self, body: Body) -> Result:
        await self._admin.unload(body["model_name"])
        return {}

    def _system_status(self, body: Body) -> Result:
        return {"regions": _by_name(self._admin.system_memory_status(body["name"]))}

    def _system_register(self, body: Body) -> Result:
        regions = self._admin.regions
        regions.register(body["name"], body["key"], body["offset"], body["byte_size"])
        return {}

    def _system_unregister(self, body: Body) -> Result:
        self._admin.regions.unregister(body["name"])
        return {}

    def _cuda_status(self, body: Body) -> Result:
        return {"regions": _by_name(self._admin.cuda_memory_status(body["name"]))}

    def _cuda_register(self, body: Body) -> Result:
        self._admin.cuda_memory_register(body["name"])
        return {}

    def _trace(self, body: Body) -> Result:
        asked = {name: _chosen(each["value"]) for name, each in body["settings"].items()}
        settings = self._admin.trace_settings(asked, body["model_name"])
        return {"settings": {name: {"value": _listed(value)} for name, value in settings.items()}}

    def _log(self, body: Body) -> Result:
        settings = self._admin.log_settings(body["settings"])
        return {"settings": {name: {_kind(value): value} for name, value in settings.items()}}

    def _check(self, body: Body) -> Result:
        if body["service"] not in ("", _SERVICE):
            name = body["service"]
            raise ServeError(Reason.UNKNOWN_MODEL, f"no service '{name}': ask for '{_SERVICE}'")
        return self._watch(body)

    def _watch(self, body: Body) -> Result:
        if body["service"] not in ("", _SERVICE):
            return {"status": "SERVICE_UNKNOWN"}
        return {"status": "SERVING" if self._admin.ready() else "NOT_SERVING"}


def _model(body: Body) -> tuple[str, str]:
    return body["name"], body["version"]


def _by_name(regions: list[dict[str, object]]) -> dict[str, object]:
    return {str(region["name"]): region for region in regions}


def _chosen(values: list[str]) -> object:
    """A trace setting as asked for: no value clears it."""
    return None if not values else values[0] if len(values) == 1 else values


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool_param"
    return "uint32_param" if isinstance(value, int) else "string_param"
