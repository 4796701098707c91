"""`interlace top`: a live table of a running server."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from interlace.cli.metrics_text import Scrape, read_metrics
from interlace.cli.options import KeyFile, positive, read_key
from interlace.cli.screen import console
from interlace.cli.top_frame import ScrapeDelta, render
from interlace.core.user_errors import UserError
from interlace.load.v2_client import V2Client


def top(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option(help="Seconds between frames.")] = 1.0,
    window: Annotated[float, typer.Option(help="Seconds that rates and latencies cover.")] = 10.0,
    api_key_file: KeyFile = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, of one interval, and end.")
    ] = False,
) -> None:
    """Watch a running server: goodput, latency, refusals and shares per model.

    Reads the server's metrics page, so it costs the server next to nothing. "in SLO" counts
    accepted requests; what was refused on arrival is in its own column.

    \b
    Examples:
      interlace top
      interlace top http://127.0.0.1:8000 --interval 2 --window 60
      interlace top --once
    """
    positive({"--interval": interval, "--window": window})
    watch = _Watch(V2Client(url, read_key(api_key_file)), window)
    watch.look()
    out = console()
    if once:
        time.sleep(interval)
        out.print(watch.look())
        return
    with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
        while True:
            time.sleep(interval)
            live.update(watch.look(), refresh=True)


class _Watch:
    """Readings of the last ``window`` seconds."""

    def __init__(self, server: V2Client, window_s: float) -> None:
        self._server = server
        self._window_s = window_s
        self._readings: deque[tuple[float, Scrape]] = deque()

    def look(self) -> Group:
        """Read the metrics again; a frame of what happened since the oldest reading kept."""
        scrape, now_s = read_metrics(self._server.text("/metrics")), time.monotonic()
        if not scrape.samples:
            raise UserError(f"{self._server.url}/metrics is not a page of metrics")
        self._readings.append((now_s, scrape))
        while len(self._readings) > 2 and now_s - self._readings[1][0] >= self._window_s:
            self._readings.popleft()
        then_s, before = self._readings[0]
        return render(ScrapeDelta(before, scrape, max(now_s - then_s, 1e-3)), self._server.url)
