"""Requests over HTTP through a router: bytes unchanged, one answer each, tried elsewhere."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from interlace.core.errors import ServeError
from interlace.router.http.reads import NodeReader
from tests.router.scripted_node import (
    Act,
    ScriptedNode,
    answers,
    answers_after,
    hangs_up,
    says,
    silent,
)
from tests.router.stand import Made, RouterStand
from tests.server.fakes import one_to_one, wait_until
from tests.server.stand import Stand
from tests.server.wire import Reader, Response, binary_outputs, infer, request


def ask(router: RouterStand, *data: bytes) -> list[Response]:
    with router.connect() as connection:
        reader = Reader(connection)
        found = []
        for one in data:
            connection.sendall(one)
            found.append(reader.response())
        return found


def wait_until_lost(router: RouterStand, model: str, other: ScriptedNode) -> None:
    """The other node, "b", gets what the lost one had; only it says that it is there."""

    def asked() -> bool:
        router.heard("b", model)
        router.do(router.parts.directory.look)
        return len(other.heads) == 1

    wait_until(asked)


INFER = request("POST", "/v2/models/m/infer", b'{"inputs": []}', {"X-Mine": "kept"})


def test_a_request_arrives_as_it_was_sent_and_its_answer_too(made: Made) -> None:
    router, (node,) = made([answers(200, b"yes", "Content-Type: a/b", "X-Its: kept")])
    (reply,) = ask(router, INFER)
    assert (reply.status, reply.body) == (200, b"yes")
    assert reply.headers["x-its"] == "kept" and reply.headers["interlace-node"] == "a"
    assert node.bodies == [b'{"inputs": []}']
    assert b"X-Mine: kept" in node.heads[0] and b"POST /v2/models/m/infer " in node.heads[0]
    assert f"Host: 127.0.0.1:{node.port}".encode() in node.heads[0]


def test_a_connection_to_a_node_is_used_again(made: Made) -> None:
    router, (node,) = made([answers(200, b"yes")])
    assert [one.status for one in ask(router, INFER, INFER, INFER)] == [200] * 3
    assert len(node.heads) == 3


@pytest.mark.parametrize("size", [0, 10, 70_000, 5_000_000])
def test_bodies_of_every_size_pass_both_ways(made: Made, size: int) -> None:
    body = np.random.default_rng(size).bytes(size)
    router, (node,) = made([answers(200, body)])
    data = request(
        "POST", "/v2/models/m/infer", body, {"Inference-Header-Content-Length": str(min(size, 4))}
    )
    first, second = ask(router, data, data)
    assert first.body == second.body == body
    assert node.bodies == [body, body]
    wait_until(lambda: router.used_bytes == 0)
    assert router.do(lambda: router.parts.forwarder.budget.used_bytes) == 0


@pytest.mark.parametrize("status", [429, 503, 404])
def test_what_one_node_refuses_another_may_answer(made: Made, status: int) -> None:
    router, (first, second) = made([answers(status, b"no")], [answers(200, b"yes")])
    (reply,) = ask(router, INFER)
    assert (reply.status, reply.body, reply.headers["interlace-node"]) == (200, b"yes", "b")
    assert b"interlace-elapsed-ms" not in first.heads[0].lower()
    assert b"interlace-elapsed-ms" in second.heads[0].lower()


@pytest.mark.parametrize("status", [503, 404])
def test_what_the_model_itself_refuses_no_other_node_is_asked(made: Made, status: int) -> None:
    router, (_, second) = made([answers(status, b"no", "Interlace-Final: 1")], [])
    (reply,) = ask(router, INFER)
    assert (reply.status, reply.body) == (status, b"no") and not second.heads


def test_a_refusal_by_all_is_the_last_one(made: Made) -> None:
    router, nodes = made([answers(429, b"no a")], [answers(429, b"no b", "Retry-After: 7")])
    (reply,) = ask(router, INFER)
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (429, b"no b", "7")
    assert [len(node.heads) for node in nodes] == [1, 1]


@pytest.mark.parametrize(
    ("path", "wanted", "status"),
    [
        ("m", None, 503),
        ("m", ("m",), 503),
        ("m", ("k",), 404),  # taken out of the fleet's folder
        ("m/versions/7", None, 404),  # another version may be served
    ],
)
def test_a_model_that_its_node_has_just_unloaded_is_not_unknown(
    made: Made, path: str, wanted: tuple[str, ...] | None, status: int
) -> None:
    router, nodes = made([answers(404, b"no a")], [answers(404, b"no b")])
    router.do(lambda: router.parts.directory.plan_is_for(wanted, {}))
    data = request("POST", f"/v2/models/{path}/infer", b"{}")
    first, second = ask(router, data, data)
    assert (first.status, second.status) == (status, status)
    assert ("retry-after" in first.headers) == (status == 503)
    assert [len(node.heads) for node in nodes] == [2, 2]  # a refusal alone is no news of a node


def test_a_refusal_stands_if_the_next_node_has_the_model_no_more(made: Made) -> None:
    router, _ = made([answers(429, b"no a", "Retry-After: 7")], [answers(404, b"no b")])
    (reply,) = ask(router, INFER)
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (429, b"no a", "7")


@pytest.mark.parametrize("status", [400, 500, 504])
def test_other_answers_are_final(made: Made, status: int) -> None:
    router, nodes = made([answers(status, b"no")], [answers(200, b"yes")])
    (reply,) = ask(router, INFER)
    assert reply.status == status
    assert not nodes[1].heads


@pytest.mark.parametrize(
    "broken",
    [hangs_up, says(b"HTTP/1.1 200 OK\r\nContent-Le"), says(b"220 ftp\r\n\r\n"),
     says(b"HTTP/1.1 200 OK\r\n\r\nno length"),
     says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
     says(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nmore"),
     says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nm", b"ore"),
     *[says(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\nyes") for lines in (
         b"Content-Length: 3\r\nContent-Length: 3", b"Content-Length: +3", b"Content-Length: 3_",
         b"Content-Length: 3, 3", b"Content-Length: 99999999999999999999",
         b"Content-Length: -3", b"Content-Length: 3\r\nTransfer-Encoding: chunked",
         b"Content-Length: 3\r\nX: a\nSet-Cookie: b", b"Content-Length: 3\r\nX: a\rY: b",
         b"Content-Length: 3\r\nX: a\0", b"Content-Length: 3\r\n X: folded",
         b"Content-Length: 3\r\nX : b", b"Content-Length: 3\r\nno field")],
     says(b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nyes"),
     says(b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nyes"),
     says(b"HTTP/1.1 200 O\nX: b\r\nContent-Length: 3\r\n\r\nyes"),
     says(b"HTTP/1.1 999 O\r\nContent-Length: 3\r\n\r\nyes")],
)  # fmt: skip
def test_a_node_that_breaks_off_is_replaced(made: Made, broken: Act) -> None:
    router, _ = made([broken], [answers(200, b"yes")])
    assert [one.body for one in ask(router, INFER, INFER)] == [b"yes", b"yes"]


def test_heads_are_passed_without_what_is_for_one_connection(made: Made) -> None:
    fields = "Content-Type: a/b", "X-Kept: ", "X-Own: 1", "Keep-Alive: 5", "Interlace-Node: other"
    router, (node,) = made([answers(200, b"yes", *fields, "Connection: X-Own, Keep-Alive")])
    asked = {"Connection": "keep-alive, X-Mine", "X-Mine": "1", "X-Kept": "2"}
    (reply,) = ask(router, request("POST", "/v2/models/m/infer", b"{}", asked))
    assert reply.headers == {
        "content-type": "a/b", "x-kept": "", "interlace-node": "a", "content-length": "3"
    }  # fmt: skip
    assert b"\r\nX-Kept: 2" in node.heads[0]
    assert b"X-Mine" not in node.heads[0] and b"Connection" not in node.heads[0]


def test_a_kept_connection_that_was_closed_costs_nothing(made: Made) -> None:
    def last(connection: object, head: bytes) -> bool:
        answers(200, b"yes")(connection, head)  # type: ignore[arg-type]
        return False

    router, (node,) = made([last])
    assert [one.status for one in ask(router, INFER, INFER, INFER)] == [200] * 3
    assert len(node.heads) == 3


def test_a_node_that_takes_requests_and_closes_executes_each_at_most_twice(made: Made) -> None:
    together = threading.Barrier(4)

    def waits(connection: socket.socket, head: bytes) -> bool:
        together.wait(10.0)  # so that each has a connection of its own, which is then idle
        return answers(200, b"yes")(connection, head)

    router, (node,) = made([waits, waits, waits, waits, hangs_up])
    with ThreadPoolExecutor(4) as callers:
        assert [one.status for (one,) in callers.map(lambda _: ask(router, INFER), range(4))] == (
            [200] * 4
        )
    (reply,) = ask(router, INFER)
    assert reply.status == 503
    assert len(node.heads) - 4 == 2


def test_a_request_that_is_sent_anew_says_how_old_it_is(made: Made) -> None:
    again = request("POST", "/v2/models/m/infer", b"{}", {"X-Mine": "again"})
    router, (node,) = made([answers(200, b"yes"), hangs_up, answers(200, b"yes")])
    assert [one.status for one in ask(router, INFER, again)] == [200, 200]
    elapsed = [b"interlace-elapsed-ms" in head.lower() for head in node.heads]
    assert elapsed == [False, False, True]


def test_without_another_node_the_caller_hears_which_one_broke_off(made: Made) -> None:
    router, _ = made([hangs_up])
    (reply,) = ask(router, INFER)
    assert reply.status == 503
    assert "node 'a' did not answer" in reply.error


def test_a_node_that_falls_silent_is_given_up_for_another(made: Made) -> None:
    router, (node, other) = made([silent], [answers(200, b"yes")], lost_ms=500.0)
    with router.connect() as connection:
        connection.sendall(INFER)
        wait_until(lambda: len(node.heads) == 1)
        wait_until_lost(router, "m", other)
        assert Reader(connection).response().body == b"yes"


def test_a_question_that_a_node_does_not_answer_ends(made: Made) -> None:
    router, (node,) = made([silent])
    directory = router.parts.directory
    reader = router.do(lambda: NodeReader(directory, "", patience_s=0.05))
    with pytest.raises(ServeError, match=r"node 'a' did not answer within 0\.05 s"):
        router.wait(reader.ask("a", "GET", "/v2/node"))
    assert len(node.heads) == 1 and directory.links("a").http.in_flight == 0


def test_what_only_a_silent_node_can_answer_waits_for_it_in_time(made: Made) -> None:
    leave = threading.Event()

    router, (node, other) = made(
        [answers_after(leave, b"late")], [answers(200, b"yes")], lost_ms=1_000.0
    )
    router.heard("a", "m", "both", slo_ms=60_000.0)
    with ExitStack() as ends:
        callers = [ends.enter_context(router.connect()) for _ in range(2)]
        for caller, model in zip(callers, ("m", "both"), strict=True):
            caller.sendall(request("POST", f"/v2/models/{model}/infer", b"{}"))
        wait_until(lambda: len(node.heads) == 2)
        wait_until_lost(router, "both", other)
        assert Reader(callers[1]).response().body == b"yes"
        leave.set()
        assert Reader(callers[0]).response().body == b"late"


def test_a_caller_that_leaves_is_forgotten(made: Made) -> None:
    router, (node,) = made([silent])
    body = b"x" * 100_000
    header = {"Inference-Header-Content-Length": "4"}
    with router.connect() as connection:
        connection.sendall(request("POST", "/v2/models/m/infer", body, header))
        wait_until(lambda: len(node.heads) == 1)
        assert router.used_bytes >= len(body)
    wait_until(lambda: router.used_bytes == 0)


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[RouterStand, Stand, Stand]]:
    """A router over two whole servers; both have "both", each has one of its own."""
    nodes = [Stand(), Stand()]
    router = RouterStand({"a": nodes[0].port, "b": nodes[1].port})
    for name, node in zip("ab", nodes, strict=True):
        node.publish(one_to_one("both"), one_to_one(f"only_{name}"))
    yield router, *nodes
    router.close()
    for node in nodes:
        node.close()


@pytest.fixture
def fleet(two: tuple[RouterStand, Stand, Stand]) -> RouterStand:
    for name in "ab":
        two[0].heard(name, "both", f"only_{name}")
    return two[0]


def test_inferences_go_to_the_node_that_has_the_model(fleet: RouterStand) -> None:
    for name in ("only_a", "only_b", "both"):
        (reply,) = ask(fleet, infer(name, [[1.0, 2.0]]))
        assert binary_outputs(reply)["OUTPUT0"] == np.array([1, 2], np.float32).tobytes()


def test_reads_are_of_the_whole_fleet(fleet: RouterStand) -> None:
    def get(path: str) -> Response:
        return ask(fleet, request("GET", path))[0]

    assert get("/v2/models").json == {"models": ["both", "only_a", "only_b"]}
    assert get("/v2/models/only_b").json["name"] == "only_b"
    assert get("/v2/models/only_a/config").json["name"] == "only_a"
    assert get("/v2/models/only_a/ready").json["ready"] is True
    assert get("/v2/health/ready").json == {"ready": True}
    assert get("/v2").json["name"] == "interlace"
    stats = get("/v2/models/stats").json["model_stats"]
    assert [one["name"] for one in stats] == ["both", "only_a", "only_b"]
    assert get("/v2/models/none").status == 404


def test_changes_are_not_for_a_router(fleet: RouterStand) -> None:
    (reply,) = ask(fleet, request("POST", "/v2/repository/models/both/load", b"{}"))
    assert reply.status == 501 and "folder of models" in reply.error


def test_a_node_that_leaves_answers_what_it_has(made: Made) -> None:
    leave = threading.Event()

    router, (node,) = made([answers_after(leave, b"still mine")])
    with router.connect() as connection:
        connection.sendall(INFER)
        wait_until(lambda: len(node.heads) == 1)
        router.do(lambda: router.parts.directory.follow([]))
        router.do(router.parts.directory.look)
        leave.set()
        assert Reader(connection).response().body == b"still mine"
    (refused,) = ask(router, INFER)
    assert refused.status == 503 and b"it has no nodes" in refused.body
    router.do(router.parts.directory.look)
    assert len(node.heads) == 1


@pytest.mark.parametrize("header", [False, True])
def test_a_sequence_is_asked_of_one_node_whatever_happens(made: Made, header: bool) -> None:
    yes = answers(200, b"yes")
    router, nodes = made([yes], [yes, yes, answers(429, b"full"), hangs_up])
    for name in "ab":
        router.heard(name, "m", stateful=True)

    def step(id: str) -> Response:
        body = f'{{"inputs": [], "parameters": {{"sequence_id": {id}}}}}'.encode()
        headers = {"Inference-Header-Content-Length": str(len(body))} if header else {}
        path = "/v2/models/m/infer"
        return ask(router, request("POST", path, body + b"bytes" * header, headers))[0]

    ids = ["5", '"a"', "6", "7", '"b"', "8"]
    of_second = []
    for id in ids:
        before = len(nodes[1].bodies)
        assert step(id).status in (200, 429, 503)
        if len(nodes[1].bodies) > before:
            of_second.append(id)
    assert of_second and len(of_second) < len(ids)
    for _ in range(4):  # it refuses, then hangs up; the other is not asked
        asked = len(nodes[0].bodies)
        reply = step(of_second[0])
        assert len(nodes[0].bodies) == asked
    assert reply.status == 503 and b"has the state of sequence" in reply.body


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GENERATE = request("POST", "/v2/models/m/generate_stream", b'{"x": 1}')


@pytest.mark.parametrize(
    ("parts", "ending"),
    [
        ([b"6\r\ndata: \r\n", b"3\r\n1\n\n\r\n0\r\n\r\n"], b""),
        ([b"9\r\ndata: ", b"1\n\n\r\n3", b"\r\n2\n\n\r", b"\n0\r\n", b"\r\n"], b""),
        ([b"9\r\ndata: 1\n\n\r\n"], b"the stream ends: the node did not go on: it closed"),
        ([b"9\r\ndata: 1\n\n\r\n", b"no size\r\n"], b"it answered with malformed chunk size"),
    ],
)
def test_a_response_in_chunks_is_passed_as_it_comes(
    made: Made, parts: list[bytes], ending: bytes
) -> None:
    router, (_, other) = made([says(STREAM + parts[0], *parts[1:])], [answers(200, b"no")])
    with router.connect() as connection:
        connection.sendall(GENERATE)
        reader = Reader(connection)
        reply = reader.response()
        assert reply.status == 200 and reply.headers["interlace-node"] == "a"
        assert reply.body.startswith(b"data: 1\n\n") and ending in reply.body
        assert not other.bodies, "a stream is not run twice"
        router.heard("a")
        connection.sendall(INFER)
        assert reader.response().body == b"no"
