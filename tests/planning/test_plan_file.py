"""A plan kept in a file, and followed by `serve --plan`."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.user_errors import InputError
from interlace.planning.plan_file import following, load_plan, save_plan
from interlace.policy.catalog import resolve
from tests.cli.planning import Question

GPU = Gpu("cpu0", "cpu", 4, 10**10, (25, 50, 75, 100))
PARTS = (
    Partition("p0", "gpu0", 50, (Slot("cat", 2, 5.0),), 0.0),
    Partition("p1", "gpu0", 50, (Slot("dog", 4, 8.0), Slot("cat", 1, 1.0)), 0.0),
)


def kept(folder: Path, gpu: Gpu = GPU, parts: tuple[Partition, ...] = PARTS) -> Path:
    path = folder / "plan.json"
    save_plan(path, "interlace", gpu, Plan(parts))
    return path


def profile(key: str) -> Profile:
    point = LatencyPoint(5.0, 6.0, 7.0, 9)
    return Profile(key, "x", "cpu", 0, 0, {(b, s): point for b in (1, 2, 4) for s in (50, 100)})


def test_what_is_kept_is_what_is_read(tmp_path: Path) -> None:
    assert load_plan(kept(tmp_path), GPU, "interlace") == tuple(
        replace(part, gpu="cpu0") for part in PARTS
    )


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (replace(GPU, kind="h100"), "it is for cpu and this is h100"),
        (replace(GPU, shares_pct=(25, 100)), "cannot be cut into [50, 50] %"),
    ],
)
def test_other_hardware_is_refused(tmp_path: Path, gpu: Gpu, words: str) -> None:
    with pytest.raises(InputError, match="plan file") as caught:
        load_plan(kept(tmp_path), gpu, "interlace")
    assert words in str(caught.value)


def test_plans_of_several_gpus_are_refused(tmp_path: Path) -> None:
    two = (PARTS[0], replace(PARTS[1], gpu="gpu1"))
    with pytest.raises(InputError, match="it needs 2 accelerators, there is one"):
        load_plan(kept(tmp_path, parts=two), GPU, "interlace")


def test_plans_of_another_system_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="serve with --system interlace"):
        load_plan(kept(tmp_path), GPU, "gpulet")


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ((), "no model has a place in it"),
        ((Slot("cat", 0, 1.0),), "partition p0: expected every model once, batches from 1"),
        ((Slot("cat", 1, -1.0),), "partition p0"),
        ((Slot("cat", 1, 1.0), Slot("cat", 2, 1.0)), "partition p0"),
    ],
)
def test_plans_made_impossible_by_hand_are_refused(
    tmp_path: Path, slots: tuple[Slot, ...], words: str
) -> None:
    path = kept(tmp_path, parts=(Partition("p0", "gpu0", 50, slots, 0.0),))
    with pytest.raises(InputError) as caught:
        load_plan(path, GPU, "interlace")
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "x"}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a plan file"):
        load_plan(path, GPU, "interlace")
    with pytest.raises(InputError, match="No such file"):
        load_plan(tmp_path / "none.json", GPU, "interlace")


def test_a_key_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = kept(tmp_path)
    path.write_text(path.read_text().replace('"batch": ', '"batsh": ', 1))
    with pytest.raises(InputError, match=r"partitions\[0\]\.slots\[0\]\.batch is missing"):
        load_plan(path, GPU, "interlace")


def test_other_schema_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 9}))
    with pytest.raises(InputError, match="schema 9; this version reads"):
        load_plan(path, GPU, "interlace")


def test_planner_follows_the_file_by_public_names(tmp_path: Path) -> None:
    row = following(resolve("interlace"), kept(tmp_path), GPU)
    keys = ["cat/1#0", "dog/3#7"]
    demand = [Demand(key, 1.0, 100.0, 4) for key in keys]
    made = row.planner(demand, Fleet((GPU,)), {key: profile(key) for key in keys}, Plan())
    found = [[(slot.model, slot.batch) for slot in part.slots] for part in made.partitions]
    assert found == [[("cat/1#0", 2)], [("dog/3#7", 4), ("cat/1#0", 1)]]
    assert [part.share_pct for part in made.partitions] == [50, 50]


def test_models_that_the_file_does_not_know_are_served_too(tmp_path: Path) -> None:
    row = following(resolve("interlace"), kept(tmp_path), GPU)
    keys = ["cat/1#0", "dog/3#7", "owl/1#0"]
    demand = [Demand(key, 1.0, 100.0, 4) for key in keys]
    made = row.planner(demand, Fleet((GPU,)), {key: profile(key) for key in keys}, Plan())
    assert "owl/1#0" in {slot.model for part in made.partitions for slot in part.slots}


def test_without_a_file_the_row_stays() -> None:
    row = resolve("gpulet")
    assert following(row, None, GPU) is row


def test_plan_of_the_command_is_kept(tmp_path: Path) -> None:
    question = Question(tmp_path)
    path = tmp_path / "kept.json"
    said = question.plan("--json", "--save", str(path)).json
    found = json.loads(path.read_text())
    assert found["gpu_kind"] == "2080ti"
    assert found["partitions"] == said["partitions"]


def test_what_has_no_end_is_no_plan_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    (tmp_path / "zeros.json").symlink_to("/dev/zero")
    for name, words in (("plan.json", "a FIFO"), ("zeros.json", "a device")):
        with pytest.raises(InputError, match=f"{name}: found {words}; expected a regular file"):
            load_plan(tmp_path / name, GPU, "interlace")
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="larger than 67108864 bytes"):
        load_plan(tmp_path / "sparse.json", GPU, "interlace")


def test_a_partition_is_in_a_plan_file_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="partition p0 twice; expected each once"):
        load_plan(kept(tmp_path, parts=(PARTS[0], PARTS[0])), GPU, "interlace")
