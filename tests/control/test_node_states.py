"""What a node publishes of its models."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from interlace.control.fleet_node import NodeStates
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.node import ModelOutlook
from interlace.core.sequence import SequenceTerms
from interlace.runtime.clock import SimClock
from interlace.server.model_table import ModelTable, ServedModel
from tests.server.fakes import one_to_one


def published(*models: Model) -> Mapping[str, ModelOutlook]:
    """What a node that serves these models tells routers of them."""
    table = ModelTable()
    for known in models:
        table.publish(ServedModel(known))
    outlook = ModelOutlook(5.0, 5.0, 1.0, 100.0)
    engine = SimpleNamespace(outlooks=lambda now_ms: {one.key: outlook for one in models})
    wanted = SimpleNamespace(failures={}, taken="")
    assignments = SimpleNamespace(under_way=False, revision=None, failures={}, wanted=wanted)
    states = NodeStates(
        cast(Any, engine),
        table,
        SimClock(),
        lambda: True,
        lambda: True,
        cast(Any, assignments),
        1,
        {},
    )
    return states.state().models


def test_routers_wait_for_a_model_as_long_as_its_requests_may_take() -> None:
    """It is planned for less time where nobody set an SLO."""
    assumed = ServiceTerms(100.0, slo_assumed=True)
    code = replace(one_to_one("code"), format=Format.PYTHON, terms=assumed)
    found = published(code, replace(one_to_one("graph"), terms=assumed))
    assert {name: one.slo_ms for name, one in found.items()} == {"code": 60_000.0, "graph": 100.0}


def test_routers_know_which_models_have_sequences() -> None:
    found = published(
        one_to_one("plain"), replace(one_to_one("steps"), sequences=SequenceTerms(1e3, 0))
    )
    assert {name: one.stateful for name, one in found.items()} == {"plain": False, "steps": True}
