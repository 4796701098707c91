"""From folder to model: files and model joined, contradictions named."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Precision
from interlace.core.tensor import Signature, TensorSpec
from interlace.repository.config_json import config_json
from interlace.repository.draft import Draft, read
from interlace.repository.model import complete
from tests.repository.folders import add

SAID = Signature(
    (TensorSpec("x", "FP32", (3, -1)), TensorSpec("mask", "INT64", (-1,), optional=True)),
    (TensorSpec("y", "FP32", (-1, 10)), TensorSpec("z", "FP32", (2,))),
    True,
    0,
)


def draft(root: Path, pbtxt: str = "", toml: str = "", **files: str) -> Draft:
    texts = {"config.pbtxt": pbtxt, "interlace.toml": toml, "1/model.onnx": "graph"}
    return read_after(add(root, "m", texts | files))


def read_after(folder: Path) -> Draft:
    return read(folder.parent, folder.name, 1)


def test_a_specific_version_without_a_folder_is_noted(tmp_path: Path) -> None:
    notes = draft(tmp_path, "version_policy { specific { versions: [1, 3] } }").notes
    assert [note.partition("versions: ")[2] for note in notes] == [
        "version 3 has no folder, and is not served"
    ]


def test_the_model_alone_says_everything(tmp_path: Path) -> None:
    model = complete(draft(tmp_path), SAID, 3)
    assert model.key == "m/1#3"
    assert model.format is Format.ONNX
    assert model.signature == Signature(SAID.inputs, SAID.outputs, True, 32)
    assert model.sample == {"x": (64,), "mask": (64,)}
    assert (model.terms.slo_ms, model.terms.queue_limit) == (100.0, 4096)
    assert len(model.digest) == 64
    assert model.path == str(tmp_path / "m" / "1")


def test_files_win_where_they_do_not_contradict(tmp_path: Path) -> None:
    made = draft(
        tmp_path,
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [3, 7] }'
        'output { name: "y" dims: [5, 10] label_filename: "names.txt" }'
        "dynamic_batching { default_priority_level: 2 default_queue_policy { max_queue_size: 9 } }",
        "slo_ms = 7\n[sample]\nmask = [12]",
        **{"names.txt": "cat\ndog\n"},
    )
    model = complete(made, SAID, 0)
    assert model.signature.max_batch == 8
    assert model.signature.inputs == (TensorSpec("x", "FP32", (3, 7)), SAID.inputs[1])
    assert model.signature.outputs == (TensorSpec("y", "FP32", (5, 10)),)
    assert model.sample == {"mask": (12,)}
    assert (model.terms.slo_ms, model.terms.priority, model.terms.queue_limit) == (7.0, 2, 9)
    assert model.labels == {"y": ("cat", "dog")}


def test_a_model_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    """Also with a size that was given with a unit."""
    model = complete(draft(tmp_path, toml='memory_limit = "200MiB"'), SAID, 0)
    assert model.terms.memory_limit_bytes == 200 << 20
    assert msgspec.msgpack.encode(model)


def test_naming_labels_hides_no_output(tmp_path: Path) -> None:
    made = draft(tmp_path, 'output { name: "y" label_filename: "l" }', l="a\n \n")
    model = complete(made, SAID, 0)
    assert model.signature.outputs == SAID.outputs
    assert model.labels == {"y": ("a", " ")}


@pytest.mark.parametrize(
    ("pbtxt", "toml", "message"),
    [
        (
            'input { name: "w" }',
            "",
            r"pbtxt:1: input\[0\].name: found 'w'; expected an input of the",
        ),
        ('output { name: "Y" }', "", r"output\[0\].name: found 'Y'.*Known|found 'Y'"),
        ('input { name: "x" data_type: TYPE_INT8 }', "", "found TYPE_INT8; expected TYPE_FP32, as"),
        ('input { name: "x" dims: [4, 7] }', "", r"dims: found \[4, 7\]; expected \[3, -1\], as"),
        ('max_batch_size: 2 input { name: "x" dims: [3] }', "", r"found \[3\]; expected \[3, -1\]"),
        ('input { name: "x" optional: true }', "", "optional: found true; expected false"),
        ('input { name: "x" } input { name: "x" }', "", r"input\[1\].name: found 'x' again"),
        (
            "",
            "[sample]\nxx = [3]",
            r"interlace.toml:2: sample.xx: found input 'xx'; expected .*did",
        ),
        ("", "[sample]\nx = [4, 9]", r"sample.x: found \[4, 9\]; expected sizes that fit dims"),
        ("", "[sample]\nx = [1, 2, 3]", r"sample.x: found \[1, 2, 3\]"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, pbtxt: str, toml: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        complete(draft(tmp_path, pbtxt, toml), SAID, 0)


def test_full_samples_are_cut_to_free_dims(tmp_path: Path) -> None:
    model = complete(draft(tmp_path, "", "[sample]\nx = [3, 50]"), SAID, 0)
    assert model.sample == {"x": (50,), "mask": (64,)}


@pytest.mark.parametrize(
    ("pbtxt", "toml"),
    [
        ("max_batch_size: 0", ""),
        ("", "max_batch = 0"),
        ('input { name: "x" dims: [-1, 3, 5] }', ""),
    ],
)
def test_no_batching_means_full_shapes(tmp_path: Path, pbtxt: str, toml: str) -> None:
    signature = complete(draft(tmp_path, pbtxt, toml), SAID, 0).signature
    assert not signature.batched
    assert signature.max_batch == 1
    assert signature.inputs[1].dims == (-1, -1)
    assert signature.outputs[1].dims == (-1, 2)


DENSENET = Signature(
    (TensorSpec("x", "FP32", (1, 3, 224, 224)),),
    (TensorSpec("y", "FP32", (1, 10, 1, 1)),),
    False,
    0,
)


def test_a_reshape_keeps_the_clients_dims_and_the_models(tmp_path: Path) -> None:
    """Triton's own first example, densenet_onnx."""
    made = draft(
        tmp_path,
        'max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [3, 224, 224]'
        " reshape { shape: [1, 3, 224, 224] } }"
        'output { name: "y" dims: [10] reshape { shape: [1, 10, 1, 1] } }',
    )
    assert made.provisional().signature.inputs[0].own.dims == (1, 3, 224, 224)
    model = complete(made, DENSENET, 0)
    assert model.signature.inputs[0].dims == (3, 224, 224)
    assert model.signature.outputs[0] == TensorSpec("y", "FP32", (10,), False, (1, 10, 1, 1))
    rendered = config_json(model, made.config)
    assert rendered["input"][0]["reshape"] == {"shape": [1, 3, 224, 224]}
    assert rendered["output"][0]["reshape"] == {"shape": [1, 10, 1, 1]}
    free = TensorSpec("x", "FP32", (-1, 3), False, (1, -1, 3))
    assert free.model_shape((8, 5, 3)) == (8, 1, 5, 3)
    assert free.client_shape((8, 1, 5, 3)) == (8, 5, 3)


@pytest.mark.parametrize("batch", ["max_batch_size: 0", ""])
def test_values_of_the_graph_are_optional_inputs_without_batches(
    tmp_path: Path, batch: str
) -> None:
    """The configuration decides, whatever the first dims of the graph are."""
    x, w = TensorSpec("x", "FP32", (2,)), TensorSpec("w", "FP32", (2,), optional=True)
    said = Signature((x,), (TensorSpec("y", "FP32", (2,)),), True, 0, (w,))
    text = 'input [ { name: "x" dims: [-1, 2] }, { name: "w" dims: [2] optional: true } ]'
    signature = complete(draft(tmp_path, f"{batch} {text}"), said, 0).signature
    assert not signature.batched
    assert signature.inputs == (TensorSpec("x", "FP32", (-1, 2)), w)
    assert complete(draft(tmp_path / "plain"), said, 0).signature.inputs == (x,)
    with pytest.raises(RepositoryError, match="'w'"):
        complete(draft(tmp_path / "b", 'max_batch_size: 4 input { name: "w" }'), said, 0)


def test_sample_dims_of_one_name_have_one_size(tmp_path: Path) -> None:
    """Whichever input the operator gives the size of."""
    ids, mask = (
        TensorSpec(name, "INT64", (-1,), free_names=("sequence",)) for name in ("ids", "mask")
    )
    said = Signature((ids, mask), (TensorSpec("y", "FP32", (2,)),), True, 0)
    for name in ("ids", "mask"):
        model = complete(draft(tmp_path / name, toml=f"[sample]\n{name} = [16]"), said, 0)
        assert model.sample == {"ids": (16,), "mask": (16,)}
    assert complete(draft(tmp_path / "none"), said, 0).sample == {"ids": (64,), "mask": (64,)}
    with pytest.raises(
        RepositoryError, match=r"sample.mask: found 8 for dim 'sequence'; expected 16"
    ):
        complete(draft(tmp_path / "two", toml="[sample]\nids = [16]\nmask = [8]"), said, 0)
    full = complete(draft(tmp_path / "full", "max_batch_size: 0"), said, 0).signature.inputs[0]
    assert full == TensorSpec("ids", "INT64", (-1, -1), free_names=("", "sequence"))


def test_a_reshape_must_fit_the_model(tmp_path: Path) -> None:
    text = 'max_batch_size: 0 input { name: "x" dims: [3, 224, 224] reshape { shape: [672, 224] } }'
    with pytest.raises(RepositoryError, match=r"reshape: found \[672, 224\]; expected \[1, 3, 224"):
        complete(draft(tmp_path, text), DENSENET, 0)


@pytest.mark.parametrize("dims", ["", "dims: [ ]", "dims: [1]"])
def test_a_scalar_has_one_dim_on_the_wire(tmp_path: Path, dims: str) -> None:
    """As Triton does, with a configuration and without."""
    said = Signature((TensorSpec("x", "FP32", ()),), (TensorSpec("y", "FP32", ()),), False, 0)
    made = draft(tmp_path, f'input {{ name: "x" {dims} }} output {{ name: "y" {dims} }}')
    signature = complete(made, said, 0).signature
    assert signature.inputs == (TensorSpec("x", "FP32", (1,), False, ()),)
    assert signature.outputs == (TensorSpec("y", "FP32", (1,), False, ()),)


def test_batching_needs_a_free_first_dim(tmp_path: Path) -> None:
    fixed = Signature((TensorSpec("x", "FP32", (1, 3)),), (), False, 0)
    for pbtxt, toml in (("max_batch_size: 4", ""), ("", "max_batch = 4")):
        where = "pbtxt:1: max_batch_size" if pbtxt else "toml:1: max_batch"
        with pytest.raises(RepositoryError, match=f"{where}: found batching, but 'x' of the model"):
            complete(draft(tmp_path, pbtxt, toml), fixed, 0)


def test_a_models_own_limit_holds(tmp_path: Path) -> None:
    limited = Signature(SAID.inputs, SAID.outputs, True, 16)
    assert complete(draft(tmp_path), limited, 0).signature.max_batch == 16
    with pytest.raises(RepositoryError, match="max_batch: found 20 rows; expected at most 16"):
        complete(draft(tmp_path, "", "max_batch = 20"), limited, 0)


def test_without_the_model_the_files_must_say_everything(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="input: found no full description of every input"):
        complete(draft(tmp_path, 'input { name: "x" }'), None, 0)
    text = (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_BOOL dims: [1] }'
        'output { name: "y" data_type: TYPE_STRING dims: [1] }'
    )
    signature = complete(draft(tmp_path, text), None, 0).signature
    assert signature.outputs == (TensorSpec("y", "BYTES", (1,)),)


def test_the_provisional_model_says_what_files_say(tmp_path: Path) -> None:
    text = (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "y" }'
    )
    model = draft(tmp_path, text, "[sample]\nx = [9]").provisional()
    assert model.signature == Signature((TensorSpec("x", "FP32", (1,)),), (), True, 4)
    assert model.sample == {"x": (9,)}


START, END = "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END"
SECOND = r"config.pbtxt:1: sequence_batching.control_input\[1\]"
TWICE = f"{SECOND}.control: found 'A' and 'B' of kind {START}; expected one control of a kind"
NO_NAME = SECOND + ".name: found '%s'; expected the name of a tensor that no other"


def control(name: str, kind: str) -> str:
    kinds = f"control {{ kind: {kind} fp32_false_true: [ 0, 1 ] }}"
    return f'control_input {{ name: "{name}" {kinds} }}'


@pytest.mark.parametrize(
    ("pbtxt", "message"),
    [
        (
            "sequence_batching { iterative_sequence: true }",
            "iterative_sequence: found true; .*TritonPython",
        ),
        (
            'sequence_batching { control_input { name: "S" control { kind: '
            "CONTROL_SEQUENCE_END fp32_false_true: [ 1 ] } } }",
            r"control_input\[0\].control: found .*; expected one of int32_false_true, fp32",
        ),
        (
            'sequence_batching { control_input { name: "S" control { kind: '
            "CONTROL_SEQUENCE_CORRID } } }",
            "found no data_type; expected data_type: TYPE_UINT64",
        ),
        (f"sequence_batching {{ {control('A', START)} {control('B', START)} }}", TWICE),
        (f"sequence_batching {{ {control('A', START)} {control('A', END)} }}", NO_NAME % "A"),
        (f"sequence_batching {{ {control('A', START)} {control('', END)} }}", NO_NAME % ""),
        (
            'sequence_batching { state { input_name: "s" data_type: TYPE_FP32 dims: 1 } }',
            r"state\[0\]: found .*; expected input_name, output_name, data_type and dims",
        ),
        (
            'sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_FP32 '
            'dims: 1 initial_state { data_file: "no" dims: 1 } } }',
            "found 'no'; expected a file in the folder initial_state",
        ),
        (
            'sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_FP32 '
            'dims: 1 initial_state { data_file: "/etc/hosts" dims: 1 } } }',
            "found '/etc/hosts'; expected a file in the folder initial_state",
        ),
        ("model_transaction_policy { decoupled: true }", "found true, for a model of onnx"),
        (
            'input { name: "x" dims: 2 reshape { } }',
            r"input\[0\].reshape: found \[\]; expected as many elements as dims \[2\], free",
        ),
        ('input { name: "x" dims: [2, -1] reshape { shape: [-1, 2] } }', "reshape: found"),
        ('input { name: "x" allow_ragged_batch: true }', "allow_ragged_batch: found true"),
        ("input { dims: [1] }", r"input\[0\]: found no name"),
        (
            'output { name: "y" label_filename: "../x" }',
            "found '../x'; expected a file in the model",
        ),
        ('output { name: "y" label_filename: "none" }', "label_filename: found .*none"),
        ('name: "n"', "found 'n'; expected 'm'"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, pbtxt: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        draft(tmp_path, pbtxt)


CORRID = (
    'control_input { name: "I" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }'
)
STATE = 'state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: 1 }'


@pytest.mark.parametrize(
    ("written", "most"),
    [
        ("sequence_batching { direct { } }", 1),
        ("sequence_batching { }", 1),
        (f"sequence_batching {{ {CORRID} }}", 0),
        (f"sequence_batching {{ {STATE} }}", 0),
        ("max_batch_size: 4 sequence_batching { direct { } }", 0),
        ("sequence_batching { oldest { max_candidate_sequences: 7 } }", 7),
    ],
)
def test_code_that_may_keep_the_state_of_one_sequence_has_one(
    tmp_path: Path, written: str, most: int
) -> None:
    texts = {
        "config.pbtxt": f'backend: "python" {written}',
        "1/model.py": "class TritonPythonModel: ...",
    }
    terms = read_after(add(tmp_path, "m", texts)).sequences
    assert terms is not None and terms.candidates == most


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    text = "instance_group { count: 2 }\ndynamic_batching { max_queue_delay_microseconds: 5 }"
    notes = draft(tmp_path, text).notes
    assert len(notes) == 2
    assert "config.pbtxt:1: instance_group has no effect" in notes[0]
    assert "dynamic_batching.max_queue_delay_microseconds has no effect" in notes[1]


def test_a_ragged_flag_changes_nothing_for_a_python_model(tmp_path: Path) -> None:
    text = 'backend: "python"\ninput { name: "x" allow_ragged_batch: true }'
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text("class TritonPythonModel: pass")
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    (note,) = read(tmp_path, "m", 1).notes
    assert "config.pbtxt:2: input[0].allow_ragged_batch has no effect" in note


def test_queue_policies_without_effect_are_told_and_a_timeout_is_offered_as_slo(
    tmp_path: Path,
) -> None:
    text = (
        "dynamic_batching {\n preserve_ordering: true\n priority_levels: 2\n"
        " default_priority_level: 1\n"
        " default_queue_policy {\n  timeout_action: DELAY\n  allow_timeout_override: true\n"
        "  default_timeout_microseconds: 100000\n  max_queue_size: 9\n }\n"
        " priority_queue_policy { key: 1 value { max_queue_size: 3 } }\n}"
    )
    notes = draft(tmp_path, text).notes
    told = [note.partition("dynamic_batching.")[2].partition(" has no")[0] for note in notes]
    policy = "default_queue_policy"
    assert told == [
        "preserve_ordering", "priority_levels", "priority_queue_policy",
        f"{policy}.timeout_action", f"{policy}.allow_timeout_override",
        f"{policy}.default_timeout_microseconds",
    ]  # fmt: skip
    assert "say slo_ms = 100 in interlace.toml" in notes[-1]


def test_a_config_sent_by_a_client_stands_in_for_the_file(tmp_path: Path) -> None:
    add(
        tmp_path,
        "m",
        {"config.pbtxt": "nonsense", "interlace.toml": "slo_ms = 9", "1/model.onnx": ""},
    )
    made = read(tmp_path, "m", 1, '{"maxBatchSize": 2}')
    assert complete(made, SAID, 0).signature.max_batch == 2
    assert made.terms.slo_ms == 9.0


@pytest.mark.parametrize(("name", "version"), [("../m", 1), ("m", 2), ("none", 1)])
def test_what_is_not_there_is_named(tmp_path: Path, name: str, version: int) -> None:
    add(tmp_path, "m", {"1/model.onnx": ""})
    with pytest.raises(RepositoryError, match=r"model name|no such folder"):
        read(tmp_path, name, version)


DIMS = st.lists(st.sampled_from([-1, 1, 5]), max_size=3)


@given(st.lists(DIMS, min_size=1, max_size=3), st.booleans(), st.none() | st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_shapes_on_the_wire_do_not_depend_on_batching(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[int]], batched: bool, asked: Any
) -> None:
    """With the rows in front, a tensor's shape is the model's own however it is batched."""
    specs = tuple(TensorSpec(f"t{n}", "FP32", tuple(dims)) for n, dims in enumerate(shapes))
    toml = "" if asked is None else f"max_batch = {asked}"
    made = draft(tmp_path_factory.mktemp("r"), "", toml)
    try:
        found = complete(made, Signature(specs, specs, batched, 0), 0).signature
    except RepositoryError:
        assert asked and not batched
        assert any(dims[:1] != [-1] for dims in shapes)
        return
    assert found.batched == (batched if asked is None else asked > 0)
    for before, after in zip(specs, found.inputs, strict=True):
        rows = (-1,)
        own = rows + before.dims if batched else before.dims
        assert (rows + after.own.dims if found.batched else after.own.dims) == own
        assert (rows + after.dims if found.batched else after.dims) == (own or (1,))


def test_config_json_is_what_clients_read(tmp_path: Path) -> None:
    text = 'output { name: "y" label_filename: "l" }'
    text += 'parameters { key: "k" value { string_value: "v" } }'
    made = draft(tmp_path, text, "max_batch = 4", l="a\nb\n")
    rendered = config_json(complete(made, SAID, 0), made.config)
    assert rendered["max_batch_size"] == 4
    assert (rendered["platform"], rendered["backend"]) == ("onnxruntime_onnx", "onnxruntime")
    assert rendered["input"][0]["dims"] == [3, -1]
    assert (
        rendered["input"][1] | {"optional": True, "data_type": "TYPE_INT64"} == rendered["input"][1]
    )
    assert rendered["output"][0]["label_filename"] == "l"
    assert rendered["parameters"]["labels:y"] == {"string_value": "a\nb"}
    assert rendered["parameters"]["k"] == {"string_value": "v"}
    assert rendered["parameters"]["slo_ms"] == {"string_value": "100"}
    assert rendered["model_transaction_policy"] == {"decoupled": False}
    assert rendered["version_policy"] == {"latest": {"num_versions": 1}}
    assert "dynamic_batching" in rendered
    unbatched = config_json(complete(draft(tmp_path, "max_batch_size: 0"), SAID, 0), made.config)
    assert unbatched["max_batch_size"] == 0
    assert "dynamic_batching" not in unbatched


def test_the_file_that_the_config_names_is_opened(tmp_path: Path) -> None:
    """Of two in a folder: profiles and weights of one are not the other's."""
    files = {"1/a.onnx": "a", "1/b.onnx": "b"}
    first = draft(tmp_path, 'default_model_filename: "a.onnx"', **files)
    model = complete(first, SAID, 0)
    assert model.source == tmp_path / "m" / "1" / "a.onnx"
    assert first.provisional().source == model.source
    assert config_json(model, first.config)["default_model_filename"] == "a.onnx"
    assert draft(tmp_path, 'default_model_filename: "b.onnx"', **files).digest != first.digest


def test_another_precision_is_another_digest(tmp_path: Path) -> None:
    digests = []
    for toml in ("", 'precision = "fp32"', 'precision = "fp16"', "compile = true"):
        drafted = draft(tmp_path, toml=toml)
        digests.append(drafted.digest)
        assert drafted.terms.precision is (Precision.FP16 if "16" in toml else Precision.FP32)
        assert drafted.terms.compiled is ("compile" in toml)
    assert digests[0] == digests[1]  # as the model came
    assert len(set(digests[1:])) == 3


_W, _V = TensorSpec("w", "FP32", (-1, 2), optional=True), TensorSpec("v", "FP32", (2,), True)
_X = TensorSpec("x", "FP32", (2,))
_OVERRIDABLE = Signature((_X,), (TensorSpec("y", "FP32", (2,)),), True, 0, (_W, _V))


@pytest.mark.parametrize(
    ("largest", "listed", "wanted"),
    [
        (4, {"x": "", "w": "optional: true"}, {"x": False, "w": True}),
        (4, {"x": "", "w": ""}, {"x": False, "w": False}),
        (0, {"x": "", "v": "optional: true"}, {"x": False, "v": True}),
        (0, {"x": ""}, {"x": False}),
        (0, {}, {"x": False, "w": True, "v": True}),
        (4, {}, {"x": False}),
    ],
)
def test_a_config_says_which_initializers_may_be_given(
    tmp_path: Path, largest: int, listed: dict[str, str], wanted: dict[str, bool]
) -> None:
    tensors = " ".join(f'input {{ name: "{name}" {more} }}' for name, more in listed.items())
    made = draft(tmp_path, f"max_batch_size: {largest} {tensors}")
    inputs = complete(made, _OVERRIDABLE, 0).signature.inputs
    assert {spec.name: spec.optional for spec in inputs} == wanted


def test_an_initializer_without_rows_needs_a_model_without(tmp_path: Path) -> None:
    config = 'max_batch_size: 4 input { name: "v" optional: true }'
    with pytest.raises(RepositoryError, match="'v', an initializer without rows, of a model that"):
        complete(draft(tmp_path, config), _OVERRIDABLE, 0)
