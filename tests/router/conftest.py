"""A router over scripted nodes, ended with its test."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.router.scripted_node import Act, ScriptedNode
from tests.router.stand import Made, RouterStand


@pytest.fixture
def made() -> Iterator[Made]:
    with ExitStack() as ends:

        def make(
            *acts: list[Act], slo_ms: float = 5000.0, **more: Any
        ) -> tuple[RouterStand, list[ScriptedNode]]:
            nodes = [ScriptedNode(one) for one in acts]
            for node in nodes:
                ends.callback(node.close)
            names = "abcdef"[: len(nodes)]
            ports = {n: node.port for n, node in zip(names, nodes, strict=True)}
            router = ends.enter_context(RouterStand(ports, **more))
            for wait_ms, name in enumerate(names):
                router.heard(name, "m", wait_ms=5.0 + wait_ms, slo_ms=slo_ms)
            return router, nodes

        yield make
