"""How soon a model's next request would be answered, told to those who choose between nodes."""

from __future__ import annotations

from math import ceil, inf
from typing import Final

from interlace.core.node import ModelOutlook
from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.admission import row_ms
from interlace.policy.batching import limit_rows
from interlace.policy.view import PartitionView, View

#: After every request of the same deadline.
_LAST: Final = 1 << 62


def outlook(model: str, view: View, ready_ms: float, now_ms: float) -> ModelOutlook:
    """That of a model, in the partition where a request of one row would end first.

    Before it go the running batch, and what waits there with nearer deadlines, of each model the
    part that is planned there, in full batches; it is in its own model's last one. The weights
    come first, if they are not there before ``ready_ms``. Of a model that is a guest everywhere
    here, all that waits of a partition's own models goes before it.
    """
    asked = view.model(model)
    slo_ms = asked.demand.slo_ms
    request = Request(_LAST, model, now_ms, now_ms + slo_ms)
    best_ms = alone_ms = added_ms = inf
    for host in asked.hosts or asked.lenders:
        own_ms = asked.latency_ms(1, host.share_pct)
        end_ms = max(0.0, host.free_at_ms - now_ms)
        own = view.slot(host, model)
        per_row_ms = row_ms(own, host, view)
        end_ms += _batches_ms(view.queue(model).rows_before(request) + 1, own, host, view)
        for slot in view.queued(host):
            queue = view.queue(slot.model)
            rows = queue.rows if own.guest else queue.rows_before(request)
            if rows and not slot.guest and slot.model != model:
                end_ms += _batches_ms(rows, slot, host, view)
        if end_ms < best_ms:
            best_ms, alone_ms, added_ms = end_ms, own_ms, per_row_ms
    cold_ms = max(0.0, ready_ms - now_ms)
    if cold_ms > 0.0:
        best_ms = max(best_ms, cold_ms + alone_ms)
    waiting = view.queue(model).rows
    lent = not asked.hosts
    return ModelOutlook(best_ms, alone_ms, added_ms, slo_ms, cold_ms, waiting, lent=lent)


def _batches_ms(rows: int, slot: Slot, host: PartitionView, view: View) -> float:
    """How long a model's next rows run at one of its hosts: full batches, and the rest."""
    model = view.model(slot.model)
    batch = limit_rows(slot, host, model)
    whole, rest = divmod(ceil(rows * host.parts.get(slot.model, 1.0)), batch)
    rest_ms = model.latency_ms(rest, host.share_pct) if rest else 0.0
    return whole * model.latency_ms(batch, host.share_pct) + rest_ms
