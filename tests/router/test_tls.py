"""A router's links to nodes over TLS: HTTP and gRPC, and nodes that it does not believe."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from interlace.core.node import Node
from interlace.router.http.reads import NodeReader
from interlace.server.tls import GRPC, HTTP, NO_TLS, TlsFiles
from tests.router.stand import RouterStand
from tests.server.certificates import Authority
from tests.server.fakes import one_to_one, wait_until
from tests.server.grpc.fakes import Main
from tests.server.grpc.test_clients import numbers, tensor
from tests.server.stand import Stand
from tests.server.wire import Reader, binary_outputs, exchange, infer


class SecureNode:
    """A node that asks for certificates of the authority, and a router to it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        files = self.authority.issue("node")
        self.files = files
        self.http = Stand(tls=files.listener(HTTP, mutual=True))
        self.http.publish(one_to_one("echo"))
        self.grpc = Main(tls=files.listener(GRPC, mutual=True))

    def router(self, tls: TlsFiles) -> RouterStand:
        made = RouterStand({"a": self.http.port}, {"a": self.grpc.port}, tls=tls)
        made.heard("a", "echo")
        return made

    def close(self) -> None:
        self.http.close()
        self.grpc.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    made = SecureNode(tmp_path_factory.mktemp("authority"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(node: SecureNode) -> Iterator[RouterStand]:
    with node.router(node.authority.issue("router")) as made:
        yield made


@pytest.mark.parametrize("size", [4, 16_000, 150_528, 3_000_000])
def test_any_size_goes_both_ways_over_http(router: RouterStand, size: int) -> None:
    value = numbers(1, size)
    with router.connect() as connection:
        reader = Reader(connection)
        for _ in range(3):
            connection.sendall(infer("echo", value))
            reply = reader.response()
            assert reply.status == 200, reply.body
            assert binary_outputs(reply)["OUTPUT0"] == value.tobytes()


@pytest.mark.parametrize("size", [4, 4090, 16_000, 150_528, 3_000_000])
def test_any_size_goes_both_ways_over_grpc(router: RouterStand, size: int) -> None:
    value = numbers(1, size)
    with triton.InferenceServerClient(f"127.0.0.1:{router.grpc_port}") as client:
        for _ in range(3):
            result = client.infer("echo", [tensor(value)])
            assert np.array_equal(result.as_numpy("OUTPUT"), value)


def refused_both_ways(router: RouterStand) -> None:
    with router.connect() as connection:
        assert exchange(connection, infer("echo", numbers(1, 4))).status == 503
    with (
        triton.InferenceServerClient(f"127.0.0.1:{router.grpc_port}") as client,
        pytest.raises(triton.InferenceServerException, match="UNAVAILABLE"),
    ):
        client.infer("echo", [tensor(numbers(1, 4))])


def test_a_node_of_another_authority_gets_nothing(
    node: SecureNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = len(node.grpc.plane.calls)
    other = Authority(tmp_path / "other").issue("router")
    with node.router(other) as router, caplog.at_level(logging.WARNING):
        refused_both_ways(router)
    assert "node a: no TLS with it: [SSL: CERTIFICATE_VERIFY_FAILED]" in caplog.text
    assert len(node.grpc.plane.calls) == calls


def test_a_router_without_a_certificate_gets_nothing(node: SecureNode) -> None:
    with node.router(replace(node.files, cert=None, key=None)) as router:
        refused_both_ways(router)


@pytest.mark.parametrize(
    ("host", "secure", "secret", "warned"),
    [
        ("127.0.0.1", False, True, False),
        ("10.0.0.7", False, True, True),
        ("10.0.0.7", True, True, False),
        ("10.0.0.7", False, False, False),
    ],
)
def test_a_secret_key_in_clear_text_is_warned_of_once(
    node: SecureNode, caplog: pytest.LogCaptureFixture,
    host: str, secure: bool, secret: bool, warned: bool,
) -> None:  # fmt: skip
    with RouterStand({}, tls=node.files if secure else NO_TLS) as router:
        directory = router.parts.directory
        router.do(lambda: directory.follow([Node("a", host, 8000)]))
        reader = router.do(lambda: NodeReader(directory, "key", secret=secret))
        for _ in range(2):
            router.do(lambda: reader.request("a", "GET", "/v2/node"))
    said = "the node or admin key goes in clear text to node a"
    assert caplog.text.count(said) == int(warned)


def test_nodes_of_a_service_are_known_by_its_name(tmp_path: Path) -> None:
    """Addresses of a DNS name change; their certificates name the service."""
    authority = Authority(tmp_path / "authority")
    files = authority.issue("node", "nodes.example")
    with Stand(tls=files.listener(HTTP)) as node, RouterStand({}, tls=files) as router:
        node.publish(one_to_one("echo"))
        for service, status in (("", 503), ("nodes.example", 200)):
            there = Node(f"n{service}", "127.0.0.1", node.port, 0, service)
            router.do(lambda there=there: router.parts.directory.follow([there]))
            router.heard(there.name, "echo")
            with router.connect() as connection:
                assert exchange(connection, infer("echo", numbers(1, 4))).status == status
        wait_until(lambda: node.used_bytes == 0)
