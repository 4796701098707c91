"""One request's way through the engine, in words."""

from __future__ import annotations

from collections.abc import Iterator

from interlace.cli.replaying.summary import steps
from interlace.core.messages import (
    Event,
    Evict,
    Fetch,
    ReportTimeout,
    RequestArrived,
    Run,
    SendReply,
    WorkFinished,
)
from interlace.core.request import Outcome, Reply, Request
from interlace.core.user_errors import InputError
from interlace.engine.snapshot import PartitionSnapshot
from interlace.runtime.log.replay import Replay, ReplayStep


def story(replay: Replay, request_id: int) -> Iterator[str]:
    """What was queued and running when it came, what ran meanwhile, how it ended and why.

    Of a request of an app: each stage's wait, run and slack.

    Raises:
        InputError: no such request is in the log.
    """
    teller: _Teller | None = None
    weights, app, of_app = WeightsStory(), _AppTeller(request_id), False
    for step in steps(replay):
        weights.follow(step)
        for sentence in app.tell(step):
            of_app = True
            yield sentence
        if isinstance(step.event, RequestArrived) and step.event.request.id == request_id:
            teller = _Teller(step.event.request, weights)
        if teller is not None:
            yield from teller.tell(step)
            if teller.ended:
                return
    if teller is None and not of_app:
        raise InputError(f"{replay.log.path}: request {request_id} is not in this log")


class _AppTeller:
    """Follows the stages of one request of an app; the app itself is no event of the engine."""

    def __init__(self, request_id: int) -> None:
        self._id = request_id
        self._arrived = False

    def tell(self, step: ReplayStep) -> Iterator[str]:
        """Sentences about this step, if a stage of the request begins or ends."""
        if isinstance(step.event, RequestArrived) and not self._arrived:
            yield from self._begin(step.event.request, step.now_ms)
        for command in step.commands:
            if isinstance(command, SendReply):
                yield from self._end(command.reply, step.now_ms)

    def _begin(self, request: Request, now_ms: float) -> Iterator[str]:
        if (part := request.part) is not None and part.request == self._id:
            self._arrived = True
            yield (
                f"{now_ms:.1f} ms: request {self._id} of {part.app} arrives; to be answered by "
                f"{part.deadline_ms:.1f} ms"
            )

    def _end(self, reply: Reply, now_ms: float) -> Iterator[str]:
        request, timing = reply.request, reply.timing
        if (part := request.part) is None or part.request != self._id:
            return
        who = f"{now_ms:.1f} ms: stage {part.stage}, request {request.id} of {request.model}"
        if reply.outcome in (Outcome.OK, Outcome.LATE):
            run_ms = now_ms - request.arrived_ms - timing.queue_ms
            yield (
                f"{who}: waited {timing.queue_ms:.1f} ms, ran {run_ms:.1f} ms in a batch of "
                f"{_rows(timing.batch_rows)}; {request.deadline_ms - now_ms:.1f} ms of slack"
            )
        else:
            told = f": {reply.error.detail}" if reply.error is not None else ""
            yield f"{who}: {reply.outcome.value}{told}"


class _Teller:
    """Follows one request from its arrival."""

    def __init__(self, request: Request, weights: WeightsStory) -> None:
        self._request = request
        self._weights = weights
        self._hosts: set[str] = set()
        self._believed_ms: dict[int, tuple[float, float]] = {}
        self._had_ms: dict[str, float] = {}
        self._own_ms: float | None = None
        self.ended = False

    def tell(self, step: ReplayStep) -> Iterator[str]:
        """Sentences about this step, if it has to do with the request."""
        now_ms, request = step.now_ms, self._request
        if isinstance(step.event, RequestArrived) and step.event.request.id == request.id:
            yield from self._arrival(step)
        if isinstance(step.event, WorkFinished) and isinstance(step.event.work, Run):
            yield from self._end_of(step.event.work, now_ms)
        yield from self._weights.tell(request.model, step)
        for command in step.commands:
            if isinstance(command, Run):
                yield from self._start_of(command, step)
            elif isinstance(command, ReportTimeout) and command.request.id == request.id:
                yield f"{now_ms:.1f} ms: its caller was told: {command.error.detail}"
            elif isinstance(command, SendReply) and command.reply.request.id == request.id:
                self.ended = True
                yield from self._outcome(command.reply, now_ms)
                yield from self._weights.why(command.reply, now_ms)
                return

    def _arrival(self, step: ReplayStep) -> Iterator[str]:
        request, engine = self._request, step.engine.snapshot()
        slo_ms = request.deadline_ms - request.arrived_ms
        yield (
            f"{step.now_ms:.1f} ms: request {request.id} of {request.model} arrives; to be "
            f"answered by {request.deadline_ms:.1f} ms (within {slo_ms:.1f} ms)"
        )
        if (part := request.part) is not None:
            yield f"  it is stage {part.stage} of request {part.request} of {part.app}"
        deployed = engine.models.get(request.model)
        if deployed is None:
            return
        yield from self._weights.arrival(request.model, step)
        refused = any(isinstance(one, SendReply) for one in step.commands)
        own = "without" if refused else "with"
        waiting = _rows(deployed.waiting_rows)
        yield f"  waiting for {request.model} now, {own} this one: {waiting}"
        if not refused:
            margin_ms = deployed.admission_margin_ms
            yield f"  let in; {margin_ms:.1f} ms are kept free before deadlines now"
        for host in deployed.hosts:
            self._hosts.add(host)
            for one in engine.partitions[host].batches:
                self._believed_ms[one.run.batch.id] = (one.started_ms, one.expected_end_ms)
            yield f"  {_host(engine.partitions[host])}"
        if not deployed.hosts:
            yield "  no partition that is ready holds the model"

    def _start_of(self, run: Run, step: ReplayStep) -> Iterator[str]:
        batch = run.batch
        with_it = any(one.id == self._request.id for one in batch.requests)
        if not with_it and run.partition not in self._hosts:
            return
        batches = step.engine.snapshot().partitions[run.partition].batches
        before = len(batches) > 1
        begins_ms = batches[0].expected_end_ms if before else step.now_ms
        ends_ms = batches[-1].expected_end_ms
        self._believed_ms[batch.id] = (begins_ms, ends_ms)
        urgent_ms = min(one.deadline_ms for one in batch.requests)
        yield (
            f"{step.now_ms:.1f} ms: {run.partition} {'is given' if before else 'starts'} "
            f"{_rows(batch.rows)} of {batch.model}"
            f"{', this request among them' if with_it else ''}"
            f"{', behind what it runs' if before else ''}, believed to end at "
            f"{ends_ms:.1f} ms; the most urgent of them is due at {urgent_ms:.1f} ms"
        )

    def _end_of(self, run: Run, now_ms: float) -> Iterator[str]:
        if run.batch.id not in self._believed_ms:
            return
        began_ms, believed_ms = self._believed_ms.pop(run.batch.id)
        late_ms = now_ms - believed_ms
        if any(one.id == self._request.id for one in run.batch.requests):
            self._own_ms = late_ms
        else:
            meanwhile_ms = now_ms - max(began_ms, self._request.arrived_ms)
            before_ms = self._had_ms.get(run.batch.model, 0.0)
            self._had_ms[run.batch.model] = before_ms + meanwhile_ms
        word = "later" if late_ms >= 0 else "sooner"
        yield (
            f"{now_ms:.1f} ms: {run.partition} ends {run.batch.model} after "
            f"{now_ms - began_ms:.1f} ms, {abs(late_ms):.1f} ms {word} than believed"
        )

    def _outcome(self, reply: Reply, now_ms: float) -> Iterator[str]:
        request, timing = self._request, reply.timing
        spare_ms = request.deadline_ms - now_ms
        told = f": {reply.error.detail}" if reply.error is not None else ""
        if reply.outcome is Outcome.OK:
            yield f"{now_ms:.1f} ms: answered, {spare_ms:.1f} ms before it was due"
        elif reply.outcome is Outcome.LATE:
            ran_ms = now_ms - request.arrived_ms - timing.queue_ms
            yield (
                f"{now_ms:.1f} ms: answered {-spare_ms:.1f} ms late: it waited "
                f"{timing.queue_ms:.1f} ms and ran {ran_ms:.1f} ms in a batch of "
                f"{_rows(timing.batch_rows)}"
            )
            yield self._why(-spare_ms)
        else:
            yield f"{now_ms:.1f} ms: {reply.outcome.value}{told}"
            if reply.outcome is Outcome.EXPIRED and self._had_ms:
                yield f"  while it waited, {self._others()}"

    def _why(self, late_ms: float) -> str:
        if self._own_ms is not None and self._own_ms >= late_ms:
            return (
                f"  its batch took {self._own_ms:.1f} ms more than believed; without that it "
                "would have been in time"
            )
        began = "  its batch began too late to be in time even as believed"
        return f"{began}; while it waited, {self._others()}" if self._had_ms else began

    def _others(self) -> str:
        """Who had the partitions that it could have run in."""
        most = sorted(self._had_ms.items(), key=lambda pair: -pair[1])
        had = ", ".join(f"{model} {ms:.1f} ms" for model, ms in most)
        return f"the partitions that hold its model were had by {had}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _host(host: PartitionSnapshot) -> str:
    names = ", ".join(slot.model for slot in host.slots)
    if not host.batches:
        return f"{host.id} ({host.share_pct} %; {names}) is idle"
    running, batch = host.batches[0], host.batches[0].run.batch
    return (
        f"{host.id} ({host.share_pct} %; {names}) runs {_rows(batch.rows)} of {batch.model} since "
        f"{running.started_ms:.1f} ms, believed until {running.expected_end_ms:.1f} ms"
    )


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
