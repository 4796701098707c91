"""Options, checks and small syntaxes that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Final

import typer

from interlace.cli.screen import LogLevel
from interlace.core.tables import parse_bytes
from interlace.core.user_errors import InputError
from interlace.policy.catalog import CATALOG
from interlace.server.api_keys import ApiKeys

#: The exit status of a plan that leaves demand unserved or breaks a promise.
NOT_KEPT: Final = 3

Root = Annotated[Path, typer.Argument(metavar="MODELS_DIR", help="The model repository.")]
Cores = Annotated[str | None, typer.Option(help="Cores to use, such as 0-3,6.  [default: all]")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="CPU cores, or a GPU partitioned by green contexts, by MPS or not at all (streams). "
        "auto: a GPU if there is one.",
        metavar="auto|cpu|green|mps|streams",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        envvar="CUDA_VISIBLE_DEVICES",
        help="GPUs to use: numbers, GPU-... or MIG-... ids.",
        metavar="0,1",
    ),
]
Profiles = Annotated[
    Path | None,
    typer.Option(help="Folder of stored profiles.  [default: ~/.cache/interlace/profiles]"),
]
Measured = Annotated[
    list[Path] | None,
    typer.Option(metavar="CSV", help="Models: measured points that correct estimates."),
]
FollowedPlan = Annotated[
    Path | None, typer.Option("--plan", help="Follow this plan (interlace plan --save).")
]
WeightsMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory for weights that are swapped, such as 2GB."),
]
ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO.toml", help="Models, rates, SLOs and a kind of GPU.")
]
SystemName = Annotated[
    str,
    typer.Option(
        help=f"Planner and scheduler: {', '.join(CATALOG)}; or your own, as module:attribute."
    ),
]
Price = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND=USD", help="Price of one accelerator of a kind per hour."),
]

Otlp = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Send spans of requests to this OpenTelemetry collector (OTLP over HTTP).",
    ),
]
KeyFile = Annotated[Path | None, typer.Option(help="File with the API key to send.")]
TlsCert = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="Certificate (chain); every port then accepts TLS only."),
]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="PEM", help="Key of --tls-cert, without a password.")
]
NodeCa = Annotated[
    Path | None,
    typer.Option("--ca", metavar="PEM", help="Call nodes by TLS; this authority signed theirs."),
]
CallCa = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="PEM", help="Call by TLS; this authority signed the server's certificate."
    ),
]
NodeKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the key that a fleet's controllers and nodes send each other.  "
        "[default: the admin key]"
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Http = Annotated[int, typer.Option(help="Port of KServe v2 over HTTP.")]
Grpc = Annotated[int, typer.Option(help="Port of KServe v2 over gRPC.")]
Requests = Annotated[float, typer.Option(metavar="MB", help="Memory limit for request bodies.")]
TrustModels = Annotated[
    str,
    typer.Option(
        metavar="all|none|NAME,...",
        help="Models that may run their own code: model.py, TorchScript, torch.export.  "
        "[default: all in MODELS_DIR; none that are fetched]",
    ),
]
Grace = Annotated[float, typer.Option(help="Seconds that SIGTERM waits for accepted requests.")]
Level = Annotated[LogLevel, typer.Option(help="Lowest level of messages shown.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def positive(values: Mapping[str, float | None]) -> None:
    """Every value given is above zero.

    Raises:
        InputError: one is not; it is named.
    """
    for name, value in values.items():
        if value is not None and not 0 < value < inf:
            raise InputError(f"{name} is {value:g}; expected a number above 0")


def check_output(option: str, path: Path | None) -> None:
    """Make the folder of a file that will be written, before the work whose result it keeps.

    Raises:
        InputError: the file cannot be written there.
    """
    if path is None:
        return
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise InputError(
            f"{option} {path}: found {error.strerror}; expected a file that can be written"
        ) from error


def size_bytes(option: str, text: str | None) -> int | None:
    """A size such as ``2GB``, where one is given.

    Raises:
        InputError: it is none.
    """
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}; expected a size such as 2GB") from None


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dict.

    Raises:
        InputError: one has no name or no ``=``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InputError(f"{option} {text}: expected NAME=VALUE")
        found[name] = value
    return found


def numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """``NAME=NUMBER`` texts as a dict of numbers above 0.

    Raises:
        InputError: one is not of that form.
    """
    found: dict[str, float] = {}
    for name, value in pairs(option, texts).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise InputError(f"{option} {name}={value}: '{value}' is not a number") from None
    positive({f"{option} {name}": value for name, value in found.items()})
    return found


def read_keys(api: Path | None, admin: Path | None, node: Path | None) -> ApiKeys:
    """The keys of each role, as ``read_key`` reads them."""
    return ApiKeys(
        read_key(api) or "",
        read_key(admin, "--admin-key-file") or "",
        read_key(node, "--node-key-file") or "",
    )


def read_key(file: Path | None, option: str = "--api-key-file") -> str | None:
    """The key in the file that ``option`` names: unlike an argument it is in no list of processes.

    Raises:
        InputError: the file is empty.
        OSError: it cannot be read.
    """
    if file is None:
        return None
    key = file.read_text(encoding="utf-8").strip()
    if not key:
        raise InputError(f"{option} {file}: it is empty")
    return key
