"""`interlace plan --save`, then `interlace serve --plan`: what was planned is what stands."""

import json
from pathlib import Path

from bench.attack.repository import write_model
from tests.cli.planning import invoke
from tests.serve.conftest import Start


def command(name: str, root: Path, cache: Path, *options: str) -> None:
    words = [name, str(root), "--profiles", str(cache / "profiles"), *options]
    found = invoke(*words)
    assert found.exit_code == 0, found.stderr + str(found.exception)


def test_a_kept_plan_is_followed_and_extended(
    root: Path, cache: Path, start: Start, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        write_model(root, name)
    kept = tmp_path / "plan.json"
    command("profile", root, cache, "--cores", "0")
    command("plan", root, cache, "--cores", "0", "--save", str(kept))
    plan = json.loads(kept.read_text())
    for part in plan["partitions"]:
        part["slots"] = [slot for slot in part["slots"] if slot["model"] == "one"]
        part["slots"].append({"model": "gone", "batch": 1, "rows_per_s": 1.0})
    kept.write_text(json.dumps(plan))
    server = start("--cores", "0", "--plan", str(kept)).wait_ready()
    assert "has no model 'gone'" in server.text
    assert server.infer("one")[0] == 200
    assert server.infer("two")[0] == 200, "a model that the file does not know is served too"
    assert server.end() == 0


def test_a_plan_for_other_hardware_ends_the_start_in_words(
    root: Path, start: Start, tmp_path: Path
) -> None:
    write_model(root, "one")
    part = {"id": "p", "gpu": "gpu0", "share_pct": 100, "duty_ms": 0.0}
    slots = [{"model": "one", "batch": 1, "rows_per_s": 1.0}]
    plan = {"schema": 2, "system": "interlace", "gpu_kind": "h100", "gpus": ["gpu0"]}
    kept = tmp_path / "plan.json"
    kept.write_text(json.dumps({**plan, "partitions": [{**part, "slots": slots}]}))
    server = start("--cores", "0", "--plan", str(kept))
    assert server.process.wait(60.0) == 2
    server.kill()
    assert "it is for h100 and this is" in server.text
    assert "Traceback" not in server.text
