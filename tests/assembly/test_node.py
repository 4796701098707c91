"""A server as one node of several: its state, plans from outside, draining."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import numpy as np
import pytest

import interlace
from interlace.assembly.live_server import ServeOptions
from interlace.cli.replaying.summary import opened, steps
from interlace.core.messages import PlanChanged
from interlace.core.node import NodeModel
from interlace.core.plan import Demand
from interlace.device.simulated.answers import request_digest
from interlace.profiling.profile_csv import read_profiles
from interlace.repository.draft import read
from tests.assembly.test_simulated import declare, patient_example

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
        return self.call("/v2/node/state")

    def assign(
        self, number: int, *partitions: Mapping[str, Any], term: int = 1, **more: Any
    ) -> Any:
        models = {slot["model"]: "" for one in partitions for slot in one.get("slots", ())}
        order = {"revision": [term, number], "plan": {"partitions": partitions}, "models": models}
        return self.call("/v2/node/assignment", order | more)

    def drain(self, term: int, number: int) -> Any:
        return self.call("/v2/node/drain", {"revision": [term, number]})

    def settled(self, number: int, term: int = 1) -> Any:
        end_s = time.monotonic() + 30.0
        while True:
            state = self.state()
            if state["revision"] == [term, number] and state["settled"]:
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
        profiles=tmp_path / "profiles",
        options=options or ServeOptions(admin_key=KEY, assigned=True, node="n1", zone="left"),
    )  # fmt: skip


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with node(patient_example(tmp_path), tmp_path) as server:
        yield Client(server)


def names(state: Any) -> list[str]:
    return sorted(state["models"])


def test_a_node_waits_for_its_plan_and_serves_what_it_names(client: Client) -> None:
    state, told = client.state(), client.call("/v2/node")
    assert state["accepting"] and names(state) == [] and state["revision"] == [0, 0]
    assert (told["name"], told["zone"], told["assigned"]) == ("n1", "left", True)
    assert [(gpu["id"], gpu["kind"]) for gpu in told["gpus"]] == [
        ("gpu0", "h100"),
        ("gpu1", "h100"),
    ]
    assert told["began"] == state["began"]
    assert client.call("/v2/node/assignment") is None
    with pytest.raises(Answer, match=r"503.*not told to serve it"):
        client.infer("bert", 1)
    with pytest.raises(Answer, match="404"):
        client.infer("none", 1)
    given = client.assign(5, part("p", "gpu0", 48, "bert"), part("q", "gpu1", 100, "tagger"))
    assert given == {"revision": [1, 5]}
    asked = client.call("/v2/node/assignment")
    assert (asked["revision"], asked["models"]) == ([1, 5], {"bert": "", "tagger": ""})
    assert names(client.settled(5)) == ["bert", "tagger"]
    for number in range(20):
        client.infer("bert", number)
        client.infer("tagger", number)


def test_plans_follow_each_other_without_a_request_lost(client: Client) -> None:
    client.assign(1, part("p", "gpu0", 48, "bert"))
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
            for number, partitions in enumerate(moves, 2):
                client.assign(number, *partitions)
                client.settled(number)
        finally:
            changing = False
    assert all(one.result() > 0 for one in sent)
    assert names(client.settled(4)) == ["bert"]
    with pytest.raises(Answer, match="503"):
        client.infer("tagger", 1)
    client.assign(5, part("q", "gpu0", 48, "tagger"))  # loaded anew
    assert names(client.settled(5)) == ["tagger"]
    client.infer("tagger", 1)


def test_of_two_controllers_the_one_with_the_later_term_commands(client: Client) -> None:
    old, new = client, Client(client.server)
    old.assign(7, part("p", "gpu0", 48, "bert"))
    new.assign(1, part("p", "gpu0", 48, "tagger"), term=2)
    again = new.assign(1, part("p", "gpu0", 48, "tagger"), term=2)  # an answer was lost
    assert again == {"revision": [2, 1]}
    for term, number in ((1, 8), (2, 1), (2, 0), (0, 9)):
        with pytest.raises(Answer, match=r"n1: .* the last was of term 2 revision 1") as refused:
            old.assign(number, part("p", "gpu0", 48, "bert"), term=term)
        assert refused.value.status == 409
    with pytest.raises(Answer, match="comes too late"):
        old.drain(1, 9)
    with pytest.raises(Answer, match="Expected `int` >= 0"):
        old.assign(9, part("p", "gpu0", 48, "bert"), term=-1)
    state = new.settled(1, term=2)
    assert state["accepting"] and names(state) == ["tagger"]


def test_only_who_has_the_key_commands(client: Client) -> None:
    stranger = Client(client.server, "somebody-else")
    for path, order in (
        ("/v2/node/assignment", {"revision": [9, 9], "plan": {}, "models": {}}),
        ("/v2/node/drain", {"revision": [9, 9]}),
    ):
        with pytest.raises(Answer, match="admin key") as refused:
            stranger.call(path, order)
        assert refused.value.status == 401
    assert stranger.state()["revision"] == [0, 0]


def test_an_assignment_may_name_thousands_of_models(client: Client) -> None:
    names = [f"model-with-a-long-name-{number}" for number in range(20_000)]
    with pytest.raises(Answer, match=r"'model-with-a-long-name-0'.*not in its repository"):
        client.assign(1, part("p", "gpu0", 48, *names))


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([part("p", "gpu0", 48, "brt")], "did you mean bert"),
        ([part("p", "gpu7", 48, "bert")], "on 'gpu7'; expected one of gpu0, gpu1"),
        ([part("p", "gpu0", 50, "bert")], r"cannot be cut into \[50\] %"),
        ([part("p", "gpu0", 60, "bert"), part("q", "gpu0", 60, "bert")], "cannot be cut"),
        ([part("p", "gpu0", 48, "bert", "bert")], "every model once"),
        ([part("p", "gpu0", 48, "bert"), part("p", "gpu1", 48, "bert")], "there twice"),
        ([{"id": "p"}], "failed to parse the Assignment"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused_whole(
    client: Client, partitions: list[dict[str, object]], expected: str
) -> None:
    with pytest.raises(Answer, match=expected):
        client.assign(3, *partitions)
    assert client.state()["revision"] == [0, 0]


def test_a_model_that_cannot_be_loaded_is_told_and_others_serve(tmp_path: Path) -> None:
    root = tmp_path / "models"
    declare(root, "good", kind="h100")
    declare(root, "bad", ms="fast", kind="h100")
    with node(root, tmp_path) as server:
        client = Client(server)
        client.assign(1, part("p", "gpu0", 100, "good", "bad"))
        state = client.settled(1)
        assert names(state) == ["good"]
        assert "latency_ms is 'fast'" in state["failures"]["bad"]


def test_what_a_plan_needs_of_models_is_told_before_they_are_loaded(tmp_path: Path) -> None:
    root = patient_example(tmp_path)
    declare(root, "bad", ms="fast", kind="h100")
    with node(root, tmp_path) as server:
        client = Client(server)
        with urlopen(server.url + "/v2/node/models", timeout=30) as reply:
            found = msgspec.msgpack.decode(reply.read(), type=dict[str, NodeModel])
        assert set(found) == {"bert", "detector", "mobilenet", "resnet50", "tagger"}
        bert = found["bert"]
        assert bert.demand == Demand("bert", 1500.0, 30000.0, 32)
        assert bert.digest == read(root, "bert", 1).digest
        assert bert.profile.model == "bert" and bert.profile.gpu_kind == "h100"
        declared = read_profiles(root / "bert" / "1" / "profile.csv", "h100").profiles["bert"]
        assert bert.profile.points == declared.points
        index = {one["name"]: one for one in client.call("/v2/repository/index", {})}
        assert "latency_ms is 'fast'" in index["bad"]["reason"]
        client.assign(1, part("p", "gpu0", 48, "bert"), models={"bert": bert.digest})
        assert names(client.settled(1)) == ["bert"]


def test_files_must_be_those_of_the_assignment(client: Client, tmp_path: Path) -> None:
    given = {"bert": "0123456789abcdef"}
    with pytest.raises(Answer, match="n1: the files of model 'bert' are others") as refused:
        client.assign(1, part("p", "gpu0", 48, "bert"), models=given)
    here = re.findall("digest ([0-9a-f]{12})", refused.value.text)
    whole = read(tmp_path / "example", "bert", 1).digest
    assert here == [whole[:12]]
    client.assign(1, part("p", "gpu0", 48, "bert"), models={"bert": whole})
    with pytest.raises(Answer, match="not among its models"):
        client.assign(2, part("p", "gpu0", 48, "tagger"), models=given)


def test_another_cut_for_models_that_were_checked_reads_no_files(
    client: Client, tmp_path: Path
) -> None:
    client.assign(1, part("p", "gpu0", 48, "bert"))
    client.settled(1)
    (tmp_path / "example").rename(tmp_path / "away")
    client.assign(2, part("p", "gpu0", 24, "bert"))
    assert names(client.settled(2)) == ["bert"]
    with pytest.raises(Answer, match=r"n1: .*expected a model repository"):
        client.assign(3, part("p", "gpu0", 48, "bert", "tagger"))


def test_what_is_taken_is_logged_and_replayed(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    options = ServeOptions(admin_key=KEY, assigned=True, log=log)
    with node(patient_example(tmp_path), tmp_path, options) as server:
        client = Client(server)
        for number, share_pct in enumerate((48, 24), 1):
            client.assign(number, part(f"p{number}", "gpu0", share_pct, "bert"))
            client.settled(number)
            client.infer("bert", number)
    played = list(steps(opened(log)))
    assert len(played) > 10 and all(one.same for one in played)
    assert any(isinstance(one.event, PlanChanged) for one in played)


def test_a_drained_node_is_not_ready_until_its_next_plan(client: Client) -> None:
    client.assign(1, part("p", "gpu0", 48, "bert"))
    client.settled(1)
    assert client.drain(1, 2) == {"revision": [1, 2]}
    assert not client.state()["accepting"]
    with pytest.raises(Answer, match="503"):
        client.call("/v2/health/ready")
    client.infer("bert", 1)  # who has not heard of it is served
    client.assign(3, part("p", "gpu0", 48, "bert"))
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
        assert names(client.state()) == ["m"] and not client.call("/v2/node")["assigned"]
        with pytest.raises(Answer, match="serve with --assigned"):
            client.assign(1, part("p", "gpu0", 48, "m"))


def test_who_may_assign_must_be_said() -> None:
    with pytest.raises(interlace.InputError, match="--node-key-file"):
        ServeOptions(assigned=True)


@pytest.mark.parametrize("name", ["..", ".", "a\r\nX: y", "a/b", "\x1b[2J", "x" * 300])
def test_a_node_has_a_name_that_logs_and_paths_may_have(name: str) -> None:
    with pytest.raises(interlace.InputError, match=r"--node: node .* must have 1 to 253 letters"):
        ServeOptions(admin_key=KEY, assigned=True, node=name)
