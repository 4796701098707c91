"""Tests run on the Python sources; with --compiled, on the machine code of the hot modules."""

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from interlace.compiled import is_compiled, prefer_sources

# Before any other conftest imports what it tests; options are not parsed yet. Workers of xdist
# do not see the command line, but inherit the environment.
if "--compiled" in sys.argv or "TEST_COMPILED" in os.environ:
    os.environ["TEST_COMPILED"] = "1"
else:
    prefer_sources()

# Tests are not timed; all else stays as it is here, or where CI is set.
#: The same few cases in each run, so that a failure is a change's and not the weather's; twice as
#: many in the first part of `scripts/test all`.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("more", deadline=None, derandomize=True)
#: The laws in `scripts/test all`: new cases, so many that what one in a thousand breaks is found.
settings.register_profile("many", deadline=None, max_examples=2_000)
settings.load_profile("same")
# Hypothesis draws constants of all modules that are imported by then, too: what a test draws would
# depend on which tests its worker has run before.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

HERE = Path(__file__).parent
#: Marks of whole folders or files of tests; `scripts/test fast` leaves all of these out.
MARKS = {
    "peers": "peer",
    "serve": "process",
    "bench": "slow",
    "contracts/test_device.py": "process",
    "device/cpu": "process",
    "device/cuda": "process",
    "device/test_workers.py": "process",
    "examples": "process",
    "formats": "process",
    "assembly": "process",
    "cli/test_bench.py": "process",
    "cli/test_main.py": "process",
    "load/test_open_loop.py": "process",
    "shm/test_children.py": "process",
    "profiling/cuda/test_bench.py": "process",
    "runtime/test_plan_solver.py": "process",
    "server/grpc/test_epoll_turns.py": "process",
    "server/grpc/test_epoll_loop.py": "process",
    "engine/test_launch_ahead.py": "slow",
    "sim/test_scaling.py": "slow",
    "cli/test_plan_scenario.py": "slow",
    "cli/test_simulate.py": "slow",
    "laws/test_simulator.py": "slow",
    "packing/test_widening.py": "slow",
    "policy/test_patterns.py": "slow",
}
#: Tests by file that only `scripts/test all` runs; shorter ones of the same file check the same.
LONG = {
    "bench/test_cold.py": ("test_ours_spares_the_link_and_the_tail",),
    "bench/test_gpu_comparisons.py": (
        "test_the_simulator_meets_the_device",
        "test_everyone_meets_the_same_loads_and_three_are_halved",
        "test_shares_change_under_load_and_nothing_is_lost",
        "test_no_garbage_is_collected_while_requests_are_sent",
        "test_kept_profiles_are_those_of_the_same_files",
    ),
    "bench/test_gpu_opens.py": (
        "test_a_model_is_opened_once_for_profiles_and_all_trials",
        "test_processes_race_at_the_loads_and_on_the_profiles_of_everyone_else",
        "test_without_green_contexts_profiles_are_those_of_streams",
    ),
    "bench/test_gpu_preflight.py": ("test_models_are_held_against_the_cpus_answers",),
    "bench/test_papers_deepplan.py": (
        "test_figure_12_larger_batches_hide_more_of_the_load",
        "test_figure_13_deepplan_serves_more_instances_in_time",
        "test_figure_15_runs",
    ),
    "bench/test_papers_dstack.py": (
        "test_figure_9",
        "test_figure_10",
        "test_figure_11",
        "test_figure_12",
    ),
    "bench/test_papers_e2bird.py": ("test_figure_14_throughput_rises_from_one_to_the_next",),
    "bench/test_papers_gpulet.py": (
        "test_figure_5_cuts_beat_turns_and_the_best_cut_beats_best_fit",
        "test_figure_12_gpulet_beats_bin_packing_and_best_fit",
        "test_figure_13_only_schedules_that_know_of_interference_hold",
        "test_figure_14_partitions_follow_the_rates_and_no_model_is_missing",
        "test_figure_15_the_ideal_serves_what_gpulet_serves_and_more",
        "test_figure_16_gpulet_comes_near_the_ideal",
    ),
    "bench/test_promise.py": (
        "test_models_of_one_partition_seldom_get_more_than_is_kept",
        "test_plans_promise_most_of_what_is_kept",
        "test_what_can_only_help_never_costs_a_gpu",
        "test_the_table_is_what_the_engine_keeps",
    ),
    "bench/test_versus.py": ("test_a_world_just_fits_at_its_ceiling",),
    "cli/test_plan_many.py": ("test_more_gpus_than_blocks_are_drawn_together",),
    "cli/test_plan_scenario.py": (
        "test_busy_neighbours_cost_gpus_and_leave_the_bound",
        "test_measured_corunning_slows_as_it_was_seen",
        "test_options_stand_above_the_file",
    ),
    "deploy/test_manifests.py": ("test_objects_follow_their_schemas",),
    "device/cpu/test_weights.py": ("test_many_cycles_leave_memory_and_descriptors_as_they_were",),
    "device/cuda/models/test_cold.py": ("test_whatever_comes_and_goes_answers_are_right",),
    "device/cuda/models/test_formats.py": ("test_the_same_as_on_cores",),
    "device/cuda/models/test_loaded.py": ("test_a_load_that_fails_leaves_nothing",),
    "device/cuda/models/test_precision.py": ("test_the_users_choice_keeps_the_datatypes",),
    "device/cuda/test_serve.py": ("test_two_models_are_served_under_mps",),
    "examples/test_zoo.py": ("test_convolutional_networks_have_the_published_size_and_work",),
    "fleet/test_ray_nodes.py": (
        "test_nodes_keepers_and_machines_are_killed_and_every_request_has_its_answer",
    ),
    "fleet/test_simulation.py": ("test_old_news_and_several_routers_cost_little",),
    "formats/test_torch_sharing.py": ("test_damaged_weights_are_laid_out_anew",),
    "laws/test_fairness.py": ("test_a_model_of_which_one_after_the_other_is_lost_gets_a_turn",),
    "packing/test_bounds.py": ("test_ten_thousand_models_take_seconds",),
    "peers/test_browser.py": (
        "test_a_thousand_models_on_a_phone",
        "test_a_scenario_is_planned_for",
    ),
    "peers/test_perf_analyzer.py": (
        "test_two_inputs",
        "test_free_shape",
        "test_text",
        "test_collect_metrics",
    ),
    "peers/test_triton_oracle.py": ("test_the_recording_is_what_the_real_server_says",),
    "planning/test_kinds.py": (
        "test_kinds_that_differ_in_price_per_work_cost_at_most_four_fifths_together",
    ),
    "policy/cold_starts/test_plans.py": (
        "test_of_eight_layers_and_a_peer_ours_is_the_best_there_is",
    ),
    "policy/test_patterns.py": ("test_almost_every_plan_keeps_its_promises_before_it_is_tried",),
    "policy/test_patterns_limits.py": ("test_a_limit_that_does_not_bind_changes_nothing",),
    "serve/test_arenas.py": ("test_arenas_of_what_went_are_forgotten_everywhere",),
    "serve/test_cold_starts.py": (
        "test_a_bound_serves_a_model_that_is_larger_than_the_memory",
        "test_weights_that_leave_give_the_page_cache_back",
    ),
    "serve/test_hangs.py": ("test_over_grpc_too_and_the_memory_of_its_inputs_is_used_again",),
    "serve/test_repository.py": ("test_a_large_folder_is_digested_beside_what_is_served",),
    "serve/test_staged.py": (
        "test_requests_of_several_rows_take_several_slots",
        "test_reload_under_traffic_loses_nothing",
    ),
    "serve/test_workers.py": ("test_threads_that_a_model_leaves_behind_are_told_of",),
}
#: Folders of which tests, not files, are given to workers.
SPREAD = {"engine", "laws", "oracles", "packing", "perf", "planning", "policy", "sim"}
_MARKS = {HERE / place: mark for place, mark in MARKS.items()}
_LONG = {HERE / file: names for file, names in LONG.items()}


def pytest_itemcollected(item: pytest.Item) -> None:
    for place in (item.path, *item.path.parents):
        if place in _MARKS:
            item.add_marker(_MARKS[place])
    if getattr(item, "originalname", item.name) in _LONG.get(item.path, ()):
        item.add_marker("long")
    if item.config.getoption("--compiled") and item.get_closest_marker("sources"):
        item.add_marker(pytest.mark.skip(reason="runs on the sources alone"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async`` test on a loop as the server's."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    uvloop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, as its servers are started once, but spread pure tests."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Spread(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.removeprefix("tests/").split("/")[0]
            if folder in SPREAD:
                return nodeid
            return folder if folder == "peers" else super()._split_scope(nodeid)

    return Spread(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="test the compiled hot modules")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--compiled") and not is_compiled():
        raise pytest.UsageError("nothing is compiled: python setup.py build_ext --inplace")
