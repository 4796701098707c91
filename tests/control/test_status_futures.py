"""What the engine reports, awaited: ready or failed, gone, settled, quarantined and back."""

import asyncio
from types import SimpleNamespace
from typing import Any

from interlace.control.deployments import StatusFutures
from interlace.control.lifecycle import ModelLifecycle
from interlace.control.registry import VersionEntry, VersionRegistry, VersionState
from interlace.core.messages import ReportSettled, ReportStatus
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature
from interlace.server.model_table import ModelTable, ServedModel

MODEL = Model("a", 1, Format.ONNX, "", "", Signature((), (), False, 1), ServiceTerms(slo_ms=10.0))


class Heard:
    """Status futures, and what is seen of the one model that serves."""

    def __init__(self) -> None:
        self.registry, table = VersionRegistry(), ModelTable()
        self.registry.put(VersionEntry("a", "1", VersionState.READY, model=MODEL))
        self.served = ServedModel(MODEL)
        table.publish(self.served)
        self.statuses = StatusFutures(self.registry, table)

    def seen(self) -> tuple[VersionState, str, bool]:
        entry = self.registry.by_key(MODEL.key)
        assert entry is not None
        return entry.state, entry.reason, self.served.ready


async def test_a_deployment_is_ready_or_failed_once_and_quarantined_after_that() -> None:
    heard = Heard()
    report = heard.statuses.report
    ready, failed = heard.statuses.expect_ready("a/1#0"), heard.statuses.expect_ready("b/1#0")
    report(ReportStatus("a/1#0", "ready"))
    report(ReportStatus("b/1#0", "failed", "no place"))
    assert (await ready, await failed) == (None, "no place")
    assert heard.seen() == (VersionState.READY, "", True)
    report(ReportStatus("a/1#0", "failed", "it crashed"))
    assert heard.seen() == (VersionState.UNAVAILABLE, "it crashed", False)
    report(ReportStatus("a/1#0", "ready"))
    assert heard.seen() == (VersionState.READY, "", True)
    gone = heard.statuses.expect_gone("a/1#0")
    report(ReportStatus("a/1#0", "gone"))
    await gone


async def test_settled_is_waited_for_without_polling() -> None:
    statuses = Heard().statuses
    assert await statuses.settled(1.0), "nothing is planned yet"
    statuses.report(ReportSettled(False))
    assert not await statuses.settled(0.01)
    waiting = asyncio.ensure_future(statuses.settled(10.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    statuses.report(ReportSettled(True))
    assert await waiting


async def test_a_model_that_asks_does_not_wait_for_the_memory_of_what_leaves() -> None:
    """Its own batch may be what is waited for; clients hear of the end of it."""
    heard, gone = Heard(), asyncio.get_running_loop().create_future()
    dropped: list[list[str]] = []
    uploads: Any = SimpleNamespace(drop_unused=lambda name, used: dropped.append(used))
    ensembles: Any = SimpleNamespace(follow=lambda: None)
    deployments: Any = SimpleNamespace(take_down=lambda model: gone)
    unused: Any = None
    control = ModelLifecycle(unused, deployments, unused, heard.registry, ensembles, uploads)
    client = asyncio.ensure_future(control.unload("a"))
    await asyncio.wait_for(control.unload("a", caller="b"), 5.0)
    assert not client.done()
    (entry,) = heard.registry.all()
    assert (entry.state, entry.model) == (VersionState.UNLOADING, None)
    assert dropped[-1] == [MODEL.path], "it may still read its files"
    gone.set_result(None)
    await asyncio.wait_for(client, 5.0)
    (entry,) = heard.registry.all()
    assert (entry.state, dropped[-1]) == (VersionState.UNAVAILABLE, [])
