"""The kind of accelerator that a scenario asks for: by name, or described by a table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.user_errors import InputError
from interlace.planning.fields import known, near, number, whole

_KEYS: Final = ("kind", "units", "memory_gb", "shares_pct")


def gpu_kind(path: Path, wanted: object) -> Gpu:
    """A kind by name, or from a table of ``kind``, ``units``, ``memory_gb`` and ``shares_pct``.

    Raises:
        InputError: there is no such kind, or the table says too little.
    """
    if isinstance(wanted, str):
        if wanted not in GPU_KINDS:
            raise InputError(
                f"no kind of GPU '{wanted}'{near(wanted, GPU_KINDS)}; known: {', '.join(GPU_KINDS)}"
            )
        return GPU_KINDS[wanted]
    if not isinstance(wanted, dict):
        raise InputError(f"{path}: gpu is missing; expected one of {', '.join(GPU_KINDS)}")
    known(path, "gpu.", wanted, _KEYS)
    name = wanted.get("kind", "custom")
    if not isinstance(name, str) or not name:
        raise InputError(f"{path}: gpu.kind is {name!r}; expected a name")
    return Gpu(
        "",
        name,
        whole(path, "gpu.units", wanted.get("units", 100)),
        int(number(path, "gpu.memory_gb", wanted.get("memory_gb"), least=0.001) * 1e9),
        _shares(path, wanted.get("shares_pct")),
    )


def _shares(path: Path, given: object) -> tuple[int, ...]:
    shares = given if isinstance(given, list) else []
    legal = all(isinstance(s, int) and not isinstance(s, bool) and 1 <= s <= 100 for s in shares)
    if 100 not in shares or not legal:
        raise InputError(
            f"{path}: gpu.shares_pct is {given!r}; expected whole percentages such as "
            f"[20, 40, 50, 60, 80, 100], 100 among them"
        )
    return tuple(sorted(set(shares)))
