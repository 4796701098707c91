"""What a page of metrics costs does not grow with the square of the number of models."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.control import snapshots
from interlace.control.registry import VersionRegistry
from interlace.control.snapshots import SnapshotSource
from interlace.core.plan import Slot
from interlace.server.model_table import Duration

COUNT = 20


def test_the_plan_is_gone_through_once_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"m{number}/1#0" for number in range(COUNT)]
    slots = tuple(Slot(key, 4, float(number)) for number, key in enumerate(keys))
    live = [
        SimpleNamespace(
            id=f"p{n}", gpu="cpu0", units=(n,), share_pct=50, slots=slots, resident_bytes={}
        )
        for n in range(2)
    ]
    model = SimpleNamespace(waiting_rows=0, weights={})
    engine = SimpleNamespace(
        models=dict.fromkeys(keys, model),
        partitions={one.id: one for one in live},
        target=SimpleNamespace(headroom=2.0),
        partitions_lost=0,
    )
    asked: list[int] = []
    placements = snapshots.placements
    monkeypatch.setattr(
        snapshots, "placements", lambda engine: asked.append(1) or placements(engine)
    )
    arena = SimpleNamespace(used_bytes=0, size_bytes=0)
    source = SnapshotSource(
        lambda: cast(Any, engine),
        cast(Any, arena),
        VersionRegistry(),
        lambda: 0,
        lambda: 0,
        Duration(),
    )
    found = source.snapshot().models
    assert len(asked) == 1
    assert [found[key].share_pct for key in keys] == [100.0] * COUNT
    assert [found[key].capacity_rows_per_s for key in keys] == [2.0 * n for n in range(COUNT)]
