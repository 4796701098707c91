"""Models' files, brought from the controller to nodes that lack them."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from interlace.control import model_files
from interlace.control.model_files import ControllerCalls, WantedModels
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.node import FilesOrder, ModelFiles
from interlace.fleet.model_files import FleetFiles
from interlace.repository.digest import BLOCK_BYTES, Digests, fetch, models_in
from interlace.server.http.routes import AdminRequest, HttpResponse, RouteTable
from interlace.server.tls import NO_TLS, TlsFiles
from tests.server.certificates import Authority


def write(folder: Path, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    write(tmp_path / "wanted/m", config=b"a model", **{"1_weights": bytes(BLOCK_BYTES + 7)})
    return tmp_path / "wanted"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


class Reads:
    """Blocks of the files of a folder; ``count`` of them were read."""

    def __init__(self, root: Path) -> None:
        self.count = 0
        models = models_in(root, Digests())
        self._paths = {
            digest: root / name / path
            for name, one in models.items()
            for path, (_, digest) in one.files.items()
        }

    def __call__(self, digest: str, number: int) -> bytes:
        self.count += 1
        content = self._paths[digest].read_bytes()
        return content[number * BLOCK_BYTES :][:BLOCK_BYTES]


def test_a_fetched_folder_has_the_same_files_and_reads_only_what_is_new(
    wanted: Path, own: Path
) -> None:
    read = Reads(wanted)
    fetch(own, "m", models_in(wanted, Digests())["m"], read, Digests())
    assert models_in(own, Digests()) == models_in(wanted, Digests())
    assert read.count == 3
    write(wanted / "m", config=b"changed")
    read = Reads(wanted)
    fetch(own, "m", models_in(wanted, Digests())["m"], read, Digests())
    assert models_in(own, Digests()) == models_in(wanted, Digests())
    assert read.count == 1
    assert [entry.name for entry in own.iterdir()] == ["m"]


@pytest.mark.parametrize("block", [b"other", b"a mode", b""])
def test_a_wrong_file_is_refused_and_what_was_there_stays(
    wanted: Path, own: Path, block: bytes
) -> None:
    write(own / "m", config=b"before")
    before = models_in(own, Digests())
    with pytest.raises(RepositoryError, match="expected 7 bytes of digest"):
        fetch(own, "m", models_in(wanted, Digests())["m"], lambda d, n: block, Digests())
    assert models_in(own, Digests()) == before
    assert [entry.name for entry in own.iterdir()] == ["m"]


@pytest.mark.parametrize("path", ["../m/x", "/etc/x", ""])
def test_no_path_leads_out_of_the_folder(own: Path, path: str) -> None:
    files = ModelFiles("d", {path: (0, "0" * 64)})
    with pytest.raises(RepositoryError, match="leads out"):
        fetch(own, "m", files, lambda d, n: b"", Digests())


@pytest.mark.parametrize(
    ("path", "size", "digest"),
    [("a\0b", 1, "0" * 64), ("a", 1, "\u00fc" * 64), ("a", -5, "0" * 64), ("a", 1, "0" * 63)],
    ids=["NUL", "digest", "size", "short"],
)
def test_what_is_no_file_is_refused_before_anything_is_asked_for(
    own: Path, path: str, size: int, digest: str
) -> None:
    with pytest.raises(RepositoryError, match="a printable path, a size, and a SHA-256"):
        fetch(own, "m", ModelFiles("d", {path: (size, digest)}), lambda d, n: 1 / 0, Digests())  # type: ignore[arg-type,return-value]
    assert not list(own.iterdir())


def test_more_than_the_disk_has_is_refused_before_anything_is_asked_for(own: Path) -> None:
    files = ModelFiles("d", {"a": (1 << 60, "0" * 64)})
    with pytest.raises(OSError, match="do not fit") as found:
        fetch(own, "m", files, lambda d, n: bytes(BLOCK_BYTES), Digests())
    assert found.value.errno == errno.ENOSPC and not list(own.iterdir())


class OddController:
    """Sends ``head``, then ``piece`` again and again with pauses, to whoever calls."""

    def __init__(self, head: bytes, piece: bytes, pause_s: float) -> None:
        self._head, self._piece, self._pause_s = head, piece, pause_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.source = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._send, args=self._listening.accept()[:1]).start()

    def _send(self, called: socket.socket) -> None:
        with suppress(OSError), called:
            called.sendall(self._head)
            while True:
                called.sendall(self._piece)
                time.sleep(self._pause_s)

    def close(self) -> None:
        self._listening.close()


@pytest.mark.parametrize(
    ("head", "piece", "pause_s", "words"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 4096, 0.0, "it sends more than 1000 bytes"),
        # What comes after the node has shut its end resets the connection: if it is read first.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", b"x", 0.05, "broke off|reset by peer"),
        (b"HTTP/1.1 200 OK\r\n", b"x", 0.05, "127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", b"[" * 900, 9.0, "127.0.0.1"),
    ],
    ids=["endless", "drips", "head drips", "nested"],
)
def test_whatever_a_controller_sends_a_node_says_so_and_takes_the_next_order(
    controller: Controller, own: Path, monkeypatch: pytest.MonkeyPatch,
    head: bytes, piece: bytes, pause_s: float, words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(model_files, "_CALL_S", 0.4)
    monkeypatch.setattr(model_files, "_LIST_BYTES", 1000)
    odd = OddController(head, piece, pause_s)

    async def orders() -> None:
        node = Node(own)
        node.wanted.order(FilesOrder(1, "d", odd.source))
        while not node.wanted.failures:
            await asyncio.sleep(0.01)
        (why,) = node.wanted.failures.values()
        assert re.search(words, why)
        node.wanted.order(controller.order(2))
        while node.wanted.taken != controller.files.digest:
            await asyncio.sleep(0.01)
        node.wanted.close()

    asyncio.run(orders())
    odd.close()
    assert (own / "m" / "config").read_bytes() == b"a model"


class Controller:
    """What a controller answers about the files of a folder, over HTTP."""

    def __init__(self, root: Path, tls: TlsFiles = NO_TLS) -> None:
        self.files = FleetFiles(root)
        asyncio.run(self.files.look())
        table = RouteTable(self.files.routes())

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = table.match(self.path)
                assert found is not None
                route, names = found
                body = b"one needs the admin key"
                if right := self.headers["X-API-Key"] == "secret":
                    body = asyncio.run(_answer(route.respond["GET"](AdminRequest(names)))).body
                self.send_response(200 if right else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._scheme = ""
        if tls.cert is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(tls.cert, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https://"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def order(self, term: int = 1) -> FilesOrder:
        source = f"{self._scheme}127.0.0.1:{self._server.server_port}"
        return FilesOrder(term, self.files.digest, source)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


async def _answer(answer: object) -> HttpResponse:
    found = answer if isinstance(answer, HttpResponse) else await answer  # type: ignore[misc]
    assert isinstance(found, HttpResponse)
    return found


@pytest.fixture
def controller(wanted: Path) -> Iterator[Controller]:
    made = Controller(wanted)
    yield made
    made.close()


class Node:
    """A node's part, and what it was told of models that came and went."""

    def __init__(
        self, root: Path, fetches: bool = True, key: str = "secret", tls: TlsFiles = NO_TLS
    ) -> None:
        self.changes: list[tuple[list[str], list[str]]] = []
        self.wanted = WantedModels(root, fetches, ControllerCalls(key, tls), self._changed)

    async def _changed(self, new: Collection[str], gone: Collection[str]) -> None:
        self.changes.append((sorted(new), sorted(gone)))

    async def take(self, *orders: FilesOrder) -> None:
        for order in orders:
            self.wanted.order(order)
            while self.wanted.taken != order.digest and not self.wanted.failures:
                await asyncio.sleep(0.01)
        self.wanted.close()


def test_a_model_that_cannot_be_told_of_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that is no UTF-8, and a FIFO: the controller goes on with what can be read."""
    write(tmp_path / "a", config=b"one")
    write(tmp_path / "b", config=b"two")
    files = FleetFiles(tmp_path)
    asyncio.run(files.look())
    both = files.models
    (tmp_path / "b" / os.fsdecode(b"\xff.txt")).write_bytes(b"odd")
    os.mkfifo(tmp_path / "a" / "pipe")
    write(tmp_path / "c", config=b"three")
    for _ in range(2):
        asyncio.run(files.look())
    assert files.models == {**both, "c": files.models["c"]}
    (told,) = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert "a FIFO" in told and "UTF-8" in told


def test_a_node_has_what_its_controller_wants(controller: Controller, own: Path) -> None:
    write(own / "old", config=b"of another day")
    node = Node(own)
    asyncio.run(node.take(controller.order()))
    assert node.wanted.failures == {}
    assert models_in(own, Digests()) == controller.files.models
    assert node.changes == [(["m"], [])]


def test_files_come_over_tls_from_a_controller_of_the_same_authority(
    wanted: Path, own: Path, tmp_path: Path
) -> None:
    files = Authority(tmp_path / "authority").issue("controller", "controller.example")
    other = Authority(tmp_path / "other").issue("node")
    controller = Controller(wanted, files)
    try:
        for tls in (NO_TLS, other):
            node = Node(own, tls=tls)
            asyncio.run(node.take(controller.order()))
            assert "CERTIFICATE_VERIFY_FAILED" in node.wanted.failures["*"]
            assert "start this node with --ca" in node.wanted.failures["*"]
        node = Node(own, tls=files)
        asyncio.run(node.take(controller.order()))
        assert node.wanted.failures == {}
        assert models_in(own, Digests()) == controller.files.models
    finally:
        controller.close()


def test_a_node_with_an_authority_shows_no_key_in_clear_text(
    controller: Controller, own: Path, tmp_path: Path
) -> None:
    node = Node(own, tls=Authority(tmp_path / "authority").issue("node"))
    asyncio.run(node.take(controller.order()))
    assert "it would be called in clear text" in node.wanted.failures["*"]


async def test_models_that_come_change_and_go_are_told(
    controller: Controller, wanted: Path, own: Path
) -> None:
    node = Node(own)
    await node.take(controller.order())
    write(wanted / "m", config=b"changed")
    write(wanted / "k", config=b"new")
    await controller.files.look()
    await node.take(controller.order())
    (wanted / "k/config").unlink()
    (wanted / "k").rmdir()
    await controller.files.look()
    await node.take(controller.order())
    assert node.changes == [(["m"], []), (["k", "m"], []), ([], ["k"])]


async def test_an_older_controller_is_refused(controller: Controller, own: Path) -> None:
    node = Node(own)
    node.wanted.order(controller.order(term=2))
    with pytest.raises(ServeError, match="term 1 comes too late"):
        node.wanted.order(controller.order(term=1))
    node.wanted.close()


def test_other_files_of_a_node_that_does_not_fetch_are_left_and_named(
    controller: Controller, own: Path
) -> None:
    write(own / "m", config=b"another")
    node = Node(own, fetches=False)
    asyncio.run(node.take(controller.order()))
    assert "bring the same files to every node" in node.wanted.failures["m"]
    assert (own / "m/config").read_bytes() == b"another"


def test_a_wrong_key_is_named(controller: Controller, own: Path) -> None:
    node = Node(own, key="wrong")
    asyncio.run(node.take(controller.order()))
    assert "admin key" in node.wanted.failures["*"]


def test_a_controller_that_cannot_be_reached_is_named(own: Path) -> None:
    node = Node(own)
    asyncio.run(node.take(FilesOrder(1, "d", "127.0.0.1:1")))
    assert "the controller at 127.0.0.1:1: " in node.wanted.failures["*"]


def test_a_full_disk_is_named_with_its_folder(
    controller: Controller, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(own))

    monkeypatch.setattr(model_files, "fetch", full)
    node = Node(own)
    asyncio.run(node.take(controller.order()))
    assert node.wanted.failures["m"] == f"no room for its files in {own}: make room there"
