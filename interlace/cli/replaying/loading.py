"""What became of models' weights where they come and go, in words."""

from __future__ import annotations

from collections.abc import Iterator

from interlace.core.messages import Event, Evict, Fetch, WorkFinished
from interlace.core.request import Outcome, Reply
from interlace.runtime.log import ReplayStep


class WeightsStory:
    """Follows all weights from the log's begin: a cold start has its cause before the request."""

    def __init__(self) -> None:
        self._left_ms: dict[str, float] = {}
        self._began_ms: dict[str, float] = {}
        self._came_ms: dict[str, float] = {}
        self._read: set[str] = set()  #: by their last load alone: nothing of them was brought

    def follow(self, step: ReplayStep) -> None:
        """Note what begins to come, has come, and leaves."""
        if (ended := _fetched(step.event)) is not None:
            self._came_ms[ended[0].model] = step.now_ms
        for command in step.commands:
            if isinstance(command, Evict):
                self._left_ms[command.model] = step.now_ms
            elif isinstance(command, Fetch):
                self._began_ms[command.model] = step.now_ms
                self._read.discard(command.model)
                if not command.plan.brought:
                    self._read.add(command.model)

    def tell(self, model: str, step: ReplayStep) -> Iterator[str]:
        """Sentences about one model's weights."""
        ended = _fetched(step.event)
        if ended is not None and ended[0].model == model:
            took_ms = step.now_ms - self._began_ms.get(model, step.now_ms)
            failure = ended[1].failure
            how = "have come" if failure is None else f"failed ({failure.detail})"
            yield f"{step.now_ms:.1f} ms: the weights of {model} {how} after {took_ms:.1f} ms"
        for command in step.commands:
            if isinstance(command, Fetch) and command.model == model:
                brought = len(command.plan.brought)
                what = f"bring {model}: {brought} of {len(command.plan.steps)} layers"
                yield (
                    f"{step.now_ms:.1f} ms: {command.gpu} begins to "
                    f"{what if brought else f'read the file of {model} from disk'}, believed to "
                    f"end the first batch after {command.plan.end_ms:.1f} ms"
                )
            elif isinstance(command, Evict) and command.model == model:
                layers = len(command.layers)
                yield f"{step.now_ms:.1f} ms: {layers} layers of {model} leave {command.gpu}"

    def arrival(self, model: str, step: ReplayStep) -> Iterator[str]:
        """Whether its weights are there when a request comes."""
        for gpu, weights in step.engine.snapshot().models[model].weights.items():
            yield (
                f"  its weights on {gpu}: {weights.state}, {weights.held_bytes / 1e6:.1f} of "
                f"{weights.total_bytes / 1e6:.1f} MB are there"
            )

    def why(self, reply: Reply, now_ms: float) -> Iterator[str]:
        """How much of its time went by loading, unless it was refused, and why it was cold."""
        model, arrived_ms = reply.request.model, reply.request.arrived_ms
        came_ms = self._came_ms.get(model, now_ms)
        began_ms = self._began_ms.get(model)
        if began_ms is None or (came_ms < arrived_ms and began_ms < arrived_ms):
            return
        loading_ms = min(now_ms, came_ms if came_ms > began_ms else now_ms) - arrived_ms
        went = f": {loading_ms:.1f} ms of its {now_ms - arrived_ms:.1f} went by loading"
        left_ms = self._left_ms.get(model)
        cause = "its weights had not been brought before"
        if model in self._read:
            cause = "its file was on the disk only"
        elif left_ms is not None:
            cause = f"its weights had left at {left_ms:.1f} ms, when memory was short"
        yield f"  it was cold{'' if reply.outcome is Outcome.REFUSED else went}, because {cause}"


def _fetched(event: Event) -> tuple[Fetch, WorkFinished] | None:
    if isinstance(event, WorkFinished) and isinstance(event.work, Fetch):
        return event.work, event
    return None
