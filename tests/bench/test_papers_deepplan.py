"""DeepPlan's figures again: every command runs, and shows what is written of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.harness import Row
from bench.papers.deepplan import figures, serving
from bench.papers.deepplan.v100 import (
    MODELS,
    V100,
    cold_ms,
    layers,
    plans,
)
from interlace.core.loading import HostLinks
from interlace.sim.arrivals import Arrivals
from tests.bench.conftest import Drawn

DATA = Path(__file__).parents[3] / "shared/data/deepplan/plans-v100.json"


PUBLISHED = "pipeswitch,deepplan-dha,deepplan"


def _within(rows: Sequence[Row], least: float, most: float) -> None:
    stated = [row for row in rows if row.ratio is not None]
    assert stated
    off = [f"{row.what}: {row.ratio:.2f}" for row in stated if not least <= row.ratio <= most]
    assert not off, off


def test_the_copied_plans_are_the_published_ones() -> None:
    if not DATA.exists():
        pytest.skip(f"{DATA} is not there: the published plans are not on this machine")
    published = json.loads(DATA.read_text())
    assert plans().keys() == published.keys() == set(MODELS)
    for model, found in plans().items():
        for one, other in zip(found, published[model], strict=True):
            assert one.kind == other["type"]
            assert one.nbytes == round(other["size_mb"] * (1 << 20))
            marks = other["static"] != "load", other["dynamic"] != "load"
            assert (one.initial, one.planned) == marks


def test_table_3_plans_of_transformers_are_the_published_ones_but_for_a_layer_or_two() -> None:
    for model in MODELS:
        initial, planned, count = figures.agreeing(model)
        assert initial >= 0.94 * count
        if "resnet" not in model:
            assert planned >= count - 2


def test_figure_11_a_cold_resnet_takes_the_published_times(drawn: Drawn) -> None:
    rows = drawn(figures.figure11()).rows
    _within([row for row in rows if row.what.startswith("ResNet-50")], 0.9, 1.1)
    _within(rows, 0.89, 1.1)
    for row in rows:
        if row.what.startswith("ours over"):
            assert row.ours >= 1.0 - 1e-9, row.what


def test_table_4_two_cold_starts_at_once_take_turns_on_the_links(drawn: Drawn) -> None:
    _within(drawn(figures.table4()).rows, 0.86, 1.12)


def test_figure_12_larger_batches_hide_more_of_the_load(drawn: Drawn) -> None:
    ours = drawn(figures.figure12()).ours
    for model in figures.BATCHED_MODELS:
        gains = [ours[f"{model}, {rows} rows: PT + DHA over PipeSwitch"] for rows in (1, 2, 4, 8)]
        assert gains == sorted(gains, reverse=True) or min(gains) > 0.99


def test_figure_13_deepplan_serves_more_instances_in_time(drawn: Drawn) -> None:
    found = {
        way: serving.run_instances("bert_base", way, 200, 100.0, 200)
        for way in PUBLISHED.split(",")
    }
    p99s_ms = [one.p99_ms for one in found.values()]
    assert p99s_ms == sorted(p99s_ms, reverse=True) and p99s_ms[0] > 100.0 > p99s_ms[-1]
    assert found["deepplan"].good > found["pipeswitch"].good
    drawn(serving.figure13(requests=5, ways=PUBLISHED))


def test_figure_15_runs(tmp_path: Path) -> None:
    trace = tmp_path / "calls.csv"
    lines = [f"x,x,f{number},t,{60 + number},{number}" for number in range(20)]
    trace.write_text("\n".join(["a,b,HashFunction,Trigger,480,481", *lines]) + "\n")
    found = serving.figure15(trace=str(trace), rate_rps=5.0, minutes=1, ways="deepplan-dha")
    assert found.ours["sample, deepplan-dha: within 100 ms"] > 0.0


def test_the_papers_machine_loads_what_is_cold_and_evicts_the_least_recently_used() -> None:
    way, most = "pipeswitch", 25  # 11.04 GB hold 25 of 438 MB, and one more begun
    names = [f"bert-{number:03}" for number in range(4 * (most + 2))]
    first = [(1000.0 * n, 4 * n) for n in range(most + 1)]
    again = [(60_000.0, 0), (61_000.0, 4 * (most + 1)), (62_000.0, 4), (63_000.0, 0)]
    asked = [*first, *again]
    times_ms = np.array([at_ms for at_ms, _ in asked])
    which = np.array([index for _, index in asked], dtype=np.int32)

    def cold(since: int) -> int:
        length_s = 64.0
        part = (times_ms[since] - 1.0) / (1000.0 * length_s) if since else 0.0
        arrivals = Arrivals(tuple(names), times_ms, which, length_s)
        return serving.served(way, ["bert_base"] * len(names), arrivals, part).cold

    assert cold(0) == most + 1 + 2  # all at first, then the one that is new and the one that left
    assert cold(most + 1) == 2


@pytest.mark.parametrize("way", ["pipeswitch", "deepplan-dha", "deepplan"])
def test_a_cold_start_takes_as_long_as_planned(way: str) -> None:
    links = V100.two_links if way == "deepplan" else HostLinks()
    (took_ms,) = _alone(way, [0])
    assert took_ms == pytest.approx(cold_ms(way, layers("bert_base"), links), rel=0.05)


@pytest.mark.parametrize(("others", "slower"), [((0, 1), 2.0), ((0, 2), 1.0)])
def test_loads_over_one_switch_disturb_each_other(others: tuple[int, int], slower: float) -> None:
    """Table 2: two GPUs on a switch have half of its bandwidth each, on two all of it."""
    (alone_ms,) = _alone("pipeswitch", [0])
    assert max(_alone("pipeswitch", others)) / alone_ms == pytest.approx(slower, rel=0.12)


def _alone(way: str, instances: Sequence[int]) -> list[float]:
    """Cold starts of these instances of four at once."""
    names = tuple(f"bert-{number}" for number in range(4))
    which = np.array(instances, dtype=np.int32)
    arrivals = Arrivals(names, np.full(len(which), 10.0), which, 1.0)
    return serving.served(way, ["bert_base"] * 4, arrivals, 0.0).times_ms


def test_a_link_has_the_bandwidth_of_the_papers_table_2() -> None:
    """GB/s of one link at work, by model."""
    printed = {"resnet50": 9.10, "bert_base": 10.87, "roberta_large": 10.94, "gpt2_medium": 11.52}
    for model, serial in printed.items():
        found = layers(model)
        bandwidth = sum(o.weights_bytes for o in found) / sum(o.copy_ms for o in found) / 1e6
        assert bandwidth == pytest.approx(serial, rel=0.04)
