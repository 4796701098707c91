"""`interlace bench`: open-loop load on a running server, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from interlace.cli.bench_table import show
from interlace.cli.options import Json, KeyFile, numbers, pairs, positive, read_key
from interlace.core.json_text import json_text
from interlace.core.user_errors import UserError
from interlace.load.inference_body import make_call
from interlace.load.load_test import load_test
from interlace.load.send_times import ArrivalProcess, send_times
from interlace.load.v2_client import V2Client


def bench(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL[=RPS]...", help="Models, each with its own rate.")
    ],
    rate: Annotated[float, typer.Option(help="Requests per second for models without one.")] = 50.0,
    seconds: Annotated[float, typer.Option(help="How long to send.")] = 10.0,
    slo_ms: Annotated[
        float | None, typer.Option(help="SLO sent with each request; else the server's own.")
    ] = None,
    process: Annotated[
        ArrivalProcess, typer.Option("--arrivals", help="Independent callers, or a metronome.")
    ] = ArrivalProcess.POISSON,
    connections: Annotated[int, typer.Option(help="Connections to spread requests over.")] = 64,
    seed: Annotated[int, typer.Option(help="Same seed, same send times.")] = 1,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL/INPUT=N,N,...", help="Full shape of an input with free dims."),
    ] = None,
    api_key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Send open-loop load to a running server; report goodput, latency, refusals.

    Requests leave at times fixed beforehand, whatever became of the earlier ones, and latency
    counts from those times: a slow server cannot slow the clock that it is measured by. Inputs
    are made up from the model's metadata. A request is good if it was answered within its SLO,
    lost if it never was answered.

    \b
    Examples:
      interlace bench http://127.0.0.1:8000 cnn_small --rate 200 --seconds 20
      interlace bench localhost:8000 cnn_small=200 embedder=30 --slo-ms 100
      interlace bench localhost:8000 detector --shape detector/x=1,3,320,320 --json
    """
    positive({"--rate": rate, "--seconds": seconds, "--connections": connections})
    positive({"--slo-ms": slo_ms})
    server = V2Client(url, read_key(api_key_file))
    shapes = {key: _sizes(key, text) for key, text in pairs("--shape", shape or []).items()}
    rates = _rates(models, rate)
    calls = [make_call(server, model, shapes, slo_ms) for model in rates]
    times_s = [
        send_times(process, rate_rps, seconds, seed + index)
        for index, rate_rps in enumerate(rates.values())
    ]
    reports = load_test(calls, times_s, connections, seconds)
    if as_json:
        typer.echo(json_text(reports))
    else:
        show(reports, [note for call in calls for note in call.notes])


def _rates(models: Sequence[str], rate_rps: float) -> dict[str, float]:
    with_rate = numbers("rate of", [text for text in models if "=" in text])
    names = (text.partition("=")[0] for text in models)
    return {name: with_rate.get(name, rate_rps) for name in names}


def _sizes(key: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise UserError(f"--shape {key}={text}: expected sizes such as 1,3,224,224") from None
