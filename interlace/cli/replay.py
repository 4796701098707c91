"""`interlace replay`: what a server decided, decided again and told in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from interlace.cli.options import Json, positive
from interlace.cli.replaying.story import story
from interlace.cli.replaying.summary import Summary, opened, record, summary
from interlace.cli.replaying.summary import history as history_of
from interlace.cli.replaying.trace import write_trace
from interlace.cli.replaying.what_if import logged_traffic
from interlace.cli.replaying.what_if import what_if as whatif_rows
from interlace.cli.screen import FoldingTable, console
from interlace.core.deployment_key import model_name
from interlace.core.rendering import json_text
from interlace.core.request import Reply
from interlace.core.tables import counted
from interlace.core.user_errors import InputError, UserError
from interlace.runtime.log.replay import Replay
from interlace.sim.report import report

_Log = Annotated[
    Path, typer.Argument(metavar="LOG", help="Written by serve --log or simulate --log.")
]
_Missed = Annotated[
    int | None, typer.Option(metavar="N", help="Explain the N-th missed request, from 1.")
]
_Request = Annotated[
    int | None, typer.Option("--request", metavar="ID", help="Explain this request.")
]
_Model = Annotated[
    str | None, typer.Option(help="With --missed: only this model, or one load of it.")
]
_System = Annotated[
    str | None, typer.Option(help="Allow the log's system if it is a module:attribute.")
]
_WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHANGES",
        help="Simulate the same requests with system=NAME, rates=X, slos=X, gpus=N or gpus=-1; "
        "several with commas.",
    ),
]
_Last = Annotated[float, typer.Option(help="With --what-if and --trace: seconds at the log's end.")]
_Until = Annotated[
    float,
    typer.Option(help="With --trace: end at this time, in seconds.", show_default="the log's end"),
]
_Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a trace for Perfetto (Chrome trace JSON)."),
]
_History = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Print about N states of the log and its missed requests, as JSON."
    ),
]
_Report = Annotated[bool, typer.Option("--report", help="Report on the whole log.")]


def replay(
    log: _Log,
    missed: _Missed = None,
    request_id: _Request = None,
    model: _Model = None,
    full_report: _Report = False,
    what_if: _WhatIf = None,
    last_s: _Last = 600.0,
    history: _History = None,
    trace: _Trace = None,
    until_s: _Until = inf,
    system: _System = None,
    as_json: Json = False,
) -> None:
    """Replay a server's event log, and explain any request.

    The log holds every event that the server received. The engine is a function of events and
    times, so the same decisions follow. Exit code 1: a decision differs.

    \b
    Examples:
      interlace replay events.log
      interlace replay events.log --missed 1
      interlace replay events.log --missed 3 --model resnet/1#0
      interlace replay events.log --request 1742
      interlace replay events.log --report --json
      interlace replay events.log --trace trace.json --last-s 60
      interlace replay events.log --what-if system=gpulet --what-if gpus=-1,rates=0.8
    """
    again = opened(log, system)
    if history is not None:
        typer.echo(msgspec.json.encode(history_of(again, max(1, history))))
    elif trace is not None:
        _write_trace(again, trace, last_s, until_s)
    elif what_if:
        _show_what_if(again, what_if, last_s, as_json)
    elif request_id is not None:
        _tell(again, request_id)
    else:
        _summarise(again, missed, model, full_report, as_json)


def _summarise(
    again: Replay, missed: int | None, model: str | None, full_report: bool, as_json: bool
) -> None:
    log = again.log.path
    found = summary(again)
    if missed is not None:
        _tell(again, _chosen(found, missed, model, log).request.id)
    elif full_report or as_json:
        typer.echo(json_text(report(record(found, again))))
    else:
        _show(found, again)
    if found.differs_ms is not None:
        raise UserError(
            f"{log}: from {found.differs_ms:.1f} ms on this version decides otherwise than the "
            "one that wrote the log"
        )


def _write_trace(again: Replay, file: Path, last_s: float, until_s: float) -> None:
    positive({"--last-s": last_s})
    events = write_trace(again, file, last_s, until_s)
    typer.echo(f"{file}: {counted(events, 'event')}; open it at https://ui.perfetto.dev")


def _show_what_if(again: Replay, changes: Sequence[str], last_s: float, as_json: bool) -> None:
    positive({"--last-s": last_s})
    rows = whatif_rows(logged_traffic(again.log, again.system, last_s), changes)
    if as_json:
        typer.echo(json_text(rows))
        return
    made = FoldingTable(
        ["what if"],
        ["GPUs", "requests", "good/s", "bound", "regret %", "in time %", "p99 ms", "worst %"],
    )
    for row in rows:
        p99, bound = ("-" if one is None else f"{one:.1f}" for one in (row.p99_ms, row.bound_rps))
        regret = "-" if row.regret is None else f"{row.regret:.2%}"[:-1]
        made.add_row(
            row.name, str(row.gpus), str(row.requests), f"{row.goodput_rps:.1f}", bound, regret,
            f"{row.in_time:.2%}"[:-1], p99, f"{row.worst_in_time:.2%}"[:-1],
        )  # fmt: skip
    console().print(made)


def _tell(again: Replay, request_id: int) -> None:
    for sentence in story(again, request_id):
        typer.echo(sentence)


def _chosen(found: Summary, number: int, model: str | None, log: Path) -> Reply:
    of_model = [
        one
        for one in found.missed
        if model in (None, one.request.model, model_name(one.request.model))
    ]
    if not 1 <= number <= len(of_model):
        whose = f" of {model}" if model else ""
        count = counted(len(of_model), "missed request")
        raise InputError(f"{log}: --missed {number}: the log has {count}{whose}")
    return of_model[number - 1]


def _show(found: Summary, again: Replay) -> None:
    header = again.log.header
    seconds = (found.last_ms - found.first_ms) / 1000.0
    typer.echo(
        f"{found.events} events in {seconds:.1f} s, decided by {header.system}; "
        f"{found.requests} requests"
    )
    if header.lost_events:
        typer.echo(
            f"before it {header.lost_events} events, from {header.lost_from_ms:.1f} ms on, "
            f"could not be written"
        )
    elif header.checkpoint:
        typer.echo(f"it goes on from {found.first_ms:.1f} ms, where the log before it ends")
    if again.log.cut_bytes:
        typer.echo(f"its last entry is not whole: {again.log.cut_bytes} bytes are passed over")
    typer.echo(", ".join(f"{count} {name}" for name, count in found.outcomes.most_common()))
    if found.differs_ms is None:
        typer.echo("the replay gives the same commands at every event")
    for number, reply in enumerate(found.missed[:10], 1):
        one = reply.request
        stage = f" ({one.part.stage} of request {one.part.request})" if one.part else ""
        typer.echo(
            f"missed {number}: request {one.id} of {one.model}{stage} at {one.arrived_ms:.1f} ms: "
            f"{reply.outcome.value}"
        )
    if len(found.missed) > 10:
        typer.echo(f"and {len(found.missed) - 10} more; --missed N tells the story of one")
