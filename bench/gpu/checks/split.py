"""Which groups of SMs there are, and which SMs the work of a stream runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from bench.gpu.bench import Bench
from bench.gpu.lanes import Lane, Lanes, ask_sms, lanes, sms_of
from bench.gpu.rows import Row, attempt, judged
from interlace.device.cuda.backend.base import CudaBackend


def rows(bench: Bench) -> Iterator[Row]:
    """Atoms put together again; SM numbers of partitions."""
    with bench.backend() as backend, lanes(backend.driver) as cut:
        yield from attempt("atoms", lambda: _atoms(backend, cut))
        yield from attempt("SMs of partitions", lambda: _partitions(backend, cut))


def _atoms(backend: CudaBackend, cut: Lanes) -> Iterable[Row]:
    split, sms = cut.split, backend.driver.board.sms
    left = split.rest.sms if split.rest else 0
    yield judged(
        "atoms of 8", f"{sms // 8} and {sms % 8} left", f"{len(split.atoms)} and {left} left",
        len(split.atoms) == sms // 8 and left == sms % 8, atoms=len(split.atoms), left=left,
    )  # fmt: skip
    some = split.atoms[:4] if split.rest is None else (*split.atoms[:3], split.rest)
    wanted = sum(atom.sms for atom in some)
    lane = cut.on(some)
    yield judged(
        "one partition of several atoms and the rest", f"{wanted} SMs", f"{lane.sms} SMs",
        lane.sms == wanted,
    )  # fmt: skip


def _partitions(backend: CudaBackend, cut: Lanes) -> Iterable[Row]:
    half = len(cut.split.atoms) // 2 * 8
    sides = {"first": cut.first(half), "beside": cut.beside(half), "again": cut.first(half)}
    ran = {name: _ran(backend, lane) for name, lane in sides.items()}
    for name, lane in sides.items():
        yield judged(
            f"SMs that ran work of '{name}'", str(lane.sms), str(len(ran[name])),
            len(ran[name]) == lane.sms, sms=sorted(ran[name]),
        )  # fmt: skip
    shared = ran["first"] & ran["beside"]
    yield judged("SMs of both sides", "none", str(len(shared)), not shared)
    both, sms = len(ran["first"] | ran["beside"]), backend.driver.board.sms
    yield judged("SMs of either side", str(sms), str(both), both == sms)
    same = ran["first"] == ran["again"]
    yield judged("the same atoms again", "the same SMs", "yes" if same else "no", same)
    whole = _ran(backend, cut.plain())
    yield judged("SMs of a plain stream", str(sms), str(len(whole)), len(whole) == sms)
    pieces = [_ran(backend, cut.on([atom])) for atom in cut.split.atoms]
    apart = all(not one & other for one, other in combinations(pieces, 2))
    yield judged("atoms", "apart", "apart" if apart else "overlap", apart)


def _ran(backend: CudaBackend, lane: Lane) -> set[int]:
    return sms_of(
        backend,
        lambda address, blocks: ask_sms(backend, lane.stream, address, blocks),
        lane.stream,
    )
