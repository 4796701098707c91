"""Repositories with anything in them: what can be served is, at the start and afterwards."""

import os
import time
from pathlib import Path
from typing import cast

import pytest

from bench.attack.repository import write_model
from tests.serve.conftest import Start
from tests.serve.server import Server, Traffic

SLEEPS = "import time\ntime.sleep(600.0)\n"
_HEAD = "import torch\nINPUTS = {'x': ('FP32', (4,))}\nOUTPUTS = {'y': ('FP32', (4,))}\n"
#: Code that cannot be opened, and harms who opens it.
_CODE = {
    "leaves": "raise SystemExit(7)",
    "dies": "import os\nos.kill(os.getpid(), 9)",
    "huge": _HEAD + "def create_model(): return torch.ones(10**13)",
    "other": _HEAD + "def create_model(): return 7",
}


def _load(server: Server, name: str) -> tuple[int, str]:
    status, body = server.call("POST", f"/v2/repository/models/{name}/load", {})
    return status, body["error"] if isinstance(body, dict) and body else ""


def _index(server: Server) -> dict[str, tuple[str, str]]:
    _, index = server.call("POST", "/v2/repository/index", {})
    return {one["name"]: (one["state"], one.get("reason", "")) for one in index}


def test_hostile_folders_keep_nobody_from_serving(root: Path, start: Start) -> None:
    write_model(root, "good")
    for name in ("digits", "nested", "batch", "fifo", "pipe", "zero", *_CODE):
        write_model(root, name)
    for name, code in _CODE.items():
        (root / name / "1/model.py").write_text(code)
    (root / "digits/interlace.toml").write_text("slo_ms = " + "9" * 5000)
    (root / "nested/interlace.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    (root / "batch/config.pbtxt").write_text("max_batch_size: 99999999999999999999")
    os.mkfifo(root / "fifo/1/weights.bin")
    (root / "pipe/interlace.toml").unlink()
    os.mkfifo(root / "pipe/interlace.toml")
    (root / "zero/1/model.py").unlink()
    (root / "zero/1/model.py").symlink_to("/dev/zero")
    server = start().wait_ready()
    assert server.infer("good")[0] == 200
    index = _index(server)
    words = {
        "digits": "interlace.toml", "nested": "interlace.toml", "batch": "max_batch_size",
        "fifo": "a FIFO", "pipe": "a FIFO", "zero": "a device",
        "leaves": "SystemExit: 7", "dies": "killed by signal 9", "huge": "allocate",
        "other": "create_model()",
    }  # fmt: skip
    for name, word in words.items():
        assert index[name][0] == "UNAVAILABLE" and word in index[name][1], name
        assert f"{name} is not served" in server.text
        status, error = _load(server, name)
        assert status == 500 and word in error
    assert "Traceback" not in server.text
    assert server.infer("good")[0] == 200
    assert server.end() == 0


def test_an_empty_repository_is_served_and_names_without_a_folder_are_404(
    root: Path, start: Start
) -> None:
    server = start().wait_ready()
    assert server.call("GET", "/v2/health/ready")[0] == 200
    assert "holds no models" in server.text
    write_model(root, "good")
    assert _load(server, "good")[0] == 200
    assert server.infer("good")[0] == 200
    for name in ("nope", "x" * 300, "..%2F..%2Fetc", "a%00b", ".hidden"):
        status, error = _load(server, name)
        assert status == 404 and "failed to load" in error, name
        assert len(error) < 2000
        assert server.call("POST", f"/v2/repository/models/{name}/unload", {})[0] == 200
    assert list(_index(server)) == ["good"]
    (root / "good/1/model.py").unlink()
    assert _load(server, "good")[0] == 500
    assert server.call("POST", "/v2/repository/models/good/unload", {})[0] == 200
    assert list(_index(server)) == ["good"]
    (root / "good/interlace.toml").unlink()
    (root / "good/1").rmdir()
    (root / "good").rmdir()
    assert _load(server, "good")[0] == 404
    assert list(_index(server)) == []
    assert server.end() == 0
    assert "Traceback" not in server.text


def test_a_large_folder_is_digested_beside_what_is_served(root: Path, start: Start) -> None:
    write_model(root, "good")
    server = start().wait_ready()
    write_model(root, "large")
    with (root / "large/1/weights.data").open("wb") as file:
        file.truncate(1 << 30)
    server.answer_s = 300.0  # reading gives way to all else
    slowest_s = [0.0]

    def ask() -> tuple[int, object]:
        began = time.monotonic()
        answer = server.infer("good")
        slowest_s[0] = max(slowest_s[0], time.monotonic() - began)
        return answer

    traffic = Traffic(ask, threads=1)
    began = time.monotonic()
    assert _load(server, "large")[0] == 200
    took_s = time.monotonic() - began
    traffic.stop()
    assert slowest_s[0] < max(0.5 * took_s, 0.5), "the loop stood still while files were read"


def test_a_model_whose_import_hangs_holds_up_nobody(
    root: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = (
        "from functools import partial; import interlace.assembly.live_server as live; "
        "live.Startup = partial(live.Startup, _patience_s=4.0); "
    )
    monkeypatch.setattr(Server, "code", hasty + Server.code)
    write_model(root, "good")
    for name in ("hangs-1", "hangs-2", "hangs-3"):
        write_model(root, name)
        (root / name / "1/model.py").write_text(SLEEPS)
    server = start()
    began = time.monotonic()
    server.wait_ready(100.0)
    assert time.monotonic() - began < 100.0
    assert server.infer("good")[0] == 200
    assert _index(server)["hangs-1"][0] == "LOADING"
    assert server.end() == 0
    assert "Traceback" not in server.text


def test_a_load_fetches_what_changed_in_a_store(
    root: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: no store to read")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_model(root, "m", 2.0)
    write_model(root, "same", 2.0)
    server = Server(cast(Path, f"file://{root}"), cache)
    try:
        server.wait_ready()
        write_model(root, "m", 3.0)
        write_model(root, "new", 5.0)
        for name, factor in (("m", 3.0), ("new", 5.0), ("same", 2.0)):
            assert _load(server, name) == (200, "")
            assert server.infer(name)[1]["outputs"][0]["data"] == [factor] * 4
        root.rename(tmp_path / "elsewhere")
        status, error = _load(server, "m")
        assert status == 404 and "no files" in error
        assert server.infer("m")[1]["outputs"][0]["data"] == [3.0] * 4
    finally:
        server.kill()
