"""A server as one node of several: its state, plans from outside, draining."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import interlace
from interlace.assembly.server import ServeOptions
from interlace.device.simulated.answers import request_digest
from tests.assembly.test_simulated import EXAMPLE, declare, patient_example

KEY = "a-controller"


class Answer(Exception):
    """An error's status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status, self.text = status, text


class Client:
    """A controller, a router or a client of one node."""

    def __init__(self, server: interlace.Server, key: str = KEY) -> None:
        self.server, self.key = server, key

    def call(self, path: str, body: object = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        asked = Request(self.server.url + path, sent, {"X-API-Key": self.key})
        try:
            with urlopen(asked, timeout=30) as reply:
                return json.loads(reply.read() or b"null")
        except HTTPError as error:
            raise Answer(error.code, error.read().decode()) from None

    def state(self) -> Any:
        return self.call("/v2/node")

    def plan(self, generation: int, *partitions: Mapping[str, object]) -> Any:
        return self.call("/v2/node/plan", {"generation": generation, "partitions": partitions})

    def settled(self, generation: int, ready: Callable[[Any], bool] = lambda state: True) -> Any:
        end_s = time.monotonic() + 30.0
        while True:
            state = self.state()
            plan = state["plan"]
            if plan["generation"] == generation and plan["settled"] and ready(state):
                return state
            assert time.monotonic() < end_s, state
            time.sleep(0.01)

    def infer(self, model: str, number: int) -> None:
        """Fails unless the answer is this request's own."""
        values = [number, *range(127)]
        sent = {"name": "input_ids", "datatype": "INT64", "shape": [1, 128], "data": values}
        if model == "tagger":
            values = [float(number), *map(float, range(15))]
            sent = {"name": "features", "datatype": "FP32", "shape": [1, 16], "data": values}
        (found,) = self.call(f"/v2/models/{model}/infer", {"inputs": [sent]})["outputs"]
        dtype = np.float32 if model == "tagger" else np.int64
        digest = request_digest(model, [(str(sent["name"]), np.array(values, dtype).tobytes())])
        expected = [digest.hex()] if model == "tagger" else [digest[i % 32] for i in range(768)]
        assert found["data"] == expected


def part(name: str, gpu: str, share_pct: int, *models: str) -> dict[str, object]:
    slots = [{"model": model, "batch": 8, "rows_per_s": 100.0} for model in models]
    return {"id": name, "gpu": gpu, "share_pct": share_pct, "slots": slots}


def node(root: Path, tmp_path: Path, options: ServeOptions | None = None) -> interlace.Server:
    return interlace.serve(
        root, port=0, grpc_port=0, metrics_port=0, device="simulated", gpu="h100", gpus="2",
        plan="remote", profiles=tmp_path / "profiles",
        options=options or ServeOptions(admin_key=KEY, log=tmp_path / "events.log"),
    )  # fmt: skip


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with node(patient_example(tmp_path), tmp_path) as server:
        yield Client(server)


def names(state: Any) -> list[str]:
    return [one["name"] for one in state["models"]]


def test_a_node_waits_for_its_plan_and_serves_what_it_names(client: Client) -> None:
    state = client.state()
    assert state["schema"] == 1 and state["accepting"] and names(state) == []
    assert state["plan"] | {"generation": 0, "remote": True} == state["plan"]
    assert state["gpu_kind"] == "h100" and state["gpus"] == ["gpu0", "gpu1"]
    with pytest.raises(Answer, match="404"):
        client.infer("bert", 1)
    assert client.plan(5, part("p", "gpu0", 48, "bert"), part("q", "gpu1", 100, "tagger")) == {
        "generation": 5
    }
    state = client.settled(5)
    assert names(state) == ["bert", "tagger"]
    bert = state["models"][0]
    assert bert["wait_ms"] == 0 and 0 < bert["run_ms"] < 20 and bert["row_ms"] > 0
    assert bert["planned_rows_per_s"] == 100 and bert["slo_ms"] == 5000
    for number in range(20):
        client.infer("bert", number)
        client.infer("tagger", number)
    assert client.state()["now_ms"] > state["now_ms"]


def test_plans_follow_each_other_without_a_request_lost(client: Client) -> None:
    client.plan(1, part("p", "gpu0", 48, "bert"))
    client.settled(1)
    changing = True

    def flood(start: int) -> int:
        number = start
        while changing:
            client.infer("bert", number)
            number += 1
        return number - start

    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(flood, start) for start in (0, 10**6, 10**7)]
        try:
            moves: Sequence[Sequence[dict[str, object]]] = (
                [part("p", "gpu1", 24, "bert"), part("q", "gpu0", 48, "tagger")],
                [part("r", "gpu0", 100, "bert", "tagger")],
                [part("r", "gpu0", 48, "bert"), part("s", "gpu1", 48, "bert")],
            )
            for generation, partitions in enumerate(moves, 2):
                client.plan(generation, *partitions)
                client.settled(generation)
        finally:
            changing = False
    assert all(one.result() > 0 for one in sent)
    assert names(client.settled(4, lambda state: names(state) == ["bert"])) == ["bert"]
    with pytest.raises(Answer, match="404"):
        client.infer("tagger", 1)
    client.plan(5, part("q", "gpu0", 48, "tagger"))  # loaded anew
    client.settled(5, lambda state: names(state) == ["tagger"])
    client.infer("tagger", 1)


def test_of_two_controllers_the_newer_commands(client: Client) -> None:
    old, new = client, Client(client.server)
    old.plan(7, part("p", "gpu0", 48, "bert"))
    new.plan(8, part("p", "gpu0", 48, "tagger"))
    assert new.plan(8, part("p", "gpu0", 48, "tagger")) == {"generation": 8}  # an answer was lost
    for generation in (7, 8, 0, -1):
        with pytest.raises(Answer, match="obeys generation 8") as refused:
            old.plan(generation, part("p", "gpu0", 48, "bert"))
        assert refused.value.status == 409
    with pytest.raises(Answer, match="obeys generation 8"):
        old.call("/v2/node/drain", {"generation": 7})
    state = new.settled(8, lambda state: names(state) == ["tagger"])
    assert state["accepting"]


def test_only_who_has_the_key_commands(client: Client) -> None:
    stranger = Client(client.server, "somebody-else")
    for path, order in (
        ("/v2/node/plan", {"generation": 9, "partitions": []}),
        ("/v2/node/drain", {"generation": 9}),
    ):
        with pytest.raises(Answer, match="admin key") as refused:
            stranger.call(path, order)
        assert refused.value.status == 401
    assert stranger.state()["plan"]["generation"] == 0


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([part("p", "gpu0", 48, "brt")], "did you mean bert"),
        ([part("p", "gpu7", 48, "bert")], "on 'gpu7'; expected one of gpu0, gpu1"),
        ([part("p", "gpu0", 50, "bert")], r"cannot be cut into \[50\] %"),
        ([part("p", "gpu0", 60, "bert"), part("q", "gpu0", 60, "bert")], "cannot be cut"),
        ([part("p", "gpu0", 48, "bert", "bert")], "every model once"),
        ([part("p", "gpu0", 48, "bert"), part("p", "gpu1", 48, "bert")], "there twice"),
        ([{"id": "p"}], "failed to parse"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused_whole(
    client: Client, partitions: list[dict[str, object]], expected: str
) -> None:
    with pytest.raises(Answer, match=expected):
        client.plan(3, *partitions)
    assert client.state()["plan"]["generation"] == 0


def test_a_model_that_cannot_be_loaded_is_told_and_others_serve(tmp_path: Path) -> None:
    root = tmp_path / "models"
    declare(root, "good", kind="h100")
    declare(root, "bad", ms="fast", kind="h100")
    with node(root, tmp_path) as server:
        client = Client(server)
        client.plan(1, part("p", "gpu0", 100, "good", "bad"))
        state = client.settled(1, lambda state: bool(state["plan"]["failures"]))
        assert names(state) == ["good"]
        assert "latency_ms is 'fast'" in state["plan"]["failures"]["bad"]


def test_a_drained_node_is_not_ready_until_its_next_plan(client: Client) -> None:
    client.plan(1, part("p", "gpu0", 48, "bert"))
    client.settled(1)
    assert client.call("/v2/node/drain", {"generation": 2}) == {"generation": 2}
    assert not client.state()["accepting"]
    with pytest.raises(Answer, match="503"):
        client.call("/v2/health/ready")
    client.infer("bert", 1)  # who has not heard of it is served
    client.plan(3, part("p", "gpu0", 48, "bert"))
    client.settled(3)
    assert client.state()["accepting"]


def test_a_node_that_plans_for_itself_takes_no_plan(tmp_path: Path) -> None:
    declare(tmp_path / "models", "m", kind="h100")
    alone = interlace.serve(
        tmp_path / "models", port=0, grpc_port=0, metrics_port=0, device="simulated", gpu="h100",
        profiles=tmp_path / "profiles",
    )  # fmt: skip
    with alone as server:
        client = Client(server)
        assert names(client.state()) == ["m"] and not client.state()["plan"]["remote"]
        with pytest.raises(Answer, match="--plan remote"):
            client.plan(1, part("p", "gpu0", 48, "m"))


def test_plans_from_whoever_comes_are_not_taken(tmp_path: Path) -> None:
    with pytest.raises(interlace.InputError, match="--admin-key-file"):
        node(EXAMPLE, tmp_path, ServeOptions())
