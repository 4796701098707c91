"""What a node publishes of its models."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from interlace.control.fleet_node import NodeStates
from interlace.core.model import Format, ServiceTerms
from interlace.core.node import ModelOutlook
from interlace.runtime.clock import SimClock
from interlace.server.model_table import ModelTable, ServedModel
from tests.server.fakes import one_to_one


def test_routers_wait_for_a_model_as_long_as_its_requests_may_take() -> None:
    """It is planned for less time where nobody set an SLO."""
    assumed = ServiceTerms(100.0, slo_assumed=True)
    code = replace(one_to_one("code"), format=Format.PYTHON, terms=assumed)
    graph = replace(one_to_one("graph"), terms=assumed)
    table = ModelTable()
    for known in (code, graph):
        table.publish(ServedModel(known))
    outlook = ModelOutlook(5.0, 5.0, 1.0, 100.0)
    engine = SimpleNamespace(outlooks=lambda now_ms: {code.key: outlook, graph.key: outlook})
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
    found = states.state().models
    assert {name: one.slo_ms for name, one in found.items()} == {"code": 60_000.0, "graph": 100.0}
