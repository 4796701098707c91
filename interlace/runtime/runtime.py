"""Runs the engine: delivers events to it and carries out its commands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from interlace.core.hardware import Gpu
from interlace.core.messages import (
    CancelFetch,
    CancelRun,
    Command,
    CopyInputs,
    CreatePartition,
    DismissGpu,
    EpochEnded,
    Event,
    Evict,
    Fetch,
    GpuJoined,
    GpuLeft,
    Load,
    RefusedUpstream,
    ReleasePartition,
    ReportSettled,
    ReportStatus,
    ReportTimeout,
    RequestArrived,
    RequestCancelled,
    Run,
    RuntimeCommand,
    ScaleFleet,
    SendReply,
    SolvePlan,
    TimedOut,
    TimeoutAt,
    Unload,
    WakeAt,
    Woke,
    WorkFinished,
)
from interlace.core.request import Callbacks, PartialResponse, Reply, Request
from interlace.device.base import Device, DeviceEvent
from interlace.runtime.clock import Alarm, Clock
from interlace.runtime.plan_solver import GiveUp, PlanSolver

_log = logging.getLogger(__name__)
#: ``messages.Work``, as ``isinstance`` has it fastest: the usual first.
_WORK: Final = (Run, CopyInputs, Fetch, Evict, CreatePartition, ReleasePartition, Load, Unload)

#: Sees every event and its commands from outside; one that raises is removed.
Observer = Callable[[float, Event, Sequence[Command]], None]
OnStatus = Callable[[ReportStatus | ReportSettled], None]


class EventHandler(Protocol):
    """What the runtime needs of the engine."""

    def handle(self, event: Event, now_ms: float) -> Sequence[Command]: ...


class GpuProvider(Protocol):
    """Adds and removes accelerators; it calls the host later, on the runtime's thread."""

    def scale(self, wanted: Mapping[str, int], host: Runtime) -> None:
        """From now on this many accelerators of each kind are wanted in total."""

    def dismiss(self, gpu: str, host: Runtime) -> None:
        """This accelerator is empty and may be taken away."""


class FixedGpuProvider:
    """A fleet that stays; log once that more accelerators are wanted."""

    def __init__(self) -> None:
        self._logged = False

    def scale(self, wanted: Mapping[str, int], host: Runtime) -> None:
        if not self._logged:
            self._logged = True
            what = ", ".join(f"{count} {kind}" for kind, count in sorted(wanted.items()))
            _log.warning("overloaded: %s would meet the demand", what)

    def dismiss(self, gpu: str, host: Runtime) -> None:
        """Never called: a fleet that stays dismisses nothing."""


class Runtime:
    """One engine, one clock, its devices. Not thread-safe: one thread calls everything here."""

    def __init__(
        self,
        engine: EventHandler,
        clock: Clock,
        devices: Mapping[str, Device],
        solver: PlanSolver,
        observers: Sequence[Observer] = (),
        epoch_ms: float = 1000.0,
        scaling: GpuProvider | None = None,
    ) -> None:
        self.clock = clock
        self.on_status: OnStatus = lambda report: None
        self._engine = engine
        self._devices = dict(devices)
        self._solver = solver
        self._give_up: GiveUp = lambda: None
        self._scaling = scaling or FixedGpuProvider()
        self._observers = list(observers)
        self._callers: dict[int, Callbacks] = {}  #: by request id
        self._undelivered: dict[int, tuple[str, int]] = {}
        self._ids = count(1)
        self._turned_away: dict[str, RefusedUpstream] = {}
        #: grows with every event that may make room for a request which had none
        self.changes = 0
        self._wake = Alarm(clock, lambda: self.deliver(Woke()))
        self._timeout = Alarm(clock, lambda: self.deliver(TimedOut()))
        self._epoch_ms = epoch_ms
        self._deliver: Callable[[Event], None] = self.deliver  # bound once
        for device in devices.values():
            device.on_event(self.heard)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Show every event to one observer more, until what is returned is called."""
        self._observers = [*self._observers, observer]

        def end() -> None:
            self._observers = [one for one in self._observers if one is not observer]

        return end

    def next_id(self) -> int:
        """A request id, unique in this runtime."""
        return next(self._ids)

    def start(self) -> None:
        """Start the epochs, at whose ends rates are sampled."""
        self.clock.call_at(self.clock.now_ms() + self._epoch_ms, self._tick)

    def submit(self, request: Request, caller: Callbacks) -> None:
        """Hand a request to the engine; it may be answered before this returns."""
        self._callers[request.id] = caller
        self.deliver(RequestArrived(request))

    def count_refused(self, model: str, rows: int) -> None:
        """A request got the refusal that the engine gave a like request a moment before.

        The engine hears of it with its next event that is no arrival.
        """
        before = self._turned_away.get(model, RefusedUpstream(model, 0, 0))
        self._turned_away[model] = RefusedUpstream(model, before.requests + 1, before.rows + rows)

    def cancel(self, request: Request) -> None:
        """The client went away; the reply still comes, when the device is done with the inputs."""
        if request.id in self._callers:
            self.deliver(RequestCancelled(request.model, request.id))

    def delivered(self, reply: Reply) -> None:
        """A reply's bytes have been sent; after a batch's last one its output memory is reused."""
        if reply.batch is None or reply.batch not in self._undelivered:
            return
        gpu, left = self._undelivered[reply.batch]
        if left > 1:
            self._undelivered[reply.batch] = (gpu, left - 1)
            return
        del self._undelivered[reply.batch]
        self._free(gpu, reply.batch)

    def heard(self, event: DeviceEvent) -> None:
        """Take what a device tells unasked; responses of streams do not concern the engine."""
        if not isinstance(event, PartialResponse):
            self.deliver(event)
            return
        caller = self._callers.get(event.request_id)
        if caller is not None and caller.on_response is not None:
            caller.on_response(event)
        else:
            event.release()

    def deliver(self, event: Event) -> None:
        """Give the engine one event and carry out its commands."""
        if type(event) is not RequestArrived:
            self.changes += 1
            if self._turned_away:
                turned_away, self._turned_away = self._turned_away, {}
                for each in turned_away.values():
                    self.deliver(each)
        now_ms = self.clock.now_ms()
        commands = self._engine.handle(event, now_ms)
        if self._observers:
            self._observe(now_ms, event, commands)
        if type(event) is WorkFinished:
            self._expect_deliveries(event, commands)
        # Devices first: a reply takes a while to write, and an accelerator may be idle meanwhile.
        # The usual by identity: ``isinstance`` is slow where a struct is of another type.
        for command in commands:
            if type(command) is not SendReply and isinstance(command, _WORK):
                self._devices[command.gpu].do(command, self._deliver)
        for command in commands:
            if type(command) is SendReply:
                reply = command.reply
                self._callers.pop(reply.request.id).on_reply(reply)
            elif type(command) is WakeAt:
                self._wake.at(command.at_ms)
            elif not isinstance(command, _WORK):
                self._perform(command)

    @property
    def gpus(self) -> Sequence[Gpu]:
        """The accelerators that are there."""
        return [device.gpu for device in self._devices.values()]

    def join(self, device: Device, more: bool = False) -> None:
        """Add an accelerator; ``more`` come with it, so that one plan is made for all."""
        self._devices[device.gpu.id] = device
        device.on_event(self.heard)
        self.deliver(GpuJoined(device.gpu, more))

    def leave(self, gpu: str, more: bool = False) -> None:
        """Remove an accelerator; work that it still has fails, and is retried elsewhere.

        ``more`` leave with it, so that one plan is made without all of them.
        """
        device = self._devices.pop(gpu)
        self.deliver(GpuLeft(gpu, more))
        device.close()

    def gpu_failed(self, gpu: str) -> None:
        """Plan without an accelerator that failed, while it is restarted."""
        self.deliver(GpuLeft(gpu))

    def gpu_recovered(self, gpu: str) -> None:
        """Plan with it again; it is empty."""
        self.deliver(GpuJoined(self._devices[gpu].gpu))

    @property
    def unanswered(self) -> int:
        """The number of requests without a reply so far."""
        return len(self._callers)

    def _perform(self, command: RuntimeCommand) -> None:
        match command:
            case TimeoutAt(at_ms=at_ms):
                self._timeout.at(at_ms)
            case ReportTimeout(request=request, error=error):
                caller = self._callers.get(request.id)
                if caller is not None and caller.on_timeout is not None:
                    caller.on_timeout(error)
            case SolvePlan():
                self._give_up()  # of two questions only the later is waited for
                self._give_up = self._solver(command, self.deliver)
            case ReportStatus() | ReportSettled():
                self.on_status(command)
            case ScaleFleet(gpus=gpus):
                self._scaling.scale(gpus, self)
            case DismissGpu(gpu=gpu):
                self._scaling.dismiss(gpu, self)
            case CancelFetch(gpu=gpu, model=model):
                self._devices[gpu].cancel_fetch(model)
            case CancelRun(gpu=gpu):
                if gpu in self._devices:
                    self._devices[gpu].cancel_run(command)

    def _free(self, gpu: str, batch: int) -> None:
        if gpu in self._devices:  # else it left, and its memory with it
            self._devices[gpu].free(batch)

    def _expect_deliveries(self, event: WorkFinished, commands: Sequence[Command]) -> None:
        # Before any reply: a transport may report delivery while it is called with one.
        if not event.outputs:
            return
        work = event.work
        if not isinstance(work, Run):
            return
        batch = work.batch
        replies = 0
        for command in commands:
            if type(command) is SendReply and command.reply.batch == batch.id:
                replies += 1
        if replies:
            self._undelivered[batch.id] = (work.gpu, replies)
        else:
            self._free(work.gpu, batch.id)

    def _tick(self) -> None:
        self.deliver(EpochEnded())
        self.start()

    def _observe(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for observer in self._observers:
            try:
                observer(now_ms, event, commands)
            except Exception:  # an observer must never take the server down
                self._observers = [one for one in self._observers if one is not observer]
                _log.exception("an observer failed and is removed: %r", observer)
