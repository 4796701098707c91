"""`interlace check`: every version is judged with a reason, and nothing is opened."""

import json
from pathlib import Path
from typing import Any

from interlace.assembly.machine import find_models
from interlace.cli.check import checked
from tests.cli.planning import invoke
from tests.serve.test_ensembles import write_ensemble


def _check(root: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    result = invoke("check", root, *words, "--json")
    return result.exit_code, json.loads(result.stdout)


def _model(root: Path, name: str, config: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.onnx").write_bytes(b"\x08\x08 never opened")
    (root / name / "config.pbtxt").write_text(config)


def test_each_version_is_judged(tmp_path: Path) -> None:
    _model(tmp_path, "plain")
    _model(tmp_path, "grouped", "instance_group [ { count: 2 } ]")
    _model(tmp_path, "stateful", "sequence_batching { direct { minimum_slot_utilization: 0.5 } }")
    _model(tmp_path, "iterative", "sequence_batching { iterative_sequence: true }")
    (tmp_path / "code" / "1").mkdir(parents=True)
    (tmp_path / "code" / "1" / "model.py").write_text("def create_model(): ...")
    write_ensemble(tmp_path, "pipe", ["plain", "grouped"])
    write_ensemble(tmp_path, "lost", ["plain", "nobody"])
    write_ensemble(tmp_path, "broken", ["plain", "iterative"])
    status, found = _check(tmp_path)
    verdicts = {one["model"]: one["verdict"] for one in found}
    assert verdicts == {
        "plain": "served",
        "grouped": "served with a difference",
        "stateful": "served with a difference",
        "iterative": "refused",
        "code": "served",
        "pipe": "served",
        "lost": "refused",
        "broken": "refused",
    }
    assert status == 1
    notes = {one["model"]: " ".join(one["notes"]) for one in found}
    assert "instance_group has no effect" in notes["grouped"]
    assert "direct.minimum_slot_utilization has no effect" in notes["stateful"]
    assert notes["code"] == ""  # the code of a folder runs unless the operator forbids it
    (code,) = checked(tmp_path, find_models(tmp_path, ["code"]), strangers=True)
    assert code.notes == ("it is code: served only if --trust-models names it",)
    assert "step[1].model_name: found 'nobody'" in notes["lost"]


def test_members_whose_configs_are_whole_are_held_against_each_other(tmp_path: Path) -> None:
    tensors = (
        'max_batch_size: 4 input [ { name: "x" data_type: TYPE_FP32 dims: [ %d ] } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]'
    )
    _model(tmp_path, "four", tensors % 4)
    _model(tmp_path, "five", tensors % 5)
    write_ensemble(tmp_path, "fits", ["four", "four"])
    write_ensemble(tmp_path, "wrong", ["four", "five"])
    _, found = _check(tmp_path, "fits", "wrong", "four", "five")
    verdicts = {one["model"]: one["verdict"] for one in found}
    assert verdicts["fits"] == "served" and verdicts["wrong"] == "refused"
    (reason,) = next(one["notes"] for one in found if one["model"] == "wrong")
    assert "shape [-1, 5] in 'five'" in reason


def test_a_repository_that_is_taken_whole_exits_with_0(tmp_path: Path) -> None:
    _model(tmp_path, "plain")
    status, _ = _check(tmp_path)
    assert status == 0
