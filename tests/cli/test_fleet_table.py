"""Frames of a fleet: rates are of the time between two looks."""

from collections.abc import Iterator

import msgspec
import pytest

from interlace.cli import fleet_table
from interlace.cli.fleet_table import FleetWatch
from interlace.cli.screen import console
from interlace.core.node import ModelOutlook, NodeState
from interlace.core.user_errors import UserError
from interlace.fleet.status import FleetStatus, NodeStatus
from interlace.load.v2_client import V2Client
from tests.cli.planning import invoke

from .fakeserver import FakeServer


def status(arrived: int, began: int = 1) -> str:
    state = NodeState(began, 1, {"m": ModelOutlook(3.25, 2.0, 1.0, 50.0, arrived=arrived)})
    nodes = {"a": NodeStatus("", {"h100": 1}, state, None, "", False),
             "b": NodeStatus("", {}, None, None, "runs version 0", False)}  # fmt: skip
    return msgspec.json.encode(FleetStatus(2, "", nodes, {"k": 5.0}, {}, "")).decode()


@pytest.mark.parametrize(("began", "rate"), [(1, "75.0"), (2, "")])
def test_requests_are_counted_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], began: int, rate: str
) -> None:
    times: Iterator[float] = iter([10.0, 12.0])
    monkeypatch.setattr(fleet_table.time, "monotonic", lambda: next(times))
    texts = iter([status(100), status(250, began)])
    console().print(FleetWatch(lambda: next(texts)).look())
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith(" a ")]
    assert row[-5 if rate else -4 :] == ["m", *([rate] if rate else []), "0", "3.2", "50"]
    assert any("runs version 0" in line for line in lines)
    assert "term 2" in lines[-1] and "k: 5.0 rows/s unserved" in lines[-1]


@pytest.mark.parametrize(
    "words",
    ["status", "top --once", "plan", "drain a", "undrain a", "add a=h:8000", "remove a", "down"],
)
def test_every_command_takes_the_address_the_same_way(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    asked: list[str] = []

    def ask(client: V2Client, *_: object) -> str:
        asked.append(client.host)
        raise UserError("asked")

    monkeypatch.setattr(V2Client, "text", ask)
    monkeypatch.setattr(V2Client, "post", ask)
    result = invoke("fleet", *words.split(), "http://10.0.0.5:8000")
    assert asked == ["10.0.0.5"] and str(result.exception) == "asked"


def test_what_is_no_fleet_or_takes_no_orders_is_said() -> None:
    with FakeServer() as fake:
        with pytest.raises(UserError, match=r"no fleet is served there.*`interlace fleet serve`"):
            V2Client(fake.url).text("/v2/fleet")
        with pytest.raises(UserError, match="no fleet is served there"):
            V2Client(fake.url).post("/v2/fleet/plan", {})
        fake.key = "other"
        orders = V2Client(fake.url, None, "--admin-key-file")
        with pytest.raises(UserError, match="--admin-key-file FILE, the one that the fleet was"):
            orders.post("/v2/fleet/plan", {})
    with pytest.raises(UserError, match="is `interlace fleet serve` running there"):
        V2Client(fake.url).text("/v2/fleet")
