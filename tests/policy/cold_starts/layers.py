"""Lists of layers to plan for."""

from __future__ import annotations

from hypothesis import strategies as st

from interlace.core.profile import LayerProfile

KINDS = ("Embedding", "BatchNorm2d", "Linear", "LayerNorm", "Conv2d")
#: In quarters, so that sums are exact and ties happen.
quarters = st.integers(0, 12).map(lambda count: count / 4)


@st.composite
def layer(draw: st.DrawFn) -> LayerProfile:
    run_ms = draw(quarters)
    if draw(st.booleans()):
        return LayerProfile("free", 0, draw(quarters), run_ms, run_ms + draw(quarters), "ReLU")
    copy_ms = draw(quarters) + 0.25
    slower_ms = draw(st.integers(-2, 12)) / 4
    host_ms = max(0.0, run_ms + slower_ms)
    nbytes = int(copy_ms * 1024)
    return LayerProfile("layer", nbytes, copy_ms, run_ms, host_ms, draw(st.sampled_from(KINDS)))


def layer_lists(most: int) -> st.SearchStrategy[list[LayerProfile]]:
    return st.lists(layer(), min_size=1, max_size=most)
