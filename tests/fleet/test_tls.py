"""A fleet whose processes speak TLS with each other, each role with a key of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from interlace.core.user_errors import UserError
from interlace.load.v2_client import V2Client
from tests.cli.planning import invoke
from tests.fleet.stand import Process, free_ports, settled, until
from tests.fleet.test_fleet import copied
from tests.server.certificates import Authority
from tests.server.grpc.test_clients import numbers, tensor

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


class SecureFleet:
    """A node that fetches its models, and its controller."""

    def __init__(self, folder: Path, authority: Authority, *node_options: str) -> None:
        self.ca, self.folder = authority.cert, folder
        self.keys = {role: self._key(role) for role in ("node", "admin", "api")}
        self.port, self.node_port = free_ports(2), free_ports(3)
        self.models = copied(folder)
        node, port = authority.issue("node"), self.node_port
        self.node = Process(
            folder, "node", "serve", "--device", "simulated", "--gpu", "h100", "--gpus", "1",
            "--assigned", "--node", "a", "--tls-cert", str(node.cert), "--tls-key", str(node.key),
            "--ca", str(node.ca), "--node-key-file", self.keys["node"], "--api-key-file",
            self.keys["api"], "--profiles", str(folder / "profiles"),
            "--http-port", str(port), "--grpc-port", str(port + 1), "--metrics-port", str(port + 2),
            *node_options,
        )  # fmt: skip
        own = authority.issue("controller")
        self.controller = Process(
            folder, "controller", "fleet", "serve", str(self.models),
            "--nodes", f"a=127.0.0.1:{port}", "--http-port", str(self.port), "--grpc-port",
            str(self.port + 1), "--tls-cert", str(own.cert), "--tls-key", str(own.key),
            "--ca", str(own.ca),
            *(part for role, file in self.keys.items() for part in (f"--{role}-key-file", file)),
        )  # fmt: skip

    def _key(self, role: str) -> str:
        path = self.folder / f"{role}.key"
        path.write_text(f"the-{role}-key")
        return str(path)

    def client(self, key: str, ca: Path | None = None) -> V2Client:
        return V2Client(f"https://127.0.0.1:{self.port}", f"the-{key}-key", ca=ca or self.ca)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in (self.node, self.controller):
            if process.lives:
                process.end()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecureFleet]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ExitStack() as ends:
        made = SecureFleet(tmp_path, Authority(tmp_path / "authority"))
        ends.callback(made.close)
        yield made


def serves(fleet: SecureFleet) -> bool:
    try:
        nodes = fleet.client("api").json("/v2/fleet")["nodes"]
    except UserError:
        return False
    return settled(nodes) == {"a"} and set(nodes["a"]["state"]["models"]) >= {"tagger", "bert"}


def test_orders_files_and_requests_go_over_tls_with_keys_of_their_own(fleet: SecureFleet) -> None:
    until(lambda: serves(fleet))
    url, ca = f"https://127.0.0.1:{fleet.port}", str(fleet.ca)
    argv = [sys.executable, "-m", "interlace", "bench", url, "tagger", "--seconds", "1", "--json"]
    argv += ["--api-key-file", fleet.keys["api"], "--ca", ca]
    (done,) = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    assert done["unanswered"] == 0 and done["offered_rps"] > 0 and done["attainment"] == 1.0

    grpc = triton.InferenceServerClient(
        f"127.0.0.1:{fleet.port + 1}", ssl=True, root_certificates=ca
    )
    with grpc as client:
        client.infer("tagger", [tensor(numbers(1, 16), "features")],
                     headers={"x-api-key": "the-api-key"})  # fmt: skip

    for role in ("api", "node"):
        with pytest.raises(UserError, match="401"):
            fleet.client(role).post("/v2/fleet/plan", {})
    assert fleet.client("admin").post("/v2/fleet/plan", {})["failure"] == ""
    with pytest.raises(UserError, match="401"):
        fleet.client("admin").text("/v2/fleet/models")
    assert set(fleet.client("node").json("/v2/fleet/models")) == {"tagger", "bert", "pair"}
    assert "clear text" not in fleet.logs(), fleet.logs()


def test_nodes_that_the_fleet_starts_speak_tls_as_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own, port = Authority(tmp_path / "authority").issue("fleet"), free_ports(2)
    process = Process(
        tmp_path, "fleet", "fleet", "serve", str(copied(tmp_path)), "--local", "1",
        "--node-options=--device simulated --gpu h100", "--http-port", str(port),
        "--grpc-port", str(port + 1), "--tls-cert", str(own.cert), "--tls-key", str(own.key),
        "--ca", str(own.ca),
    )  # fmt: skip
    client = V2Client(f"https://127.0.0.1:{port}", "", ca=own.ca)

    def ready() -> bool:
        try:
            client.text("/v2/models/tagger/ready")
        except UserError:
            return False
        return True

    try:
        until(ready)
    finally:
        process.end(signal.SIGTERM)


def test_a_fleet_that_starts_its_nodes_needs_all_files_or_none(tmp_path: Path) -> None:
    own = Authority(tmp_path / "authority").issue("fleet")
    arguments = ("fleet", "serve", str(copied(tmp_path)), "--local", "1",
                 "--tls-cert", str(own.cert), "--tls-key", str(own.key))  # fmt: skip
    result = invoke(*arguments)
    assert result.exit_code == 1 and "--ca that signed them" in str(result.exception)


@pytest.mark.parametrize(
    ("url", "warned"), [("http://10.0.0.5:8000", True), ("https://10.0.0.5:8000", False),
                        ("http://localhost:8000", False)],
)  # fmt: skip
def test_an_admin_key_in_clear_text_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, warned: bool
) -> None:
    monkeypatch.setattr(V2Client, "post", lambda client, path, order: {"done": "told"})
    (tmp_path / "key").write_text("secret")
    arguments = ("fleet", "drain", "a", url, "--admin-key-file", str(tmp_path / "key"))
    result = invoke(*arguments)
    assert result.exit_code == 0 and "told" in result.output
    assert ("goes in clear text to 10.0.0.5: give --ca" in result.output) is warned
