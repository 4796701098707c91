"""A fleet with a node that lies, then with a controller that lies to its nodes."""

import json
import os
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from unittest.mock import patch

from bench.attack.attack import Ground, Result
from bench.attack.bystander import MODEL, SLO_MS, Bystander
from bench.attack.calls import HttpCaller, body
from bench.attack.lying import LyingPeer, adjacent_ports, lying_controller, lying_node
from bench.attack.repository import write_model
from bench.attack.stand import Stand

_KEY: Final = "attack"
#: How long SIGTERM may take.
_ENDS_S: Final = 10.0
#: What is said of how long a request has been under way, by a router.
_ELAPSED: Final = ("-1", "nan", "inf", "1e400", "9" * 4300, "", "\xfc", "1e3")


def wait_served(stand: Stand, model: str) -> None:
    """Return once a controller's router has the model.

    Raises:
        TimeoutError: it has not after 30 s.
    """
    ends_s = time.monotonic() + 30.0
    while stand.get(f"/v2/models/{model}/ready")[0] != 200:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"the fleet does not serve {model}")
        time.sleep(0.1)


class _Node(Stand):
    """A node that fetches its models, and trusts them."""

    def __init__(self, cache: Path, port: int) -> None:
        self._start(
            "serve", "--assigned", "--node", "honest", "--trust-models", "all",
            "--profiles", str(cache), "--node-key-file", str(cache / "key"), "--metrics-port", "0",
            "--http-port", str(port), "--grpc-port", str(port + 1),
        )  # fmt: skip


class _Controller(Stand):
    """`interlace fleet serve` over nodes of this machine, by name and HTTP port."""

    ready = r"HTTP \S+?:(\d+), gRPC \S+?:(\d+)"

    def __init__(self, root: Path, cache: Path, nodes: dict[str, int]) -> None:
        named = ",".join(f"{name}=127.0.0.1:{port}" for name, port in nodes.items())
        ports, key = adjacent_ports(), str(cache / "key")
        self._start(
            "fleet", "serve", str(root), "--nodes", named, "--http-port", str(ports),
            "--grpc-port", str(ports + 1), "--node-key-file", key, "--admin-key-file", key,
        )  # fmt: skip


def fleet(ground: Ground) -> Result:
    """A node that lies beside an honest one, then a controller and a router that lie to that."""
    result, port = Result(0), adjacent_ports()
    folder = Path(tempfile.mkdtemp(dir=ground.folder))
    root, cache = folder / "models", ground.folder / "profiles"
    root.mkdir()
    cache.mkdir(exist_ok=True)
    (cache / "key").write_text(_KEY)
    write_model(root, MODEL.model, MODEL.factor, SLO_MS)
    with ExitStack() as ends:
        ends.enter_context(patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}))
        node = _Node(cache, port)
        ends.callback(node.stop)
        node.wait_ready()
        liar = lying_node(port, ground.seed)
        ends.callback(liar.close)
        liar.lies = False
        controller = _Controller(root, cache, {"honest": port, "liar": liar.port})
        ends.callback(controller.stop)
        controller.wait_ready()
        wait_served(controller, MODEL.model)
        with Bystander(controller) as quiet:
            time.sleep(5.0)
        result.figures["quiet"] = quiet.figures
        liar.lies = True
        _lies(ground, controller, liar, result)
        _ends(controller, "controller", result)
        _false_orders(ground, node, result)
        _false_routers(node, result)
        result.broken["files outside of the node's folder"] += _outside(folder, root)
        _ends(node, "node", result)
    return result


def _lies(ground: Ground, controller: Stand, liar: LyingPeer, result: Result) -> None:
    """What the node says is odd in one value of two, and comes whole, in part, or never."""
    ends_s = time.monotonic() + ground.count(60, 5)
    with Bystander(controller) as beside:
        while time.monotonic() < ends_s:
            try:
                status = controller.get("/v2/fleet")[0]
            except OSError:
                status = 0
            result.broken["the controller does not say how the fleet is"] += status != 200
            time.sleep(0.5)
    caller = HttpCaller(controller.http_port)
    with suppress(OSError):
        status, _ = caller.post("/v2/fleet/plan", b"{}", **{"X-API-Key": _KEY})
    result.broken["the controller plans no more"] += status != 200
    result.tried += liar.asked
    _blame("lying node", beside, result)
    result.figures["bystander"] = beside.figures


def _false_orders(ground: Ground, node: Stand, result: Result) -> None:
    """Whoever has the node key sends orders; the files are where nobody honest is."""
    controller, caller = lying_controller(ground.seed), HttpCaller(node.http_port)
    with Bystander(node) as beside:
        for number in range(ground.count(40, 4)):
            order = {"term": 1_000_000 + number, "digest": str(number)}
            order["source"] = f"127.0.0.1:{controller.port}"
            data = json.dumps(order).encode()
            status, _ = caller.post("/v2/node/files", data, **{"X-API-Key": _KEY})
            result.broken[f"an order is answered {status}"] += status != 200
            result.tried += 1
            time.sleep(1.0)
    controller.close()
    _blame("lying controller", beside, result)


def _false_routers(node: Stand, result: Result) -> None:
    """Requests that say when they came, in numbers that are none."""
    data = body([1.0, 2.0, 3.0, 4.0])
    for elapsed in _ELAPSED:
        head = (
            f"POST /v2/models/{MODEL.model}/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            f"Interlace-Elapsed-Ms: {elapsed}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", node.http_port), timeout=10.0) as connection:
            connection.sendall(head.encode("latin-1") + data)
            status = connection.recv(12)[9:12].decode()
        result.broken[f"elapsed '{elapsed[:9]}' is answered {status}"] += status[:1] not in "24"
        result.tried += 1


def _blame(what: str, beside: Bystander, result: Result) -> None:
    beside.blame(result.broken, f"{what}: ")
    statuses = beside.figures["statuses"]
    good = statuses.get("200", 0) + statuses.get("OK", 0)
    if good < 0.95 * beside.figures["calls"]:
        result.broken[f"{what}: bystander refused"] += beside.figures["calls"] - good
    result.figures[what] = beside.figures


def _outside(folder: Path, root: Path) -> int:
    own = (folder / "cache", root)
    made = [path for path in folder.rglob("*") if not any(path.is_relative_to(o) for o in own)]
    return len(made) + sum(path.name == "odd-file" for path in folder.rglob("*"))


def _ends(stand: Stand, what: str, result: Result) -> None:
    """SIGTERM ends it, whatever it is in the middle of."""
    lived = stand.process.poll() is None
    result.broken[f"the {what} ended by itself"] += not lived
    result.broken[f"traceback in the {what}'s log"] += stand.text.count("Traceback")
    result.figures[f"{what} stop"] = ended = stand.stop()
    result.broken[f"the {what} outlives SIGTERM"] += ended["exit_s"] > _ENDS_S
    result.broken[f"the {what} leaves processes"] += ended["left_processes"]
