"""A dispatcher of one's own, in one file: the batch with the shortest remaining slack goes first.

Slack is the time by which a batch could begin later and still end by its head's deadline. Run its
laws, then let it compete with the systems of the catalog:

    python examples/own_dispatcher.py
    cd examples
    interlace simulate planning/nine.toml --systems interlace,clockwork,own_dispatcher:SYSTEM
"""

from dataclasses import replace

from interlace.policy.batching import rows_in_time
from interlace.policy.catalog import resolve
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, available_partitions, start_ms


def shortest_slack(view: View, now_ms: float) -> Dispatch:
    """In every partition that takes a batch, start the model with the least slack."""
    launches: list[Launch] = []
    taken: dict[str, int] = {}  # rows of each model that start at this moment
    for partition in available_partitions(view, now_ms):
        candidates = _candidates(partition, view, taken, start_ms(partition, now_ms))
        if candidates:
            _, launch = min(candidates, key=lambda one: one[0])
            launches.append(launch)
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows
    return Dispatch(tuple(launches))


def _candidates(
    partition: PartitionView, view: View, taken: dict[str, int], at_ms: float
) -> list[tuple[float, Launch]]:
    """For each model that waits: its slack at ``at_ms``, and the largest batch in time."""
    found: list[tuple[float, Launch]] = []
    for slot in view.queued(partition):
        model, queue = view.model(slot.model), view.queue(slot.model)
        head, left = queue.head, queue.rows - taken.get(slot.model, 0)
        if head is None or left <= 0:
            continue
        most = min(queue.batch_rows(max(slot.batch, head.rows)), left)
        rows = rows_in_time(most, model, head, partition.share_pct, head.deadline_ms - at_ms)
        run_ms = model.latency_ms(rows, partition.share_pct, head.shape)
        found.append((head.deadline_ms - at_ms - run_ms, Launch(partition.id, slot.model, rows)))
    return found


#: All else is as in the system of the package.
SYSTEM = replace(
    resolve("interlace"),
    name="slack",
    source="this file",
    dispatcher=shortest_slack,
    fair=False,  # it makes no promise to models that lose requests
)

if __name__ == "__main__":
    from interlace.testing import check_system

    check_system(SYSTEM)
    print(f"{SYSTEM.name} keeps its laws")
