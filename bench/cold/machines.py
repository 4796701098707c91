"""Machines that cold starts are simulated on: links, budgets, and models by layer on them.

* An H100 with PCIe 5.0: copies at 50 GB/s (measured ones are 50 to 56), 2 us a copy; FP16, so half
  the bytes of the published layers. BERT-Base takes 1.15 ms warm with 128 tokens; its layers have
  their parts of that as on the V100, and reading from the host takes as many times a layer's bytes.
* A p3.8xlarge: four V100, two to a PCIe 3.0 switch, NVLink between (DeepPlan section 4.3.3).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from bench.papers.deepplan.v100 import SWITCH_OF, V100, layers, planned, waiting
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import HostLinks
from interlace.core.profile import LatencyPoint, LayerProfile, Profile
from interlace.profiling.profile_file import (
    SCHEMA,
    DeviceHeader,
    MethodHeader,
    ModelHeader,
    ProfileRecord,
    point_rows,
)

#: A copy by the H100's engine: bytes a ms, and what each adds.
_H100_BYTES_PER_MS: Final = 50e6
_H100_COPY_MS: Final = 0.002
_H100_NVLINK_BYTES_PER_MS: Final = 450e6  #: NVLink 4.0, one direction
_H100_HOST_MS: Final = 0.003
_BERT_WARM_MS: Final = 1.15
#: A row more in a batch, of what one takes: small batches leave the GPU idle.
_ROW: Final = 0.35
_BATCHES: Final = (1, 2, 4, 8)


@cache
def bert_on_h100() -> Profile:
    """BERT-Base in FP16."""
    old = layers("bert_base")
    slower = sum(one.run_ms for one in old) / _BERT_WARM_MS
    found = tuple(
        LayerProfile(
            one.name,
            one.weights_bytes // 2,
            _rounded(_copy_ms(one)),
            _rounded(one.run_ms / slower),
            _rounded(one.run_ms / slower + _read_ms(one)),
            one.kind,
        )
        for one in old
    )
    return _profile("bert", "h100", found)


def _rounded(time_ms: float) -> float:
    return round(time_ms, 5)


def _copy_ms(one: LayerProfile) -> float:
    return _H100_COPY_MS + one.weights_bytes / 2 / _H100_BYTES_PER_MS if one.weights_bytes else 0.0


def _read_ms(one: LayerProfile) -> float:
    """What reading from the host adds on the H100, as many times the bytes as on the V100."""
    if not one.weights_bytes:
        return 0.0
    added_ms = (one.run_host_ms - one.run_ms) * V100.link_bytes_per_ms / 2 / _H100_BYTES_PER_MS
    return _H100_HOST_MS + max(0.0, added_ms)


@cache
def on_v100(model: str, answer: str, peers: int = 0, rows: float = 1) -> Profile:
    """One of DeepPlan's models on its V100, as an answer to cold starts by that name finds it.

    What is copied waits for its event; with all weights there nothing waits.
    """
    found = layers(model, rows)
    links = HostLinks(peers, V100.nvlink_bytes_per_ms)
    known = tuple(waiting(found, planned(answer, found, links)))
    return _profile(model, "v100", known, sum(one.run_ms for one in found))


def _profile(
    name: str, kind: str, found: tuple[LayerProfile, ...], warm_ms: float | None = None
) -> Profile:
    warm_ms = warm_ms or sum(one.run_ms for one in found)
    times = {rows: warm_ms * (1 + _ROW * (rows - 1)) for rows in _BATCHES}
    points = {(rows, 100): LatencyPoint(ms, ms, ms, 1) for rows, ms in times.items()}
    nbytes = sum(one.weights_bytes for one in found)
    return Profile(name, "published", kind, nbytes, 0, points, layers=found)


def h100(memory_bytes: int, peers: int = 0) -> Fleet:
    """One H100, so much of its memory for weights; ``peers`` lend it their links over NVLink."""
    links = HostLinks(peers, _H100_NVLINK_BYTES_PER_MS)
    return Fleet((_gpu(GPU_KINDS["h100"], 0, memory_bytes, links),))


def p3_8xlarge(memory_bytes: int, peers: int = 1) -> Fleet:
    """Four V100; a peer of each hangs on the other switch."""
    gpus = []
    for number, switch in enumerate(SWITCH_OF):
        other = SWITCH_OF[(number + 2) % len(SWITCH_OF)]
        names = tuple(f"switch{one}" for one in (switch, other)[: peers + 1])
        links = HostLinks(peers, V100.nvlink_bytes_per_ms, names=names)
        gpus.append(_gpu(GPU_KINDS["v100"], number, memory_bytes, links))
    return Fleet(tuple(gpus))


def _gpu(kind: Gpu, number: int, memory_bytes: int, links: HostLinks) -> Gpu:
    return replace(kind, id=f"gpu{number}", weights_bytes=memory_bytes, links=links)


def write_profile(path: Path, profile: Profile) -> None:
    """The profile as ``interlace profile`` keeps one, for a scenario's ``profiles``."""
    gpu = GPU_KINDS[profile.gpu_kind]
    record = ProfileRecord(
        SCHEMA,
        ModelHeader(profile.model, 1, profile.digest, "torch", max(_BATCHES), 1e9, {}),
        DeviceHeader(gpu.kind, gpu.units, gpu.memory_bytes, list(gpu.shares_pct), "simulated"),
        MethodHeader("", 1, "shaped after DeepPlan's published plans", "", {}),
        profile.weights_bytes,
        profile.activation_bytes,
        0.0,
        0.0,
        0.0,
        point_rows(profile),
        layers=profile.layers,
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
