"""What keeps a machine's node: restarts, ports, ends; and which machines of Ray have nodes."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path

import psutil
from hypothesis import given
from hypothesis import strategies as st

from interlace.fleet.node_keeper import Backoff, NodeKeeper, NodeLaunch, claimed_ports
from interlace.fleet.ray_nodes import Machine, machines_of
from tests.server.fakes import wait_until

HOST = "127.0.0.1"


@given(st.lists(st.floats(0.0, 59.0), min_size=1, max_size=30))
def test_each_wait_is_twice_the_one_before_up_to_the_longest(ran_s: list[float]) -> None:
    backoff = Backoff(0.5, 30.0, 60.0)
    waits = [backoff.after(one) for one in ran_s]
    assert waits[0] == 0.5
    assert all(b == min(2 * a, 30.0) for a, b in pairwise(waits))
    assert backoff.after(60.0) == 0.5


def test_keepers_of_one_machine_get_other_ports() -> None:
    with claimed_ports(20_000, HOST) as one, claimed_ports(20_000, HOST) as other:
        assert len({one, one + 1, one + 2, other, other + 1, other + 2}) == 6
        with socket.create_server((HOST, 0)) as taken:
            port = taken.getsockname()[1]
            with claimed_ports(port - 1, HOST) as third:
                assert third > port
    with claimed_ports(20_000, HOST) as again:
        assert again == one
    for both in ("::", "[::]", "localhost"):
        with claimed_ports(20_000, both) as found:
            assert found >= 20_000


def test_a_node_that_ends_is_started_again_and_ends_with_its_keeper(tmp_path: Path) -> None:
    # No such folder: the node ends at once, each time it is started.
    launch = NodeLaunch(str(tmp_path / "none"), admin_key="secret", first_port=21_000)
    keeper = NodeKeeper(launch, "a", HOST, "z", Backoff(0.01, 0.02))
    seen: set[int] = set()

    def twice() -> bool:
        seen.add(keeper.pid())
        return len(seen - {0}) >= 2

    wait_until(twice)
    wait_until(lambda: keeper.node() is not None)
    node, pid = keeper.node(), keeper.pid()
    assert node is None or (node.name, node.host, node.grpc_port) == ("a", HOST, node.http_port + 1)
    keeper.end()
    assert keeper.node() is None and keeper.pid() == 0
    assert not pid or not psutil.pid_exists(pid)


def told(number: int, alive: bool = True, gpus: float | None = 1.0) -> dict[str, object]:
    """A node as Ray tells it."""
    resources = {"CPU": 4.0} | ({} if gpus is None else {"GPU": gpus})
    return {
        "NodeID": f"{number:056x}", "Alive": alive, "NodeManagerAddress": f"10.0.0.{number}",
        "Resources": resources, "Labels": {},
    }  # fmt: skip


def test_machines_are_those_that_live_and_have_gpus() -> None:
    zoned = {**told(5), "Labels": {"ray.io/availability-zone": "west-1"}}
    dead = {**told(4), "Alive": False, "Resources": {}}
    found = machines_of([zoned, dead, told(3, gpus=None), told(2, alive=False), told(1, gpus=8.0)])
    assert found == [
        Machine(f"{1:056x}", "10.0.0.1", "interlace-000000000001", 8.0),
        Machine(f"{5:056x}", "10.0.0.5", "west-1", 1.0),
    ]
