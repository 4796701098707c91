"""What the engine reports, awaited: ready or failed, gone, settled, quarantined and back."""

import asyncio

from interlace.control.status_futures import StatusFutures
from interlace.core.messages import ReportSettled, ReportStatus


class Heard:
    """Status futures, and the quarantines that nobody waited for."""

    def __init__(self) -> None:
        self.quarantined: list[tuple[str, str]] = []
        self.recovered: list[str] = []
        self.statuses = StatusFutures(
            lambda key, reason: self.quarantined.append((key, reason)), self.recovered.append
        )


def test_a_deployment_is_ready_or_failed_once_and_quarantined_after_that() -> None:
    async def play() -> None:
        heard = Heard()
        report = heard.statuses.report
        ready, failed = heard.statuses.expect_ready("a/1#0"), heard.statuses.expect_ready("b/1#0")
        report(ReportStatus("a/1#0", "ready"))
        report(ReportStatus("b/1#0", "failed", "no place"))
        assert (await ready, await failed) == (None, "no place")
        assert heard.quarantined == []
        report(ReportStatus("a/1#0", "failed", "it crashed"))
        report(ReportStatus("a/1#0", "ready"))
        assert (heard.quarantined, heard.recovered) == ([("a/1#0", "it crashed")], ["a/1#0"])
        gone = heard.statuses.expect_gone("a/1#0")
        report(ReportStatus("a/1#0", "gone"))
        await gone

    asyncio.run(play())


def test_settled_is_waited_for_without_polling() -> None:
    async def play() -> None:
        statuses = Heard().statuses
        assert await statuses.settled(1.0), "nothing is planned yet"
        statuses.report(ReportSettled(False))
        assert not await statuses.settled(0.01)
        waiting = asyncio.ensure_future(statuses.settled(10.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        statuses.report(ReportSettled(True))
        assert await waiting

    asyncio.run(play())
