"""Models that misbehave, hostile folders of models, and models that are loaded and unloaded."""

import http.client
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.attack.attack import OTHER, VICTIM, Ground, Result, grown
from bench.attack.bystander import MODEL, Bystander
from bench.attack.calls import HttpCaller, body
from bench.attack.repository import MISBEHAVIOURS, TOLD, misbehaving, write_model
from bench.attack.stand import NotReadyError, Stand
from bench.attack.traffic import Traffic

#: The SLO of these models is 100 ms: an answer later than this is no answer at its deadline.
_LATE_ANSWER_S: Final = 1.0


def models(ground: Ground) -> Result:
    """Each misbehaviour three times, beside a bystander; what it cost, and the way back."""
    root = ground.repository()
    names = {what: misbehaving(root, what) for what in MISBEHAVIOURS}
    stand = ground.start(root)
    result = Result(0)
    try:
        stand.wait_ready()
        with Bystander(stand) as quiet:
            time.sleep(5.0)
        result.figures["quiet"] = quiet.figures
        for what, name in names.items():
            with Bystander(stand) as beside:
                answers = [_tell(stand.http_port, name) for _ in range(3)]
                back_s = _back_s(stand.http_port, name, 60.0)
            result.tried += len(answers)
            late = sum(seconds > _LATE_ANSWER_S for _, seconds in answers)
            result.broken[f"{what}: answer after more than 1 s"] += late
            result.broken[f"{what}: model not back"] += back_s is None
            beside.blame(result.broken, f"{what}: ")
            result.figures[what] = {"answers": answers, "back_s": back_s, "beside": beside.figures}
    finally:
        result.figures["stop"] = stand.stop()
    return result


def _tell(port: int, name: str) -> tuple[Any, float]:
    """Status and seconds of the call that makes the model misbehave."""
    caller = HttpCaller(port)
    began_s = time.monotonic()
    try:
        status: Any = caller.post(f"/v2/models/{name}/infer", body([2 * TOLD, 0.0, 0.0, 0.0]))[0]
    except (OSError, http.client.HTTPException) as error:
        status = type(error).__name__
    caller.close()
    return status, round(time.monotonic() - began_s, 3)


def _back_s(port: int, name: str, limit_s: float) -> float | None:
    """Seconds until the model answers an ordinary request rightly."""
    caller, began_s = HttpCaller(port), time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if caller.ask(name, 2.0, [1.0, 2.0, 3.0, 4.0]) == "200":
            caller.close()
            return round(time.monotonic() - began_s, 2)
        time.sleep(0.1)
    caller.close()
    return None


#: Makes a file when it is loaded.
_PICKLE: Final = "cos\nsystem\n(S'touch owned'\ntR."
_HEAD: Final = "import torch\nINPUTS={'x': ('FP32', (4,))}\nOUTPUTS={'y': ('FP32', (4,))}\n"


def _toml(text: str) -> Callable[[Path], None]:
    return lambda folder: _text(folder / "interlace.toml", text)


def _triton(text: str) -> Callable[[Path], None]:
    return lambda folder: _text(folder / "config.pbtxt", text)


def _code(text: str) -> Callable[[Path], None]:
    return lambda folder: _text(folder / "1" / "model.py", text)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _replaced(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return act


def _binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 30)


#: What is done to a folder that would be served otherwise.
HOSTILE: Final[dict[str, Callable[[Path], object]]] = {
    "toml_5000_digits": _toml("slo_ms = " + "9" * 5000),
    "toml_nested": _toml("a = " + "[" * 5000 + "]" * 5000),
    "toml_binary": _replaced("interlace.toml", _binary),
    "toml_nan": _toml("slo_ms = nan"),
    "toml_negative": _toml("slo_ms = -5"),
    "toml_fifo": _replaced("interlace.toml", os.mkfifo),
    "toml_folder": _replaced("interlace.toml", Path.mkdir),
    "toml_zero": _replaced("interlace.toml", lambda path: path.symlink_to("/dev/zero")),
    "pbtxt_20_digits": _triton("max_batch_size: 99999999999999999999"),
    "pbtxt_nested": _triton("a { " * 5000),
    "pbtxt_binary": _replaced("config.pbtxt", _binary),
    "pbtxt_huge_dims": _triton(
        'input [{name: "x" data_type: TYPE_FP32 dims: [9223372036854775807, 4]}]'
    ),
    "weights_fifo": _replaced("1/weights.data", os.mkfifo),
    "model_fifo": _replaced("1/model.py", os.mkfifo),
    "model_zero": _replaced("1/model.py", lambda path: path.symlink_to("/dev/zero")),
    "model_loop": _replaced("1/model.py", lambda path: path.symlink_to(path)),
    "model_dangling": _replaced("1/model.py", lambda path: path.symlink_to("/no/such/file")),
    "model_secret": _replaced("1/model.py", lambda path: path.symlink_to("/etc/passwd")),
    "model_empty": _code(""),
    "model_syntax": _code("def create_model(:"),
    "model_raises": _code(_HEAD + "raise SystemExit(7)"),
    "model_killed": _code("import os; os.kill(os.getpid(), 9)"),
    "model_hangs": _code("while True: pass"),
    "model_huge": _code(_HEAD + "def create_model(): return torch.ones(10**13)"),
    "model_no_module": _code(_HEAD + "def create_model(): return 7"),
    "model_wrong_outputs": _code(
        _HEAD.replace("'y'", "'z'") + "class M(torch.nn.Module):\n"
        "    def forward(self, x): return x[:0]\n"
        "def create_model(): return M()"
    ),
    "onnx_garbage": lambda folder: _text(folder / "1" / "model.onnx", "garbage" * 999),
    "pt_pickle": lambda folder: _text(folder / "1" / "model.pt", _PICKLE),
    "version_zero": lambda folder: (folder / "1").rename(folder / "0"),
    "version_huge": lambda folder: (folder / "1").rename(folder / ("9" * 200)),
    "no_version": lambda folder: (folder / "1").rename(folder / "one"),
}  # fmt: skip


def folders(ground: Ground) -> Result:
    """A server that starts over all of them at once, with one good model beside them."""
    root = ground.repository()
    for name, spoil in HOSTILE.items():
        write_model(root, name, 2.0, 100.0)
        spoil(root / name)
    stand = ground.start(root)
    result, began_s = Result(len(HOSTILE)), time.monotonic()
    try:
        stand.wait_ready(300.0)
        result.figures["start_s"] = round(time.monotonic() - began_s, 1)
        caller = HttpCaller(stand.http_port)
        if caller.ask(MODEL.model, MODEL.factor, [1.0, 2.0, 3.0, 4.0]) != "200":
            result.broken["the good model is not served"] += 1
        _judge(result, stand, caller)
        _load_alive(result, root, stand)
    except NotReadyError as error:
        result.broken[f"the server did not start: {error}"] += 1
    finally:
        result.figures["stop"] = stand.stop()
    result.broken["a pickle was run"] += Path("owned").exists()
    return result


def _judge(result: Result, stand: Stand, caller: HttpCaller) -> None:
    _, said = caller.post("/v2/repository/index", b"{}")
    states = {one["name"]: one for one in json.loads(said)}
    served = [n for n in HOSTILE if states.get(n, {}).get("state") == "READY"]
    told = [n for n in HOSTILE if states.get(n, {}).get("reason")]
    loading = [n for n in HOSTILE if states.get(n, {}).get("state") == "LOADING"]
    silent = [n for n in HOSTILE if n in states and n not in (*served, *told, *loading)]
    result.figures["still loading"] = loading
    result.figures["served all the same"] = served
    result.broken["no reason given: " + ", ".join(silent)] += len(silent)
    result.broken["Traceback in the log"] += sum("Traceback" in line for line in stand.lines)


def _load_alive(result: Result, root: Path, stand: Stand) -> None:
    """The same on a server that serves: a folder of 4 GB and each hostile one loaded, timed."""
    write_model(root, "four_gigabytes", 2.0, 100.0)
    _sparse(root / "four_gigabytes" / "1" / "weights.data")
    admin = HttpCaller(stand.http_port, 200.0)
    hang = ("model_hangs",)  # held against its own limit at the start
    with Bystander(stand) as beside:
        for name in ("four_gigabytes", *(n for n in HOSTILE if n not in hang)):
            status, said = admin.post(f"/v2/repository/models/{name}/load", b"{}")
            result.tried += 1
            result.broken[f"loading {name}: {status}, no reason"] += status != 200 and not _why(
                said
            )
    result.figures["beside live loads"] = beside.figures
    beside.blame(result.broken)


def _why(said: bytes) -> str:
    """The reason that a refused load gives."""
    return str(json.loads(said).get("error", ""))


_ROUNDS: Final = 40
_NAMES: Final = 3000
#: Some far longer than a path may be, so that what is kept of each would show; 0 leads out.
_NAME_BYTES: Final = (60_000, 8_000, 190, 0)


def reloads(ground: Ground, stand: Stand) -> Result:
    """Operations succeed, requests of others are never touched, nothing grows."""
    admin = HttpCaller(stand.http_port, 120.0)
    before, took_s = stand.held(), Counter[str]()
    times: dict[str, list[float]] = {"load": [], "unload": [], "reload": []}
    result = Result(0)
    with Traffic((stand.http_port, stand.grpc_port), [OTHER], (2, 1), rate_rps=120.0) as steady:
        for _ in range(ground.count(_ROUNDS)):
            for what in ("unload", "load", "reload"):
                verb = "load" if what == "reload" else what
                began_s = time.monotonic()
                status, said = admin.post(f"/v2/repository/models/{VICTIM.model}/{verb}", b"{}")
                times[what].append(time.monotonic() - began_s)
                result.tried += 1
                if status != 200:
                    result.broken[f"{what}: {status} {said[:80]!r}"] += 1
    took_s.update(steady.bad())
    result.broken += took_s
    other = steady.figures()
    result.broken["steady model refused"] += sum(
        count for status, count in other["statuses"].items() if status not in ("200",)
    ) * (other["statuses"].get("200", 0) == 0)
    after = stand.held()
    result.figures = {
        **{f"{what}_median_s": round(median(found), 2) for what, found in times.items()},
        **other,
        **grown(before, after, *before),
    }
    return result


def names_that_never_were(ground: Ground, stand: Stand) -> Result:
    """Loads of long names without a folder: refused, and nothing is kept of them."""
    random_ = random.Random(ground.seed)
    admin = HttpCaller(stand.http_port, 60.0)
    before = stand.held()
    statuses: Counter[str] = Counter()
    for number in range(ground.count(_NAMES)):
        length = _NAME_BYTES[number % len(_NAME_BYTES)]
        name = "".join(random_.choices("abcdefghij", k=length)) if length else "../../etc"
        name = name.replace("/", "%2F")
        try:
            status, _ = admin.post(f"/v2/repository/models/{name}/load", b"{}")
            statuses[str(status)] += 1
        except (OSError, http.client.HTTPException) as error:
            statuses[type(error).__name__] += 1
    began_s = time.monotonic()
    _, index = admin.post("/v2/repository/index", b"{}")
    index_s = time.monotonic() - began_s
    after = stand.held()
    result = Result(statuses.total(), figures={"statuses": dict(statuses)})
    listed = [one["name"] for one in json.loads(index)]
    result.broken["names kept in the index"] += sum(len(n) > 100 or "/" in n for n in listed)
    result.broken["500"] += statuses["500"]
    result.broken["grown by more than 30 MB"] += after["main_pss_mb"] - before["main_pss_mb"] > 30
    result.figures |= {
        "index_bytes": len(index),
        "index_ms": round(index_s * 1e3, 1),
        **grown(before, after, "main_pss_mb"),
    }
    return result
