"""`interlace page`: a log or a scenario in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlace.assembly.page import show_page

_Target = Annotated[
    Path, typer.Argument(metavar="LOG|SCENARIO.toml", help="A log of serve --log, or a scenario.")
]
_Port = Annotated[int, typer.Option(help="Local port; 0: a free one.")]


def page(target: _Target, port: _Port = 8003) -> None:
    """Show a log or a scenario in the browser, until Ctrl-C.

    A log: move through time, see why a request was late, and simulate another system, one GPU
    fewer, other rates or SLOs. A scenario: edit rates and SLOs and see the fewest GPUs. A running
    server shows the same, live, at / of its metrics port.

    \b
    Examples:
      interlace page events.log
      interlace page examples/planning/nine.toml --port 0
    """
    show_page(target, port, lambda url: typer.echo(f"open {url}; Ctrl-C ends"))
