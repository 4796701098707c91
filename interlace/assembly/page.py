"""The page of a running server, and of a log or a scenario that a process of its own shows."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlace.control.registry import VersionRegistry
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.user_errors import InputError
from interlace.core.version import __version__
from interlace.engine.snapshot import EngineSnapshot
from interlace.planning.capacity_plan import CapacityPlan
from interlace.planning.scenario import Scenario, read_scenario
from interlace.profiling.store import ProfileStore
from interlace.runtime.event_loop import run_loop
from interlace.runtime.log.codec import open_log
from interlace.runtime.runtime import Runtime
from interlace.server.http.request_head import Origins
from interlace.server.http.routes import Route
from interlace.server.http.server import HttpServer
from interlace.server.page.routes import LiveFrames, PageAnswer, PlanWords, Questions, page_routes

_HOSTS: Final = frozenset({"localhost"})


def live_page(
    runtime: Runtime,
    snapshot: Callable[[bool], EngineSnapshot],
    system: str,
    log: Path | None,
    store: ProfileStore | None,
    registry: VersionRegistry,
) -> list[Route]:
    """The page of a server. It plans for what is served, by the profiles in ``store``."""

    def planned(folder: Path, asked: Mapping[str, tuple[float, float]]) -> list[str]:
        assert store is not None
        gpu = snapshot(False).fleet.gpus[0]
        paths = []
        for name in asked:
            deployed = registry.serving(name)
            if not deployed:
                raise InputError(f"models: {name} is not served")
            paths.append(store.path(deployed[-1], gpu))
        scenario = folder / "scenario.toml"
        scenario.write_text(_scenario(gpu, paths, asked))
        return [str(scenario)]

    about = _about(f"Interlace: {system}", live=True, log=log is not None, plan=store is not None)
    frames = LiveFrames(snapshot, runtime.clock.now_ms, runtime.observe)
    return page_routes(about, frames.latest, Questions(log, planned if store else None))


def fleet_page(status: Callable[[], bytes]) -> list[Route]:
    """The page of a controller; ``status`` is what ``/v2/fleet`` says."""
    about = _about("Interlace: fleet", live=False, log=False, plan=False)
    return page_routes({**about, "fleet": True}, status, Questions(None, None), every_s=1.0)


def show_page(target: Path, port: int, on_ready: Callable[[str], None]) -> None:
    """Show a log, or a scenario, in a browser on this machine until SIGINT or SIGTERM.

    Raises:
        InputError: the file is neither.
        OSError: it cannot be read, or the port cannot be had.
    """
    if target.suffix == ".toml":
        words = [str(target.absolute())]
        _show(_scenario_page(target.name, read_scenario(target), words), port, on_ready)
    else:
        _show(_log_page(target), port, on_ready)


def show_plan(
    found: CapacityPlan, words: Sequence[str], port: int, on_ready: Callable[[str], None]
) -> None:
    """Show a plan in a browser on this machine until SIGINT or SIGTERM.

    ``words`` follow `interlace plan` to ask for it again, with other rates and SLOs.

    Raises:
        OSError: the port cannot be had.
    """
    command = f"interlace {shlex.join(('plan', *words))}"
    answer = PageAnswer(command, 0, msgspec.Raw(found.to_json()), "")
    _show(_scenario_page(Path(words[0]).name, found.scenario, words, answer), port, on_ready)


def _show(routes: Sequence[Route], port: int, on_ready: Callable[[str], None]) -> None:
    async def serve() -> None:
        server, ended = HttpServer(routes, origins=Origins(_HOSTS)), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        bound = await server.listen("127.0.0.1", port)
        on_ready(f"http://127.0.0.1:{bound}/")
        await ended.wait()
        await server.close(1.0)

    run_loop(serve())


def _log_page(log: Path) -> list[Route]:
    try:
        header = open_log(log).header
    except ValueError as error:
        raise InputError(str(error)) from None
    about = _about(f"{log.name}: {header.system}", live=False, log=True, plan=False)
    return page_routes(about, None, Questions(log.absolute(), None))


def _scenario_page(
    title: str, scenario: Scenario, words: Sequence[str], answer: PageAnswer | None = None
) -> list[Route]:
    about = _about(title, live=False, log=False, plan=True)
    about["answer"] = answer
    asked = {one.model: [one.rows_per_s, one.slo_ms] for one in scenario.own}
    asked |= {name: [one.rate_rps, one.slo_ms] for name, one in scenario.apps.items()}
    about["models"] = asked
    about["kinds"] = [kind for kind in GPU_KINDS if _readable(Path(words[0]), kind)]
    return page_routes(about, None, Questions(None, _overriding(words)))


def _readable(path: Path, kind: str) -> bool:
    """Whether the scenario can be read for that kind: it may have no profiles of it."""
    try:
        return bool(read_scenario(path, kind).profiles)
    except InputError:
        return False


def _overriding(words: Sequence[str]) -> PlanWords:
    def planned(folder: Path, asked: Mapping[str, tuple[float, float]]) -> list[str]:
        found = list(words)
        for name, (rate_rps, slo_ms) in asked.items():
            found += ["--rate", f"{name}={rate_rps!r}", "--slo", f"{name}={slo_ms!r}"]
        return found

    return planned


def _about(title: str, *, live: bool, log: bool, plan: bool) -> dict[str, Any]:
    return {"title": title, "version": __version__, "live": live, "log": log, "plan": plan}


def _scenario(gpu: Gpu, profiles: list[Path], asked: Mapping[str, tuple[float, float]]) -> str:
    """A scenario for accelerators like this one. Strings of JSON are strings of TOML."""
    lines = [
        f"profiles = {json.dumps([str(path) for path in dict.fromkeys(profiles)])}",
        "",
        "[gpu]",
        f"kind = {json.dumps(gpu.kind)}",
        f"memory_gb = {gpu.memory_bytes / 1e9!r}",
        f"shares_pct = {list(gpu.shares_pct)}",
        f"units = {gpu.units}",
    ]
    for name, (rate_rps, slo_ms) in asked.items():
        lines += ["", f"[models.{json.dumps(name)}]"]
        lines += [f"rate_rps = {rate_rps!r}", f"slo_ms = {slo_ms!r}"]
    return "\n".join(lines) + "\n"
