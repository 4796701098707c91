"""Laws of cold starts: random traffic, faults, budgets and rows, on links that are shared."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from interlace.core.hardware import Fleet, Trait
from interlace.core.loading import HostLinks, HostTier, WeightPath
from interlace.core.messages import (
    CancelFetch,
    Deployment,
    Evict,
    Failure,
    Fetch,
    GpuLeft,
    Load,
    ModelsDeployed,
    ModelWithdrawn,
    PartitionLost,
    ReleasePartition,
    Run,
    TierChanged,
    Unload,
    Woke,
    WorkFinished,
)
from interlace.core.plan import Demand
from interlace.core.profile import LayerProfile, Profile
from interlace.core.request import Outcome, Request
from interlace.engine.fetch_scheduler import AT_ONCE
from interlace.policy.catalog import resolve
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from tests.builders import World, line_profile, machine
from tests.laws.world_machine import WorldMachine

MODELS = ("a", "b", "c", "d", "e")
#: A table that is read by rows, and layers that are slower to read than to copy.
_READ_MS = (1.2, 9.0, 9.0, 9.0)


def _layered(name: str, nbytes: int) -> Profile:
    layers = tuple(
        LayerProfile(str(index), nbytes, 2.0, 0.5, read_ms, "Linear", 9.0, 3.0 * read_ms)
        for index, read_ms in enumerate(_READ_MS)
    )
    plain = line_profile(name, 1.5, 0.5)
    return replace(plain, weights_bytes=4 * nbytes, activation_bytes=1, layers=layers)


#: "e" has no profile by layer: its weights stay.
TRUTH = {
    **{name: _layered(name, 50 + 25 * index) for index, name in enumerate("abcd")},
    "e": line_profile("e", weights_bytes=100),
}
BYTES = {name: [layer.weights_bytes for layer in one.layers] for name, one in TRUTH.items()}


class ColdMachine(WorldMachine):
    """More models than memory."""

    models = MODELS

    @initialize(
        cold=st.sampled_from(sorted(COLD_POLICIES)),
        budget=st.sampled_from([500, 700, 1_000, 2_000]),
        there=st.integers(1, 2),
        peers=st.integers(0, 1),
        pinned=st.sampled_from([None, "a"]),
        keep_ms=st.sampled_from([0.0, 20.0]),
        ahead=st.sampled_from([0.0, 2.0]),
        host=st.sampled_from([None, HostTier(900, 20.0)]),
        system=st.sampled_from(["interlace", "nexus", "clockwork", "triton"]),
    )
    def build(
        self,
        cold: str,
        budget: int,
        there: int,
        peers: int,
        pinned: str | None,
        keep_ms: float,
        ahead: float,
        host: HostTier | None,
        system: str,
    ) -> None:
        (plain,) = machine(10**6, frozenset({Trait.OVERLAPPED_REORGANISATION})).gpus
        names = ("switch0", "switch1")
        gpus = [
            replace(
                plain,
                id=f"g{index}",
                ahead_ms=ahead,
                weights_bytes=budget,
                host=host,
                links=HostLinks(peers, 100.0, names=(names[index], *names[1 - index :][:peers])),
            )
            for index in range(there)
        ]
        self.budget, self.pinned = budget, pinned
        row = replace(resolve(system), cold=COLD_POLICIES[cold])
        self.world = World(TRUTH, Fleet(tuple(gpus)), row)
        self.sent: list[Request] = []
        self.keep_ms = keep_ms
        self.world.runtime.deliver(ModelsDeployed(tuple(self._deployment(one) for one in MODELS)))
        self.world.run(200.0)
        self.seen = 0
        self.held: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        #: Layers that plans since the last eviction had read from the host.
        self.read: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self.fetches: dict[tuple[str, str], Fetch] = {}
        self.running: Counter[tuple[str, str]] = Counter()
        self.during: dict[int, Fetch] = {}  #: batches sent beside a fetch that they need
        self.hosts: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def _deployment(self, name: str) -> Deployment:
        demand = Demand(name, 1.0, 60.0)
        pinned = name == self.pinned
        return Deployment(demand, TRUTH[name], pinned=pinned, keep_ms=self.keep_ms)

    # ------------------------------------------------------------------------------------- rules

    @rule(model=st.sampled_from(MODELS), count=st.integers(1, 10), slo=st.floats(1.0, 300.0))
    def send(self, model: str, count: int, slo: float) -> None:
        self.sent += [self.world.send(model, slo) for _ in range(count)]

    @rule(
        visits=st.lists(
            st.tuples(st.sampled_from(MODELS), st.floats(0.0, 30.0), st.sampled_from([25.0, 99.0])),
            min_size=4,
            max_size=24,
        )
    )
    def visit(self, visits: list[tuple[str, float, float]]) -> None:
        for model, gap_ms, slo_ms in visits:
            self.sent.append(self.world.send(model, slo_ms))
            self.world.run(gap_ms)

    @rule(model=st.sampled_from(MODELS))
    def deploy(self, model: str) -> None:
        if model not in self.world.state.models:
            self.world.runtime.deliver(ModelsDeployed((self._deployment(model),)))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        gpu = data.draw(st.sampled_from(sorted(self.world.devices)))
        self.world.devices[gpu].weights.fail_next(Failure("a fault"))

    @rule()
    def join(self) -> None:
        there = {gpu.id for gpu in self.world.state.fleet.gpus}
        for gpu in self.world.fleet.gpus:
            if gpu.id not in there:
                self.world.runtime.join(self.world._device(gpu))

    @rule(data=st.data(), model=st.sampled_from(MODELS), on_disk=st.booleans())
    def move(self, data: st.DataObject, model: str, on_disk: bool) -> None:
        gpu = data.draw(st.sampled_from(sorted(self.world.devices)))
        self.world.runtime.deliver(TierChanged(gpu, model, on_disk))

    @rule()
    def wake(self) -> None:
        self.world.runtime.deliver(Woke())

    # -------------------------------------------------------------------------------------- laws

    @invariant()
    def books_agree(self) -> None:
        """Held and on its way is within the budget, for the engine and on the device."""
        for name, place in self.world.state.weights_on.items():
            held = sum(one.held_bytes for one in place.models.values())
            assert place.held_bytes == held
            assert place.free_bytes >= 0
            assert self.world.devices[name].weights.held_bytes <= self.budget

    @invariant()
    def nobody_is_fetched_for_nobody(self) -> None:
        for place in self.world.state.weights_on.values():
            for fetch in place.fetches:
                entry = place.models.get(fetch.work.model)
                if entry is not None and entry.fetch is fetch and fetch.demanded:
                    assert fetch.cancelled or entry.queue.rows or entry.running

    @invariant()
    def at_most_two_fetches_on_a_link(self) -> None:
        users: Counter[str] = Counter()
        for place in self.world.state.weights_on.values():
            for fetch in place.fetches:
                users.update({place.links[number] for number in fetch.uses})
        assert all(count <= AT_ONCE for count in users.values())

    @invariant()
    def weights_come_and_go_as_they_may(self) -> None:
        for _, event, commands in self.world.log[self.seen :]:
            if isinstance(event, WorkFinished):
                self._ended(event)
            elif isinstance(event, PartitionLost):
                self._left(event.gpu, event.partition)
            elif isinstance(event, GpuLeft):
                for partition in {one for _, held in self.hosts.items() for one in held}:
                    self._left(event.gpu, partition)
            for command in commands:
                match command:
                    case Fetch():
                        key = (command.gpu, command.model)
                        assert key not in self.fetches, "fetched twice at once"
                        self.fetches[key] = command
                        via = [step.via for step in command.plan.steps]
                        on_host = {i for i, way in enumerate(via) if way is WeightPath.HOST}
                        self.read[key] |= on_host - self.held[key]
                    case CancelFetch(gpu=gpu, model=model):
                        assert (gpu, model) in self.fetches
                    case Evict(gpu=gpu, model=model):
                        assert model != self.pinned
                        assert not self.running[gpu, model], "it runs"
                        assert (gpu, model) not in self.fetches, "it is fetched"
                    case Run(gpu=gpu, batch=batch):
                        key = (gpu, batch.model)
                        self.running[key] += 1
                        fetch = self.fetches.get(key)
                        if fetch is not None and set(fetch.plan.brought) - self.held[key]:
                            self.during[batch.id] = fetch
        self.seen = len(self.world.log)

    def _ended(self, event: WorkFinished) -> None:
        work, well = event.work, event.failure is None
        match work:
            case Fetch():
                key = (work.gpu, work.model)
                if self.fetches.get(key) is work:
                    del self.fetches[key]
                if well:
                    self.held[key].update(work.plan.brought)
                    self.read[key].difference_update(work.plan.brought)
            case Evict():
                self.held[work.gpu, work.model].difference_update(work.layers)
                self.read[work.gpu, work.model].clear()
            case Run(gpu=gpu, batch=batch):
                self.running[gpu, batch.model] -= 1
                fetch = self.during.pop(batch.id, None)
                if fetch is None:
                    assert well or "weights" not in event.failure.detail, "sent without a fetch"
                elif well and fetch.plan.overlapped:
                    # That fetch may have failed, and the batch begun after the next one, or
                    # before it, by what an earlier plan had read from the host.
                    known = self.held[gpu, batch.model] | self.read[gpu, batch.model]
                    came = known.issuperset(fetch.plan.brought)
                    assert came, "a layer ran before its weights were there"
            case Load(gpu=gpu, partition=partition, model=model) if well:
                self.hosts[gpu, model].add(partition)
            case ReleasePartition(gpu=gpu, partition=partition):
                self._left(gpu, partition)
            case Unload(gpu=gpu, partition=partition, model=model):
                self._left(gpu, partition, model)
            case _:
                pass

    def _left(self, gpu: str, partition: str, model: str | None = None) -> None:
        """A partition does not have a model, or any: with its last one what is held goes."""
        for key, hosts in self.hosts.items():
            if key[0] == gpu and model in (None, key[1]):
                hosts.discard(partition)
                if not hosts:
                    self.held[key].clear()
                    self.read[key].clear()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.end(3_000.0)


ColdMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestColdLaws = ColdMachine.TestCase


def played(system: str = "interlace", cold: str = "interlace", **world: object) -> ColdMachine:
    """A world of the laws, to be led through an example by hand."""
    plain = {"there": 1, "peers": 0, "pinned": None, "keep_ms": 0.0, "ahead": 0.0, "budget": 500}
    plain["host"] = None
    one = ColdMachine()
    one.build(**plain | world, system=system, cold=cold)  # type: ignore[misc]
    return one


def kept(one: ColdMachine) -> None:
    """Every law holds, then and to the end."""
    one.books_agree()
    one.at_most_two_fetches_on_a_link()
    one.nobody_is_fetched_for_nobody()
    one.weights_come_and_go_as_they_may()
    one.teardown()
    one.weights_come_and_go_as_they_may()


def test_a_table_that_was_to_come_unasked_is_read_from_the_host_after_all() -> None:
    """A warm model stays so while the rest of it is brought, though that fails."""
    one = played()
    device = one.world.devices["g0"]
    one.world.runtime.deliver(ModelWithdrawn("d"))
    one.world.runtime.deliver(ModelWithdrawn("c"))
    one.send("a", 1, 25.0)
    while not (fetches := one.world.state.weights_on["g0"].fetches):
        one.world.run(0.5)
    assert not fetches[0].demanded
    device.weights.fail_next(Failure("a fault"))
    one.visit([("a", 4.0, 25.0)] * 3)
    kept(one)
    assert all(reply.outcome is Outcome.OK for _, reply in one.world.replies)


def test_a_batch_behind_other_work_may_begin_after_a_second_fetch() -> None:
    """The first, which it was sent beside, has failed meanwhile."""
    one = played("clockwork", "deepplan-pt", peers=1, pinned="a")
    device = one.world.devices["g0"]
    device.weights.fail_next(Failure("a fault"))
    device.kill("g0.p0")
    one.wait(84.0)
    one.visit([("a", 0.0, 25.0), ("a", 0.0, 25.0), ("a", 3.0, 25.0), ("a", 30.0, 25.0)])
    kept(one)


def test_what_is_deployed_again_is_pinned_again() -> None:
    one = played(pinned="a")
    one.world.runtime.deliver(ModelWithdrawn("a"))
    one.wait(50.0)
    one.deploy("a")
    one.visit([("b", 20.0, 99.0), ("c", 20.0, 99.0), ("a", 20.0, 99.0), ("b", 20.0, 99.0)])
    kept(one)


def test_a_batch_behind_one_that_failed_reads_what_an_earlier_plan_left_on_the_host() -> None:
    """Both fetches of its last layer fail, and it begins between them."""
    one = played("clockwork", there=2, budget=1_000, ahead=2.0)
    one.wait(97.0)
    for _ in range(2):
        one.world.devices["g0"].weights.fail_next(Failure("a fault"))
    one.visit([("d", 0.0, 25.0), ("d", 0.0, 25.0), ("a", 0.0, 25.0), ("a", 0.0, 25.0)])
    one.wait(13.0)
    kept(one)


def test_a_fetch_ends_when_all_who_waited_for_it_turn_out_to_be_late() -> None:
    """Once it is known how long it takes, the only request is not in time."""
    one = played("clockwork", there=2, budget=1_000, ahead=2.0, host=HostTier(900, 20.0))
    one.visit([("d", 0.0, 25.0), ("d", 0.0, 25.0), ("a", 0.0, 25.0), ("a", 0.0, 25.0)])
    one.world.runtime.cancel(one.sent[0])
    one.visit([("e", 25.2, 25.0), ("a", 20.2, 25.0), ("a", 8.7, 99.0), ("c", 14.7, 25.0)])
    one.world.runtime.leave("g0")
    one.visit([("e", 26.2, 25.0), ("a", 1.0, 99.0), ("a", 18.7, 25.0), ("b", 27.6, 99.0)])
    one.visit([("a", 0.0, 25.0), ("a", 0.0, 99.0), ("c", 0.0, 25.0), ("c", 1.8, 25.0)])
    one.visit([("c", 0.9, 25.0), ("d", 1.6, 25.0), ("c", 0.0, 99.0), ("c", 23.5, 25.0)])
    one.visit([("d", 0.3, 99.0), ("b", 13.0, 99.0), ("a", 4.2, 25.0), ("c", 2.6, 25.0)])
    kept(one)
