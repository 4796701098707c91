"""Profiles from a table: what is read, and where exactly a table is wrong."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.profiling.profile_csv import ProfileTableError, profiles_text, read_profiles

HEAD = "model,share_pct,batch,latency_ms"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "profiles.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_is_left_out_is_the_median(tmp_path: Path) -> None:
    path = table(tmp_path, "# by hand", f"{HEAD},p99_ms,weights_mb", "", "a,100,1,5.5,8,100")
    profile = read_profiles(path, "h100").profiles["a"]
    point = profile.points[1, 100]
    assert (point.median_ms, point.p95_ms, point.p99_ms) == (5.5, 5.5, 8.0)
    assert (profile.weights_bytes, profile.activation_bytes) == (100 * 10**6, 0)


def test_a_table_from_when_power_was_measured_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, f"{HEAD},power_w,idle_w", "a,100,8,4,300,100", "a,50,8,8,,")
    points = read_profiles(path, "h100").profiles["a"].points
    assert [point.median_ms for point in points.values()] == [4, 8]


def test_rows_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    path = table(tmp_path, f"gpu_kind,{HEAD}", "t4,a,100,1,9", "h100,a,100,1,2", ",b,100,1,3")
    found = read_profiles(path, "h100")
    assert found.kinds == {"t4", "h100"}
    assert found.profiles["a"].points[1, 100].median_ms == 2
    assert set(found.profiles) == {"a", "b"}
    assert set(read_profiles(path, "a100").profiles) == {"b"}


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        ((HEAD, "a,100,1,nan"), "2:9", "latency_ms is 'nan'"),
        ((HEAD, "a,100,1,-2"), "2:9", "latency_ms is '-2'"),
        ((HEAD, "a,100,1,0"), "2:9", "a number above 0"),
        ((HEAD, "a,101,1,5"), "2:3", "share_pct is '101'"),
        ((HEAD, "a,50,1.5,5"), "2:6", "batch is '1.5'"),
        ((HEAD, "a,50,1,5", "a,50,1,6"), "3:6", "batch is '1'"),
        ((HEAD, ",50,1,5"), "2:1", "model is ''"),
        ((HEAD, "a,50,1"), "2:1", "3 values for 4 columns"),
        (("# c", "model,batch,latency_ms", "a,1,5"), "2:1", "no column share_pct"),
        ((f"{HEAD},speed", "a,50,1,5,1"), "1:1", "column 'speed'"),
        ((HEAD,), "1:1", "no rows"),
    ],
)
def test_errors_name_the_place(
    tmp_path: Path, lines: tuple[str, ...], place: str, words: str
) -> None:
    path = table(tmp_path, *lines)
    with pytest.raises(ProfileTableError) as caught:
        read_profiles(path, "h100")
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert words in str(caught.value)


@given(text=st.text(max_size=40))
def test_any_value_is_a_latency_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / "p.csv"
    path.write_text(f"{HEAD}\na,100,1,{text}\n", encoding="utf-8", errors="replace")
    try:
        found = read_profiles(path, "h100").profiles
    except ProfileTableError as error:
        assert f"{path}:" in str(error)
    else:
        latency_ms = found["a"].points[1, 100].median_ms
        assert math.isfinite(latency_ms)
        assert latency_ms > 0


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        f"gpu_kind,{HEAD},p95_ms,p99_ms,samples,weights_mb,activation_mb,load_ms,l2_util,dram_util",
        "h100,a,100,8,4,5,6,30,100,20.5,7,0.25,0.5",
        "h100,a,50,1,2,2.5,3,9,100,20.5,7,,",
        "h100,b,100,1,1,1,1,1,0,0,0,,",
    )
    found = read_profiles(path, "h100").profiles
    again = table(tmp_path, profiles_text(found))
    assert read_profiles(again, "h100").profiles == found
