"""Deployment keys as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.deployment_key import DeploymentKey, model_name


@given(st.text(min_size=1), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_key_is_the_same_after_being_text(name: str, version: int, generation: int) -> None:
    key = DeploymentKey(name, version, generation)
    assert DeploymentKey.parse(str(key)) == key
    assert model_name(str(key)) == name


@pytest.mark.parametrize("text", ["", "a", "a/1", "a#1", "/1#1", "a/x#1", "a/1#", "a/1#x"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name/version#generation"):
        DeploymentKey.parse(text)


def test_planned_models_have_their_own_name() -> None:
    assert [model_name(one) for one in ("a/1#0", "org/a/2#1", "a", "org/a")] == [
        "a", "org/a", "a", "org/a"
    ]  # fmt: skip
