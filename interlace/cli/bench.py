"""`interlace bench`: open-loop load on a running server, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from interlace.cli.options import CallCa, Json, KeyFile, numbers, pairs, positive, read_key
from interlace.cli.screen import FoldingTable, console
from interlace.core.model import SampleValue
from interlace.core.rendering import json_text
from interlace.core.user_errors import InputError
from interlace.load.open_loop import (
    LAG_OF_SLO_MAX,
    ArrivalProcess,
    ModelLoadReport,
    load_test,
    send_times,
)
from interlace.load.v2_client import V2Client, make_call

_FIGURES: Final = (
    "SLO ms",
    "sent/s",
    "good/s",
    "in SLO",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "p99.9 ms",
    "refused",
    "lost",
)


def show(results: Sequence[ModelLoadReport], notes: Sequence[str]) -> None:
    """Print one line per model, then what a reader should know before trusting it."""
    out = console()
    for note in notes:
        out.print(note, soft_wrap=True)
    figures = FoldingTable(("model",), _FIGURES)
    for result in results:
        figures.add_row(*_cells(result))
    out.print(figures)
    for line in [*(line for one in results for line in remarks(one)), *lateness(results)]:
        out.print(line, soft_wrap=True)


def remarks(result: ModelLoadReport) -> list[str]:
    """Refusals by reason, and requests that the generator held back."""
    lines = []
    if result.refused:
        reasons = ", ".join(f"{reason} {count}" for reason, count in result.refused.items())
        lines.append(
            f"{result.model}: refused: {reasons}; told within {_ms(result.refusal_p99_ms)} ms (p99)"
        )
    if result.crowded:
        lines.append(
            f"{result.model}: {result.crowded} requests waited for a connection (counted in their "
            "latency); --connections sets more"
        )
    return lines


def lateness(results: Sequence[ModelLoadReport]) -> list[str]:
    """How far the generator itself was late, and a warning where that spoils the figures."""
    lags = [one.lag_p99_ms for one in results if one.lag_p99_ms is not None]
    if not lags:
        return []
    lines = [f"the load generator itself was late by {max(lags):.2f} ms (p99)"]
    doubtful = ", ".join(one.model for one in results if one.doubtful)
    if doubtful:
        lines.append(
            f"warning: that is over {LAG_OF_SLO_MAX:.0%} of the SLO of {doubtful}: these latencies "
            "say as much of this machine as of the server; lower the rate or free a core"
        )
    return lines


def _cells(result: ModelLoadReport) -> list[str]:
    return [
        result.model,
        "-" if result.slo_ms is None else f"{result.slo_ms:g}",
        f"{result.offered_rps:.1f}",
        f"{result.goodput_rps:.1f}",
        f"{result.attainment:.1%}",
        *(_ms(value) for value in (result.p50_ms, result.p95_ms, result.p99_ms, result.p999_ms)),
        str(sum(result.refused.values())),
        str(result.unanswered),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


_Shapes = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL/INPUT=N,N,...", help="Full shape of an input with free dims."),
]
_Values = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL/INPUT=VALUE",
        help="JSON, or @FILE as under [sample], instead of generated values.",
    ),
]


def bench(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL[=RPS]...", help="Models, with rates or without.")
    ],
    rate: Annotated[float, typer.Option(help="Requests per second of models without one.")] = 50.0,
    seconds: Annotated[float, typer.Option(help="Seconds to send for.")] = 10.0,
    slo_ms: Annotated[
        float | None, typer.Option(help="SLO sent with each request.  [default: the model's]")
    ] = None,
    process: Annotated[
        ArrivalProcess, typer.Option("--arrivals", help="Random or even gaps between requests.")
    ] = ArrivalProcess.POISSON,
    connections: Annotated[int, typer.Option(help="Number of connections.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the send times.")] = 1,
    shape: _Shapes = None,
    value: _Values = None,
    api_key_file: KeyFile = None,
    ca: CallCa = None,
    as_json: Json = False,
) -> None:
    """Send open-loop load to a running server; report goodput, latency, refusals.

    Send times are fixed beforehand and latency counts from them, so a slow server does not slow
    the load. Inputs are generated from the model's metadata. A request is good if it was answered
    within its SLO, and lost if it was never answered.

    \b
    Examples:
      interlace bench http://127.0.0.1:8000 cnn_small --rate 200 --seconds 20
      interlace bench localhost:8000 cnn_small=200 embedder=30 --slo-ms 100
      interlace bench localhost:8000 detector --shape detector/x=1,3,320,320 --json
      interlace bench localhost:8000 crop --value crop/image=@cat.jpg
    """
    counts = {"--rate": rate, "--seconds": seconds, "--connections": connections}
    positive({**counts, "--slo-ms": slo_ms})
    server = V2Client(url, read_key(api_key_file), ca=ca)
    shapes = {key: _sizes(key, text) for key, text in pairs("--shape", shape or []).items()}
    rates = _rates(models, rate)
    values = {key: _value(text) for key, text in pairs("--value", value or []).items()}
    calls = [make_call(server, model, shapes, slo_ms, values) for model in rates]
    seeds = enumerate(rates.values(), seed)
    times_s = [send_times(process, rate_rps, seconds, one) for one, rate_rps in seeds]
    reports = load_test(calls, times_s, connections, seconds)
    if as_json:
        typer.echo(json_text(reports))
    else:
        show(reports, [note for call in calls for note in call.notes])


def _rates(models: Sequence[str], rate_rps: float) -> dict[str, float]:
    with_rate = numbers("rate of", [text for text in models if "=" in text])
    names = (text.partition("=")[0] for text in models)
    return {name: with_rate.get(name, rate_rps) for name in names}


def _value(text: str) -> SampleValue:
    return SampleValue(file=text[1:]) if text.startswith("@") else SampleValue(text)


def _sizes(key: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise InputError(f"--shape {key}={text}: expected sizes such as 1,3,224,224") from None
