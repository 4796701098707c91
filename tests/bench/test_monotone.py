"""Asking for less never costs more; ``bench.planning.monotone`` asks more of the kind."""

import pytest

from bench.planning.kept import random_scenario
from bench.planning.monotone import checks


@pytest.mark.parametrize("seed", [1, 4, 7])
def test_what_can_only_help_never_costs_a_gpu(seed: int) -> None:
    scenario = random_scenario(seed, models=(2, 3), gpus=(0.3, 1.0))
    broken = [one for one in checks(seed, scenario) if not one.holds]
    assert not broken
