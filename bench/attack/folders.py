"""Hostile model folders: each is set aside with its reason, and the others are served."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.attack.attack import Ground, Result
from bench.attack.bystander import MODEL, Bystander
from bench.attack.calls import HttpCaller
from bench.attack.repository import write_model
from bench.attack.stand import NotReadyError, Stand

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
