"""A server for each module of tests."""

from collections.abc import Iterator

import pytest

from interlace.core.tensor import TensorSpec
from interlace.server.shared_memory import Regions
from tests.server.fakes import FakeRuntime, model, one_to_one
from tests.server.stand import Stand


@pytest.fixture(scope="module")
def http() -> Iterator[Stand]:
    """A server with one identity model per datatype, and a few others."""
    stand = Stand(regions=Regions(allowed=True))
    stand.publish(
        *(one_to_one(f"ident_{datatype}", datatype) for datatype in ALL_DATATYPES),
        one_to_one("ident"),
        one_to_one("fixed", dims=(16,)),
        one_to_one("image", dims=(3, -1)),
        one_to_one("plain", dims=(4,), batched=False),
        one_to_one("labelled", dims=(4,), labels={"OUTPUT0": ("cat", "dog", "owl", "elk")}),
        model(
            "pair",
            [
                TensorSpec("INPUT0", "UINT8", (-1,)),
                TensorSpec("INPUT1", "FP32", (-1,)),
                TensorSpec("INPUT2", "INT64", (-1,), optional=True),
            ],
            [TensorSpec("OUTPUT0", "UINT8", (-1,)), TensorSpec("OUTPUT1", "FP32", (-1,))],
        ),
    )
    yield stand
    stand.close()


@pytest.fixture
def runtime(http: Stand) -> Iterator[FakeRuntime]:
    """The server's runtime, as it was found when the test ends."""
    yield http.parts.runtime

    def restore() -> None:
        runtime = http.parts.runtime
        runtime.hold = False
        runtime.release()
        runtime.errors.clear()
        runtime.runs.clear()

    http.do(restore)


ALL_DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip
