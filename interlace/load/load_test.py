"""A load test of a running server: open-loop calls to several models, a report of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.user_errors import UserError
from interlace.load.inference_body import LoadCall
from interlace.load.open_loop import OpenLoop, merged
from interlace.load.result import ModelLoadReport, report

#: How long answers are waited for after the last send.
_DRAIN_S: Final = 10.0


def load_test(
    calls: Sequence[LoadCall],
    times_s: Sequence[Sequence[float]],
    connections: int,
    seconds: float,
) -> list[ModelLoadReport]:
    """Send each call at its own times (ascending, seconds from the start); a report a call.

    What is unanswered 10 s after the last send stays so. Rates in the reports are over ``seconds``.

    Raises:
        UserError: the server does not take connections, or is gone before the end.
    """
    encoded = [call.encoded for call in calls]
    try:
        loop = OpenLoop(encoded, merged(times_s), connections, connections, end_with_server=True)
        samples = loop.run(_DRAIN_S).samples
    except OSError as error:
        server = f"http://{encoded[0].host}:{encoded[0].port}"
        raise UserError(f"{server}: gone, or takes no connections ({error})") from None
    return [
        report(call.model, call.slo_ms, [one for one in samples if one.tag == tag], seconds)
        for tag, call in enumerate(calls)
    ]
