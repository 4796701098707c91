"""Laws of the engine: a state machine throws any event at any state."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from interlace.core.hardware import Fleet, Trait
from interlace.core.messages import (
    BatchWaits,
    Command,
    CopyInputs,
    CreatePartition,
    DismissGpu,
    EpochEnded,
    Event,
    GpuJoined,
    GpuLeft,
    Load,
    ReleasePartition,
    Run,
    Unload,
    Woke,
    WorkFinished,
)
from interlace.core.request import Outcome, Request
from interlace.device.simulated.physics import HostLink, Physics, Transfer
from interlace.engine.live_partition import PartitionState
from interlace.perf.memory import needed_bytes
from interlace.policy.catalog import CATALOG, resolve
from interlace.policy.scaling import GrowAndShrink
from interlace.sim.scenario import Reserve
from tests.builders import World, line_profile, machine
from tests.laws.world_machine import WorldMachine

MODELS = ("a", "b", "c", "d")
TRUTH = {m: line_profile(m, 1.0 + i, 0.5 + 0.3 * i) for i, m in enumerate(MODELS)}
#: Inputs of "a" take 0.5 ms each to copy, one after the other.
COPIES = Physics(link=HostLink(1_000.0), transfers={"a": Transfer(500, 10)})


class EngineMachine(WorldMachine):
    """A world in virtual time under random traffic, faults and deployments."""

    models = MODELS

    @initialize(
        name=st.sampled_from(sorted(CATALOG)),
        overlapped=st.booleans(),
        memory=st.sampled_from([10**9, 4_100]),
        there=st.integers(1, 2),
        spare=st.integers(0, 2),
        delay=st.sampled_from([0.0, 50.0, 500.0]),
        ahead=st.sampled_from([0.0, 1.0, 20.0]),
    )
    def build(
        self,
        name: str,
        overlapped: bool,
        memory: int,
        there: int,
        spare: int,
        delay: float,
        ahead: float,
    ) -> None:
        traits = frozenset({Trait.OVERLAPPED_REORGANISATION}) if overlapped else frozenset()
        traits |= {Trait.INPUT_POOL}
        (gpu,) = machine(memory, traits).gpus
        self.most = 2 if ahead else 1
        gpus = [replace(gpu, id=f"g{index}", ahead_ms=ahead) for index in range(there + spare)]
        reserve = Reserve(tuple(gpus[there:]), delay) if spare else None
        # At the pace of a test: what takes half a minute in service takes half a second here.
        row = resolve(name)
        if isinstance(row.scaler, GrowAndShrink):
            row = replace(row, scaler=GrowAndShrink(cool_down_ms=200.0, patience_ms=500.0))
        self.world = World(TRUTH, Fleet(tuple(gpus[:there])), row, reserve=reserve, physics=COPIES)
        self.sent: list[Request] = []
        self.seen = 0  #: entries of the log that were looked at
        self.carved: set[str] = set()
        self.loaded: set[tuple[str, str]] = set()
        self.busy: defaultdict[str, list[str]] = defaultdict(list)  #: models of its batches
        self.waiting: dict[int, str] = {}  #: partitions by batch
        self.there = {gpu.id for gpu in self.world.fleet.gpus}
        self.slots: dict[int, int] = {}
        self.copied: set[int] = set()
        self.rows: dict[tuple[str, str, int], int] = {}  #: of batches that run
        self.world.deploy({"a": 40.0, "b": 80.0})

    @rule(model=st.sampled_from(MODELS), count=st.integers(1, 30), slo=st.floats(0.5, 300.0))
    def send(self, model: str, count: int, slo: float) -> None:
        self.sent += [self.world.send(model, slo) for _ in range(count)]

    @rule(rows=st.integers(1, 40), shape=st.sampled_from(["s", "t"]))
    def send_rows(self, rows: int, shape: str) -> None:
        self.sent.append(self.world.send("a", 200.0, rows, shape))

    @rule(model=st.sampled_from(MODELS), slo=st.floats(5.0, 200.0))
    def deploy(self, model: str, slo: float) -> None:
        if model not in self.world.state.models:
            self.world.deploy({model: slo})

    @rule(index=st.integers(0, 9))
    def join(self, index: int) -> None:
        """An accelerator appears that nobody asked for."""
        gpu = replace(self.world.fleet.gpus[0], id=f"x{index}")
        if gpu.id not in {one.id for one in self.world.state.fleet.gpus}:
            self.world.runtime.join(self.world._device(gpu))

    @rule(index=st.integers(0, 5))
    def wait(self, index: int) -> None:
        """The code of a running batch calls another model."""
        running = [live for live in self.world.state.partitions.values() if not live.ahead_ms]
        running = [live for live in running if live.batch is not None]
        if running and (batch := running[index % len(running)].batch) is not None:
            run = batch.run
            self.world.runtime.deliver(BatchWaits(run.gpu, run.partition, run.batch.id))

    @rule()
    def wake(self) -> None:
        self.world.runtime.deliver(Woke())
        self.world.runtime.deliver(EpochEnded())

    @invariant()
    def never_two_replies(self) -> None:
        counts = Counter(reply.request.id for _, reply in self.world.replies)
        assert all(count == 1 for count in counts.values())

    @invariant()
    def what_happened_since_is_legal(self) -> None:
        since, self.seen = self.world.log[self.seen :], len(self.world.log)
        for _, event, commands in since:
            self._work_only_where_it_may_be(event, commands)
            self._nothing_is_asked_of_an_accelerator_that_is_not_there(event, commands)
            self._batches_lie_in_a_row_where_they_were_copied(event, commands)

    def _work_only_where_it_may_be(self, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, BatchWaits):
            self.waiting[event.batch] = event.partition
        if isinstance(event, WorkFinished):
            work, well = event.work, event.failure is None
            if isinstance(work, Run):
                self.waiting.pop(work.batch.id, None)
                self.busy[work.partition].remove(work.batch.model)
            elif isinstance(work, CreatePartition) and well:
                self.carved.add(work.partition)
            elif isinstance(work, Load) and well:
                self.loaded.add((work.partition, work.model))
        for command in commands:
            if isinstance(command, Run):
                assert command.partition in self.carved
                assert (command.partition, command.batch.model) in self.loaded
                self.busy[command.partition].append(command.batch.model)
                waiting = sum(one == command.partition for one in self.waiting.values())
                assert len(self.busy[command.partition]) <= self.most + waiting
            elif isinstance(command, CreatePartition | ReleasePartition):
                assert not self.busy[command.partition]
            elif isinstance(command, Unload):
                assert command.model not in self.busy[command.partition]

    def _nothing_is_asked_of_an_accelerator_that_is_not_there(
        self, event: Event, commands: Sequence[Command]
    ) -> None:
        if isinstance(event, GpuJoined):
            self.there.add(event.gpu.id)
        elif isinstance(event, GpuLeft):
            self.there.discard(event.gpu)
        held = {c.gpu for c in commands if isinstance(c, CreatePartition | Load | Run)}
        assert held <= self.there
        self.there -= {c.gpu for c in commands if isinstance(c, DismissGpu)}

    def _batches_lie_in_a_row_where_they_were_copied(
        self, event: Event, commands: Sequence[Command]
    ) -> None:
        if isinstance(event, WorkFinished) and isinstance(event.work, CopyInputs):
            self.copied.add(event.work.request.id)
        elif isinstance(event, WorkFinished) and isinstance(event.work, Run):
            ended = {request.id for request in event.work.batch.requests}
            self.rows = {row: owner for row, owner in self.rows.items() if owner not in ended}
        for command in commands:
            if isinstance(command, CopyInputs):
                request, at = command.request, command.slot
                assert at >= 0 and at + request.rows <= command.slots
                self.slots[request.id] = at
                self.copied.discard(request.id)
                keys = {(command.gpu, request.model, at + row) for row in range(request.rows)}
                assert not keys & self.rows.keys(), "rows of a running batch were overwritten"
            elif isinstance(command, Run) and command.batch.slot is not None:
                at = command.batch.slot
                for request in command.batch.requests:
                    assert self.slots[request.id] == at and request.id in self.copied
                    for row in range(request.rows):
                        self.rows[command.gpu, request.model, at + row] = request.id
                    at += request.rows

    @invariant()
    def memory_is_never_exceeded(self) -> None:
        """What is loaded, being loaded and being unloaded fits, unless one plan alone does not."""
        state = self.world.state
        for gpu in state.fleet.gpus:
            wanted = [s.model for p in state.target.partitions if p.gpu == gpu.id for s in p.slots]
            there = [
                m
                for live in state.partitions.values()
                if live.gpu == gpu.id
                for m in live.model_states
            ]
            if needed_bytes(wanted, TRUTH, gpu) <= gpu.memory_bytes:
                assert needed_bytes(there, TRUTH, gpu) <= gpu.memory_bytes

    @invariant()
    def states_are_legal(self) -> None:
        for live in self.world.state.partitions.values():
            assert live.state is not PartitionState.GONE
            assert live.batch is None or live.state in (
                PartitionState.READY,
                PartitionState.DRAINING,
            )
            assert live.next_batch is None or live.batch is not None

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.end(5_000.0)
        self.what_happened_since_is_legal()
        for at_ms, reply in self.world.replies:
            if reply.outcome is Outcome.OK:
                assert at_ms <= reply.request.deadline_ms


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestEngineLaws = EngineMachine.TestCase
