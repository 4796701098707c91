"""What the engine reports, awaited: ready or failed, gone, settled, quarantined and back."""

import asyncio

from interlace.control.deployments import StatusFutures
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
