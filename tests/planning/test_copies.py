"""Many models alike in a few words: names, rates, profiles, parts of a trace, memory."""

from pathlib import Path

import pytest

from bench.cold.machines import bert_on_h100, write_profile
from interlace.core.user_errors import InputError
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulation import workloads
from interlace.policy.catalog import system_of
from interlace.policy.cold_starts.catalog import COLD_POLICIES

SCENARIO = """
gpu = "h100"
profiles = ["bert.json"]
memory = "1.5GB"
[models.bert]
rate_rps = 30
slo_ms = 50
copies = 3
zipf = 1
"""
TRACE = "HashFunction,1,2\nbusy,60,60\nmiddling,30,0\nidle,0,30\n"


def read(folder: Path, text: str = SCENARIO, memory: str | None = None) -> Scenario:
    write_profile(folder / "bert.json", bert_on_h100())
    (folder / "calls.csv").write_text(TRACE)
    (folder / "s.toml").write_text(text)
    return read_scenario(folder / "s.toml", memory=memory)


def test_copies_have_names_a_part_of_the_rate_and_the_profile(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert [one.model for one in found.demand] == ["bert-0", "bert-1", "bert-2"]
    rates = [one.rows_per_s for one in found.demand]
    assert sum(rates) == pytest.approx(30.0) and rates[0] == pytest.approx(3 * rates[2])
    first, second = found.profiles["bert-0"], found.profiles["bert-1"]
    assert first.layers == second.layers == bert_on_h100().layers and second.model == "bert-1"
    assert found.gpu.weights_bytes == 1_500_000_000
    assert read(tmp_path, memory="16GB").gpu.weights_bytes == 16 * 10**9


def test_each_copy_has_its_part_of_a_trace(tmp_path: Path) -> None:
    text = SCENARIO + 'workload = { kind = "azure", file = "calls.csv", total_rps = 30 }\n'
    found = read(tmp_path, text)
    parts = [found.workloads[f"bert-{n}"]["part"] for n in range(3)]
    assert parts == ["1/3", "2/3", "3/3"]
    assert len(workloads(found)) == 3


@pytest.mark.parametrize(
    ("text", "memory", "said"),
    [
        (SCENARIO, "much", "memory: 'much' is no number of bytes; expected a size such as 16GB"),
        (SCENARIO, "500GB", "memory for weights is 500 GB; expected at most the 80 of h100"),
        (
            f'{SCENARIO}\n[models."bert-1"]\nrate_rps = 1\nslo_ms = 1',
            None,
            "also a copy of another",
        ),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, text: str, memory: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text, memory)


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    read(tmp_path)
    (tmp_path / "bert.json").write_text("{}")
    with pytest.raises(InputError, match=r"bert\.json: not a profile"):
        read_scenario(tmp_path / "s.toml")


def test_any_system_takes_any_answer_to_cold_starts() -> None:
    both = system_of("gpulet+interlace/pipeswitch")
    assert both.cold is COLD_POLICIES["pipeswitch"] and both.name == "gpulet+interlace/pipeswitch"
    assert system_of("gpulet").cold is COLD_POLICIES["interlace"]
    with pytest.raises(InputError, match=r"named 'pipeswich'.*pipeswitch.*known: copy"):
        system_of("gpulet/pipeswich")
