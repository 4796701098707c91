"""Co-runs survive on disk, for models that are still the same."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.model import Model
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.tables import TableError
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import (
    CoRun,
    NeighbourSlowdowns,
    corun_path,
    read_coruns,
    save_coruns,
)
from tests.profiling.fakes import make_model

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


KIND = "k"
SHORT, LONG, NEW = (make_model(name) for name in ("short", "long", "new"))


def alone(model: Model, ms: float) -> Profile:
    points = {
        (batch, share): LatencyPoint(t := ms * batch * 100 / share, t, t, 9)
        for batch in (1, 4)
        for share in (50, 100)
    }
    return Profile(model.key, model.digest, KIND, 0, 0, points)


PROFILES = {SHORT.key: alone(SHORT, 1.0), LONG.key: alone(LONG, 4.0)}


def measured(folder: Path, slowdown: float = 1.3) -> None:
    """Both ways and each beside itself, four rows each; the short one suffers."""
    seen = []
    for one, other, slow in (
        ("short", "long", slowdown),
        ("long", "short", 1.0),
        ("short", "short", 1.1),
        ("long", "long", 1.05),
    ):
        runner, neighbour = CoRunner(one, 4, 50), CoRunner(other, 4, 50)
        ms = PROFILES[SHORT.key if one == "short" else LONG.key].points[4, 50].median_ms
        seen.append(CoRun(runner, (neighbour,), ms, ms * slow, 1.0, 40))
    digests = {SHORT.name: SHORT.digest, LONG.name: LONG.digest}
    save_coruns(corun_path(folder, KIND), KIND, digests, seen)


def factors(before: Profile, after: Profile) -> dict[tuple[int, int], float]:
    assert after.model == before.model
    return {key: after.points[key].p95_ms / point.p95_ms for key, point in before.points.items()}


def test_batches_are_slowed_as_the_measured_neighbours_slow_them(tmp_path: Path) -> None:
    measured(tmp_path)
    busy = NeighbourSlowdowns(tmp_path, KIND).busy([SHORT, LONG], PROFILES)
    short = factors(PROFILES[SHORT.key], busy[SHORT.key])
    long = factors(PROFILES[LONG.key], busy[LONG.key])
    assert short[4, 50] == pytest.approx((1.3 + 1.1) / 2, abs=0.03)
    assert long[4, 50] == pytest.approx((1.0 + 1.05) / 2, abs=0.03)
    assert short[4, 100] == long[1, 100] == 1.0, "alone on the whole there are no neighbours"


def test_a_model_that_comes_later_has_those_before_for_neighbours(tmp_path: Path) -> None:
    measured(tmp_path)
    known = NeighbourSlowdowns(tmp_path, KIND)
    first = known.busy([LONG], {LONG.key: PROFILES[LONG.key]})
    assert factors(PROFILES[LONG.key], first[LONG.key])[4, 50] == pytest.approx(1.05, abs=0.03)
    later = known.busy([SHORT], {SHORT.key: PROFILES[SHORT.key]})
    assert factors(PROFILES[SHORT.key], later[SHORT.key])[4, 50] == pytest.approx(1.2, abs=0.03)


def test_a_model_that_was_never_measured_beside_others_is_predicted(tmp_path: Path) -> None:
    measured(tmp_path)
    every = {**PROFILES, NEW.key: alone(NEW, 2.0)}
    busy = NeighbourSlowdowns(tmp_path, KIND).busy([SHORT, LONG, NEW], every)
    assert 1.0 <= factors(every[NEW.key], busy[NEW.key])[4, 50] <= 1.4


@pytest.mark.parametrize("what", ["nothing", "other files", "other kind", "not a file of co-runs"])
def test_without_measurements_profiles_stay_as_they_are(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measured(tmp_path)
    models, kind = [SHORT, LONG], KIND
    path = corun_path(tmp_path, KIND)
    if what == "nothing":
        path.unlink()
    elif what == "other files":
        models = [replace(one, digest="changed") for one in models]
    elif what == "other kind":
        kind = "another"
    else:
        path.write_text("[1")
    assert NeighbourSlowdowns(tmp_path, kind).busy(models, PROFILES) == PROFILES
    assert any("co-runs are not used" in said for said in caplog.messages) == what.startswith(
        "not a"
    )
