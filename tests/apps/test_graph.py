"""Graphs of ensembles: order, what is needed, and every wrong graph named with its key."""

from types import SimpleNamespace
from typing import Any

import pytest

from interlace.apps.graph import App, check_members, fitted_shape, read_ensemble
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature, TensorSpec
from interlace.repository.draft import declared_signature
from interlace.repository.model_config import ModelConfig, parse_pbtxt

HEAD = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 8 ] } ]
output [ { name: "CLASS" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{k}" value: "{v}" }}' for k, v in inputs.items()]
    maps += [f'output_map {{ key: "{k}" value: "{v}" }}' for k, v in outputs.items()]
    return f'step [ {{ model_name: "{model}" {" ".join(maps)} }} ]\n'


def ensemble(*steps: str, head: str = HEAD) -> ModelConfig:
    text = head + "ensemble_scheduling {\n" + "".join(steps) + "}\n"
    return parse_pbtxt(text, "config.pbtxt")


def graph(*steps: str, head: str = HEAD) -> App:
    return read_ensemble(draft(*steps, head=head))


def draft(
    *steps: str, head: str = HEAD, slo_ms: float = 100.0, rate_rps: float | None = None
) -> Any:
    """What is read of an ensemble's folder."""
    config = ensemble(*steps, head=head)
    signature = declared_signature(config, config.values.get("max_batch_size", 0))
    return SimpleNamespace(
        name="app",
        config=config,
        terms=ServiceTerms(slo_ms, rate_rps=rate_rps),
        provisional=lambda: SimpleNamespace(signature=signature),
    )


FIRST = step("first", {"X": "IMAGE"}, {"Y": "features", "Z": "unused"})
SECOND = step("second", {"X": "features"}, {"Y": "CLASS"})


def model(
    name: str,
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    most: int = 4,
) -> Model:
    def specs(tensors: dict[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, "FP32", dims) for name, dims in tensors.items())

    signature = Signature(specs(inputs), specs(outputs), most > 0, max(1, most))
    return Model(name, 1, Format.ONNX, "/x", "0", signature, ServiceTerms(100.0))


def test_steps_come_after_those_that_they_read() -> None:
    app = graph(SECOND, FIRST)
    assert [one.model for one in app.steps] == ["first", "second"]
    assert app.places == (1, 0)
    assert app.readers == ((1,), ())


def test_only_steps_that_lead_to_a_wanted_output_are_needed() -> None:
    head = HEAD + 'output [ { name: "BOX" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
    app = graph(FIRST, SECOND, step("boxes", {"X": "features"}, {"Y": "BOX"}), head=head)
    names = [one.model for one in app.steps]
    needed = app.needed(["BOX"])
    assert {names[place] for place in needed} == {"first", "boxes"}
    assert len(app.needed(["BOX", "CLASS"])) == 3


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([], r"ensemble_scheduling.step: found none"),
        ([FIRST], r"output\[0\].name: found 'CLASS'"),
        ([SECOND], r"config.pbtxt:\d+: ensemble_.*: found tensor 'features', which no step gives"),
        ([FIRST, SECOND, SECOND], r"step\[2\].output_map.*is step 1's already"),
        (
            [step("a", {"X": "IMAGE"}, {"Y": "IMAGE"})],
            r"output 'Y' of 'a' as tensor 'IMAGE'.*an input of the ensemble's already",
        ),
        ([step("app", {"X": "IMAGE"}, {"Y": "CLASS"})], r"model_name: found the ensemble itself"),
        ([step("a", {}, {"Y": "CLASS"})], r"step\[0\].input_map: found none"),
        ([step("a", {"X": "IMAGE"}, {})], r"step\[0\].output_map: found none"),
        (
            [
                step("a", {"X": "IMAGE", "W": "two"}, {"Y": "one"}),
                step("b", {"X": "one"}, {"Y": "two", "Z": "CLASS"}),
            ],
            r"a cycle: .*a \(step 0\)",
        ),
    ],
)
def test_a_wrong_graph_is_named_with_its_key(steps: list[str], error: str) -> None:
    with pytest.raises(RepositoryError, match=error):
        graph(*steps)


def test_inputs_and_outputs_are_declared() -> None:
    head = 'platform: "ensemble"\nmax_batch_size: 4\ninput [ { name: "IMAGE" } ]\n'
    with pytest.raises(RepositoryError, match="no full description of every input"):
        graph(FIRST, head=head)


GOOD = {
    "first": model("first", {"X": (8,)}, {"Y": (-1,), "Z": (3,)}),
    "second": model("second", {"X": (5,)}, {"Y": (2,)}),
}


def checked(**members: Model) -> None:
    one, found = draft(FIRST, SECOND), {**GOOD, **members}
    signature = one.provisional().signature
    check_members(read_ensemble(one), signature, lambda name, _: found[name], one.config)


@pytest.mark.parametrize(
    ("member", "error"),
    [
        (model("second", {"X": (5,)}, {"Y": (3,)}), r"output_map\['Y'\].*shape \[-1, 3\]"),
        (model("second", {"X": (5, 5)}, {"Y": (2,)}), r"input_map\['X'\].*'first'"),
        (model("second", {"W": (5,)}, {"Y": (2,)}), "no tensor for input 'W' of 'second'"),
        (model("second", {"X": (5,)}, {"Q": (2,)}), r"output_map\['Y'\]: found 'Y', which"),
        (model("second", {"X": (5,)}, {"Y": (2,)}, 2), "max_batch_size 2"),
    ],
)
def test_a_member_that_does_not_fit_is_named(member: Model, error: str) -> None:
    with pytest.raises(RepositoryError, match=error):
        checked(second=member)


def test_members_that_fit_pass_with_rows_or_with_full_shapes() -> None:
    checked()
    checked(second=model("second", {"X": (-1, 5)}, {"Y": (-1, 2)}, 0))
    checked(second=model("second", {"X": (5,)}, {"Y": (2,)}, 0))


def test_rows_are_added_and_removed_between_members() -> None:
    spec = TensorSpec("X", "FP32", (5,))
    assert fitted_shape((3, 5), True, spec, True, "it") == (3, 5)
    assert fitted_shape((5,), False, spec, True, "it") == (1, 5)
    assert fitted_shape((1, 5), True, spec, False, "it") == (5,)
    assert fitted_shape((7, 5), False, spec, True, "it") == (7, 5)
    with pytest.raises(ServeError, match=r"it has shape \[2, 5\], expected \[5\]"):
        fitted_shape((2, 5), True, spec, False, "it")
