"""Co-runs survive on disk, for models that are still the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.tables import TableError
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import CoRun
from interlace.profiling.corun_file import corun_path, read_coruns, save_coruns

runners = st.builds(CoRunner, st.sampled_from("abc"), st.integers(1, 64), st.integers(1, 100))
times = st.integers(1, 10**6).map(lambda units: units / 1000)
seen = st.lists(
    st.builds(
        CoRun,
        runners,
        st.lists(runners, min_size=1, max_size=2).map(tuple),
        times,
        times,
        st.integers(0, 1000).map(lambda units: units / 1000),
        st.integers(1, 1000),
    ),
    max_size=5,
)
DIGESTS = {"a": "1", "b": "2", "c": "3"}


@given(seen)
def test_what_was_saved_is_read(
    tmp_path_factory: pytest.TempPathFactory, some: list[CoRun]
) -> None:
    path = corun_path(tmp_path_factory.mktemp("store"), "a kind/of GPU")
    save_coruns(path, "k", DIGESTS, some)
    assert read_coruns(path, DIGESTS) == some


def test_what_a_changed_model_took_part_in_is_left_out(tmp_path: Path) -> None:
    path = corun_path(tmp_path, "k")
    with pytest.raises(FileNotFoundError):
        read_coruns(path)
    pair = [
        CoRun(CoRunner(a, 1, 50), (CoRunner(b, 1, 50),), 1.0, 2.0, 1.0, 9) for a, b in ("ab", "bc")
    ]
    save_coruns(path, "k", DIGESTS, pair)
    assert read_coruns(path) == pair
    assert read_coruns(path, {**DIGESTS, "a": "changed"}) == pair[1:]
    assert read_coruns(path, {"a": "1", "b": "2"}) == pair[:1]
    path.write_text('{"schema": 1}')
    with pytest.raises(TableError, match="kind is missing"):
        read_coruns(path, DIGESTS)
