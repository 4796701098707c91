"""Estimates on the command line: marked, corrected, and never above measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from interlace.core.user_errors import InputError, UserError
from tests.cli.planning import printed

pytestmark = pytest.mark.process

CONFIG = 'max_batch_size: 8\ninput [{name: "x" data_type: TYPE_FP32 dims: [64, 56, 56]}]\n'


def models(folder: Path, unknown: bool = False) -> Path:
    """A repository of one ONNX model: sixteen convolutions, and an operator nobody knows."""
    version = folder / "models" / "net" / "1"
    version.mkdir(parents=True)
    nodes, weights = [], []
    for layer in range(16):
        weights.append(
            helper.make_tensor(f"w{layer}", TensorProto.FLOAT, [64, 64, 3, 3], [0.0] * 36864)
        )
        nodes.append(
            helper.make_node("Conv", [f"t{layer}", f"w{layer}"], [f"t{layer + 1}"], pads=[1] * 4)
        )
    nodes.append(helper.make_node("Odd" if unknown else "Relu", ["t16"], ["y"], name="last"))
    value = helper.make_tensor_value_info
    dims = ["rows", 64, 56, 56]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("t0", TensorProto.FLOAT, dims)],
        [value("y", TensorProto.FLOAT, None)],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), version / "model.onnx")
    (version.parent / "config.pbtxt").write_text(CONFIG.replace('"x"', '"t0"'))
    (version.parent / "interlace.toml").write_text("slo_ms = 100\n")
    return folder / "models"


def profiled(folder: Path, *words: object) -> list[dict[str, Any]]:
    root = folder / "models"
    options = ("--estimate", "--gpu", "a100,l4", "--profiles", folder / "p", "--json")
    found: list[dict[str, Any]] = json.loads(printed("profile", root, *options, *words))
    return found


def median_ms(entry: dict[str, Any], batch: int, share_pct: int) -> float:
    (found,) = (
        one["median_ms"]
        for one in entry["points"]
        if (one["batch"], one["share_pct"]) == (batch, share_pct)
    )
    return float(found)


def test_an_estimate_is_marked_and_grows_with_batch_and_a_smaller_share(tmp_path: Path) -> None:
    models(tmp_path)
    a100, l4 = profiled(tmp_path)
    assert a100["estimated"] and a100["interval"][0] < 1 < a100["interval"][1]
    assert a100["gflops"] == pytest.approx(16 * 2 * 64 * 64 * 9 * 56 * 56 / 1e9)
    assert median_ms(a100, 8, 100) > median_ms(a100, 1, 100)
    assert median_ms(a100, 8, 20) > 2 * median_ms(a100, 8, 100)
    # An A100 in FP32 computes 19.5 TFLOPS at most: no estimate may be faster.
    assert median_ms(a100, 8, 100) > 8 * a100["gflops"] / 19.5
    assert l4["device"] == "l4"


def test_the_interval_is_wider_on_a_kind_that_no_model_was_measured_on(tmp_path: Path) -> None:
    root = models(tmp_path)
    options = ("--estimate", "--gpu", "v100,l4", "--profiles", tmp_path / "p", "--json")
    v100, l4 = json.loads(printed("profile", root, *options))
    assert l4["interval"][0] < v100["interval"][0] < 1 < v100["interval"][1] < l4["interval"][1]


def test_what_is_kept_says_that_it_is_an_estimate_and_lies_apart(tmp_path: Path) -> None:
    models(tmp_path)
    profiled(tmp_path)
    assert not (tmp_path / "p" / "a100").exists()
    (kept,) = (tmp_path / "p" / "estimated" / "a100").iterdir()
    record = json.loads(kept.read_text())
    assert record["interval"] != [1.0, 1.0]
    assert record["method"]["samples"] == 0
    assert "estimated" in record["method"]["description"]


def table(folder: Path, kind: str, ms: float, batch: int = 8) -> Path:
    path = folder / "m.csv"
    text = f"model,gpu_kind,share_pct,batch,latency_ms\nnet,{kind},100,{batch},{ms}\n"
    path.write_text(text)
    return path


def test_a_measured_point_stands_and_corrects_the_others(tmp_path: Path) -> None:
    models(tmp_path)
    before, _ = profiled(tmp_path)
    measured = 2 * median_ms(before, 8, 100)
    after, other = profiled(tmp_path, "--measured", table(tmp_path, "a100", measured))
    assert median_ms(after, 8, 100) == pytest.approx(measured, rel=1e-3)
    assert median_ms(after, 4, 50) == pytest.approx(2 * median_ms(before, 4, 50), rel=1e-3)
    assert after["interval"][1] < before["interval"][1]
    assert other["device"] == "l4" and other["interval"][1] < before["interval"][1]


def test_the_same_model_on_another_gpu_corrects_an_estimate(tmp_path: Path) -> None:
    models(tmp_path)
    before, l4 = profiled(tmp_path)
    path = table(tmp_path, "l4", 3 * median_ms(l4, 8, 100))
    after, _ = profiled(tmp_path, "--measured", path)
    assert median_ms(after, 1, 100) == pytest.approx(3 * median_ms(before, 1, 100), rel=1e-3)


def test_a_measured_profile_wins(tmp_path: Path) -> None:
    models(tmp_path)
    profiled(tmp_path)
    (kept,) = (tmp_path / "p" / "estimated" / "a100").iterdir()
    record = json.loads(kept.read_text()) | {"interval": [1.0, 1.0]}
    record["device"]["kind"] = "a100-sxm4-80gb"  # as its driver calls it
    for point in record["points"]:
        point["median_ms"] = 77.0
    place = tmp_path / "p" / "a100-sxm4-80gb"
    place.mkdir()
    (place / kept.name).write_text(json.dumps(record))
    a100, l4 = profiled(tmp_path)
    assert not a100["estimated"]
    assert median_ms(a100, 8, 100) == 77.0
    assert l4["estimated"]  # corrected by what was measured on the other


def test_the_plan_has_a_count_for_each_end_and_names_what_to_measure(tmp_path: Path) -> None:
    root = models(tmp_path)
    words = ("plan", root, "--gpu", "l4,a100", "--rate", "net=200", "--profiles", tmp_path / "p")
    found = json.loads(printed(*words, "--json"))
    for kind in ("l4", "a100"):
        answer = found["kinds"][kind]
        central, pessimistic = answer["central"]["gpus"], answer["pessimistic"]["gpus"]
        assert 1 <= central <= pessimistic
        assert answer["measure"] == "net"
    counts = [found["kinds"][kind]["central"]["gpus"] for kind in ("l4", "a100")]
    assert f"{counts[0]} l4 or {counts[1]} a100 if the estimates hold, " in found["answer"]
    assert "at their slow end (8 of 10 cases); no measurements on l4" in found["answer"]


def test_a_model_with_a_measured_point_is_not_asked_for_another(tmp_path: Path) -> None:
    root = models(tmp_path)
    words = ("plan", root, "--rate", "net=200", "--profiles", tmp_path / "p", "--gpu")
    more = "--measured", table(tmp_path, "l4", 20.0)
    shown = printed(*words, "l4").replace("\n", " ")
    assert "one measured batch of net on l4 would narrow" in shown
    assert "(8 of 10 cases)" in shown and "hold" in shown.partition("gap")[2].partition(";")[0]
    assert "one measured batch" not in printed(*words, "l4", *more)
    assert "one measured batch of net on a100 would narrow" in printed(*words, "l4,a100", *more)


def test_a_file_from_anywhere_is_a_model_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "anything.onnx"
    (models(tmp_path) / "net" / "1" / "model.onnx").rename(file)
    words = ("plan", file, "--gpu", "l4", "--rate", "200", "--slo", "80")
    found = json.loads(printed(*words, "--profiles", tmp_path / "p", "--json"))
    (asked,) = found["kinds"]["l4"]["central"]["models"].items()
    assert asked[0] == "anything"
    assert (asked[1]["rate_rps"], asked[1]["slo_ms"]) == (200, 80)
    with pytest.raises(InputError, match="or with --gpu KIND a model"):
        printed("plan", file, "--rate", "200")
    file.write_bytes(b"no graph")
    with pytest.raises(UserError, match=f"no model of {file} .* {file}: .* expected an ONNX graph"):
        printed("plan", file, "--gpu", "l4", "--rate", "200")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = models(tmp_path, unknown=True)
    shown = printed("profile", root, "--estimate", "--gpu", "a100", "--profiles", tmp_path / "p")
    assert "1 of 17 kernels: last (Odd)" in shown.replace("\n", " ")


def test_a_kind_that_is_not_known_and_a_missing_rate_are_refused(tmp_path: Path) -> None:
    root = models(tmp_path)
    with pytest.raises(InputError, match="no such kind of GPU"):
        printed("plan", root, "--gpu", "a1000")
    with pytest.raises(InputError, match="needs a rate with --gpu: say --rate net=RPS"):
        printed("plan", root, "--gpu", "a100", "--profiles", tmp_path / "p")
    with pytest.raises(InputError, match="--estimate takes --gpu"):
        printed("profile", root, "--gpu", "a100")


def test_one_kind_takes_what_a_scenario_takes(tmp_path: Path) -> None:
    folder = models(tmp_path)
    asked = "plan", folder, "--rate", "net=200", "--profiles", tmp_path / "p"
    picture, kept = tmp_path / "net.svg", tmp_path / "net.plan"
    shown = printed(*asked, "--gpu", "l4", "--explain", "net", "--draw", picture, "--save", kept)
    assert "net: 200 requests/s within 100 ms" in shown
    assert picture.read_text().startswith("<?xml") and kept.stat().st_size
    assert "rates x 2" in printed(*asked, "--gpu", "l4", "--what-if", "rates=2")
    with pytest.raises(InputError, match="several kinds makes many plans: --explain"):
        printed(*asked, "--gpu", "l4,a100", "--explain", "net")
    with pytest.raises(InputError, match="use --gpu a100"):
        printed(*asked, "--gpu", "l4", "--what-if", "gpu=a100")
    with pytest.raises(UserError, match=r"no model of .* can be planned for"):
        printed(*asked, "--explain", "net")
