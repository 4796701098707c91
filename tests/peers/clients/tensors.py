"""Inputs for the test models, and what is expected, for every flavour of tritonclient."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)
#: The input that makes the model ``slow`` take half a second.
SLOW = np.full((1, 1), 7, np.float32)


def given(client: ModuleType, array: Any, datatype: str, name: str = "INPUT0", **how: Any) -> Any:
    """An InferInput with its data."""
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **how)
    return tensor


def pair(client: ModuleType) -> tuple[list[Any], Any, Any]:
    """Inputs of the model ``pair`` and its two expected outputs."""
    a, b = np.array([[5, 7]], np.int32), np.array([[2, 3]], np.int32)
    inputs = [given(client, a, "INT32", "INPUT0"), given(client, b, "INT32", "INPUT1")]
    return inputs, a + b, a - b


def same(result: Any, expected: Any, name: str = "OUTPUT0") -> None:
    """The named output equals the expectation, type and shape included."""
    got = result.as_numpy(name)
    assert got is not None, f"no output {name}"
    assert got.shape == expected.shape and got.dtype == expected.dtype, (got.shape, got.dtype)
    assert (got == expected).all(), (got, expected)


def refused(call: Callable[[], Any], *words: str) -> None:
    """The call raises the client's own exception with these words in its status or text."""
    try:
        call()
    except InferenceServerException as error:
        assert all(word in f"{error.status()} {error}" for word in words), error
    else:
        raise AssertionError("it was not refused")
