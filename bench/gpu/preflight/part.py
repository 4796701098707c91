"""The first part of a run: what works at all, and which way of it later parts are to use.

Nothing here is a figure of how fast something is. What is found is kept for later parts (and later
runs that go on from this one): where libraries make their handles for streams of green contexts,
and which mechanisms are out of the question.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.devices import board, lacking
from bench.gpu.preflight.answers import answers
from bench.gpu.preflight.green import basics, convolutions
from bench.gpu.preflight.mps_client import client_sms
from bench.gpu.preflight.tries import tried
from bench.gpu.rows import Row, Verdict, attempt, failed, flow, judged, seen, skipped
from bench.gpu.switches import USUAL, Switches, choose
from interlace.device.cuda.backend.base import LibraryContext
from interlace.device.cuda.green_contexts.atoms import Atoms
from interlace.device.cuda.mps import MpsControl, MpsError

CONTEXTS: Final[tuple[LibraryContext, ...]] = ("primary", "green")
_WORDS: Final[Mapping[LibraryContext, str]] = {
    "primary": "",
    "green": ", the context current on a thread of its own",
}
_NO_GREEN: Final = "the part `preflight` found that convolutions or models do not work there: "


@dataclass(slots=True)
class Seen:
    """Whether all tries of a kind were right, by context; ``None``: not asked."""

    convolutions: dict[LibraryContext, bool] = field(default_factory=dict)
    models: dict[LibraryContext, bool] = field(default_factory=dict)
    streams: bool | None = None
    why: list[str] = field(default_factory=list)


def rows(bench: Bench) -> Iterator[Row]:
    """Rows that need no library, convolutions, whole models, MPS; the last row is the choice."""
    choose(bench.out, bench.dry, USUAL)  # what an earlier run chose is asked anew
    found, why, switches = Seen(), "", USUAL
    try:
        why = lacking(bench, "green")
    except Exception as error:  # CUDA may know more than NVML
        yield failed("the GPU as NVML sees it", error)
    if why:
        yield skipped("green contexts", why)
    else:
        for row in tried(bench, basics(), "primary"):
            yield row
            if "atoms" in row.figures:
                atoms = Atoms(*row.figures["atoms"])
                switches = replace(switches, atoms=atoms, uuid=board(bench).uuid)
                choose(bench.out, bench.dry, switches)
        yield from _green(bench, found)
    if not any(found.models.values()):  # else whose matter it is needs no asking
        streams: list[Row] = []
        for row in flow(answers(bench, "streams")):
            streams.append(row)
            yield row
        found.streams = _right(streams)
    no_mps = ""
    for row in attempt("a client of MPS", lambda: _mps(bench)):
        no_mps = row.found if _wrong(row) else ""
        yield row
    context, out = chosen(found, why, no_mps)
    switches = replace(switches, handle_context=context, lacking=out)
    choose(bench.out, bench.dry, switches)
    yield _told(switches)


def _green(bench: Bench, found: Seen) -> Iterator[Row]:
    """Convolutions, then whole models, with handles of the primary context; else the other way."""
    for context in CONTEXTS:
        small: list[Row] = []
        for row in tried(bench, convolutions(_WORDS[context]), context):
            small.append(row)
            yield row
        found.convolutions[context] = not any(map(_against, small))
        found.why += [f"{row.what}: {row.found}" for row in small if _against(row)]
        if not found.convolutions[context]:
            continue
        large: list[Row] = []
        for row in flow(answers(bench, "green", context)):
            large.append(row)
            yield row
        found.models[context] = _right(large)
        found.why += [f"{row.what}: {row.found}" for row in large if _wrong(row)]
        if found.models[context]:
            return


def _against(row: Row) -> bool:
    """Whether a convolution says that green contexts do not work, and not that convolutions do."""
    return row.verdict is Verdict.FAILED or bool(row.figures.get("against"))


def _wrong(row: Row) -> bool:
    return row.verdict in (Verdict.FAILED, Verdict.OTHER)


def _right(rows: Iterable[Row]) -> bool:
    """Nothing was wrong; what no time was left for does not count against it."""
    return not any(map(_wrong, rows))


def chosen(found: Seen, no_green: str, no_mps: str) -> tuple[LibraryContext, dict[str, str]]:
    """Where libraries make their handles, and why mechanisms are out of the question.

    Green contexts are, if no way takes convolutions; or if models go wrong there in each, and do
    not on plain streams: what goes wrong on both is no matter of green contexts.
    """
    out = {"mps": no_mps} if no_mps else {}
    ways = [context for context in CONTEXTS if found.convolutions.get(context)]
    works = [context for context in ways if found.models.get(context)]
    if no_green:
        return "primary", {"green": no_green, **out}
    if works:
        return works[0], out
    if ways and not found.streams:
        return ways[0], out
    return "primary", {"green": (_NO_GREEN + "; ".join(found.why))[:500], **out}


def _mps(bench: Bench) -> Iterator[Row]:
    what, wanted = "a client of MPS at 50 %", "half of the SMs"
    why = lacking(bench, "mps")
    if why or bench.dry:
        yield skipped(what, why or "a dry run starts no daemon")
        return
    control = MpsControl(board(bench).uuid)
    try:
        control.start()
        said = client_sms(control.environment(), 50)
    except (MpsError, OSError, ValueError) as error:
        yield judged(what, wanted, f"{error}"[:300], False)
        return
    finally:
        control.stop()
    half = board(bench).sms // 2
    yield judged(what, wanted, f"{said} SMs", abs(said - half) <= 2, sms=said)


def _told(switches: Switches) -> Row:
    if "green" in switches.lacking:
        words = f"no green contexts: {switches.lacking['green']}"
    else:
        words = f"green contexts, libraries with handles of the {switches.handle_context} context"
    if "mps" in switches.lacking:
        words += f"; no MPS: {switches.lacking['mps']}"
    return seen(
        "later parts use", words, handle_context=switches.handle_context,
        lacking=dict(switches.lacking),
    )  # fmt: skip
