"""An app as a graph: which model reads which tensors, checked before it is served.

Apps are written as Triton's ensembles: steps, joined by the names of the tensors between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

from interlace.core.errors import ServeError, bad_input
from interlace.core.model import Model
from interlace.core.tensor import Signature, TensorSpec

if TYPE_CHECKING:  # scenarios of apps have no model folders
    from interlace.repository.draft import Draft
    from interlace.repository.model_config import ModelConfig

#: The weight of the newest request in the average of a step's run, which counts at most so many
#: times the average; and what is left of it after a hopeless refusal.
_NEWEST: Final = 0.2
_MOST: Final = 4.0
_DOUBTED: Final = 0.97
_STEPS: Final = "ensemble_scheduling.step"


@dataclass(frozen=True, slots=True)
class Step:
    """One model of an app.

    ``inputs`` and ``outputs`` map names of the model's tensors to names of the app's. An empty
    ``version`` is the newest one. ``rows`` are those of a request, on average.
    """

    name: str
    model: str
    version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    rows: float = 1.0


@dataclass(frozen=True, slots=True)
class App:
    """Steps in an order in which each comes after those whose tensors it reads.

    ``places`` are their positions in the config, for errors. ``readers`` holds, for each step, the
    steps that read one of its outputs.
    """

    name: str
    steps: tuple[Step, ...]
    places: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> list[str]:
        """Names of the models, each once."""
        return list(dict.fromkeys(step.model for step in self.steps))

    def needed(self, outputs: Collection[str]) -> frozenset[int]:
        """The steps without which one of these tensors would be missing."""
        wanted, steps = set(outputs), set[int]()
        for place in reversed(range(len(self.steps))):
            step = self.steps[place]
            if wanted.intersection(step.outputs.values()):
                steps.add(place)
                wanted.update(step.inputs.values())
        return frozenset(steps)

    def without_tensors(self) -> App:
        """The same stages as ``staged`` has them, for simulations."""
        stages = {
            step.name: Stage(
                step.model,
                tuple(
                    before.name
                    for before, readers in zip(self.steps, self.readers, strict=True)
                    if place in readers
                ),
                step.rows,
            )
            for place, step in enumerate(self.steps)
        }
        return staged(self.name, stages)


@dataclass(frozen=True, slots=True)
class Stage:
    """A step as scenarios have it, without tensors: a model that runs after other stages.

    ``rows`` are those of a request on average. With several stages before it, it runs one row.
    """

    model: str
    after: tuple[str, ...] = ()
    rows: float = 1.0


def staged(name: str, stages: Mapping[str, Stage]) -> App:
    """The app of these stages, by name.

    A tensor ``A>B`` goes from A to B, ``>B`` comes with the request, and ``A`` is an output, if no
    stage follows A. The version of a step tells its app and stage.

    Raises:
        ValueError: no stage, a cycle, or a stage after one that is not there.
    """
    for stage, own in stages.items():
        for other in own.after:
            if other not in stages:
                raise ValueError(f"stage '{stage}' is after '{other}'; known: {', '.join(stages)}")
    if not stages:
        raise ValueError("an app has at least one stage")
    try:
        order = list(TopologicalSorter({n: one.after for n, one in stages.items()}).static_order())
    except CycleError as error:
        raise ValueError(f"the stages go in a circle: {' -> '.join(error.args[1])}") from error
    behind = {stage: [n for n in order if stage in stages[n].after] for stage in order}
    steps = tuple(
        Step(
            stage,
            stages[stage].model,
            f"{name}/{stage}",
            {one: f"{one}>{stage}" for one in stages[stage].after or ("",)},
            {one: f"{stage}>{one}" for one in behind[stage]} or {stage: stage},
            stages[stage].rows,
        )
        for stage in order
    )
    readers = tuple(tuple(order.index(one) for one in behind[stage]) for stage in order)
    return App(name, steps, tuple(range(len(order))), readers)


class ServedApp:
    """An app that takes requests: its graph, its model as clients see it, its steps' times.

    ``runs_ms`` are averages over the latest requests of each step, from the end of its wait.
    """

    def __init__(self, app: App, model: Model) -> None:
        self.app = app
        self.model = model
        self.runs_ms = [0.0 for _ in app.steps]

    def ran(self, place: int, run_ms: float) -> None:
        """Take in a request of a step that was answered; a stall counts as a few runs."""
        known_ms = self.runs_ms[place]
        if known_ms:
            run_ms = known_ms + _NEWEST * (min(run_ms, _MOST * known_ms) - known_ms)
        self.runs_ms[place] = run_ms

    def doubt(self) -> None:
        """A request was refused because even an idle server seemed too slow.

        Refusals teach nothing: runs count for less, until one is let in and shows the truth.
        """
        self.runs_ms = [_DOUBTED * run_ms for run_ms in self.runs_ms]

    def rest_ms(self, time_ms: float) -> list[float]:
        """For each step, what to keep for those behind it, of a request that has ``time_ms``.

        A step runs, and waits as long for the batch before it (``budgets.step_cost``). Of less time
        each step has a part in proportion to its run (equal flexibility; Kao and Garcia-Molina,
        ICDCS 1993).
        """
        rest = [0.0] * len(self.runs_ms)
        for place in reversed(range(len(rest))):
            for reader in self.app.readers[place]:
                rest[place] = max(rest[place], self.runs_ms[reader] + rest[reader])
        whole_ms = max(run_ms + after for run_ms, after in zip(self.runs_ms, rest, strict=True))
        factor = min(max(time_ms / whole_ms, 1.0), 2.0) if whole_ms else 1.0
        return [factor * each for each in rest]


def read_ensemble(draft: Draft) -> App:
    """The graph of a model whose config has ``ensemble_scheduling``; its members are checked later.

    Raises:
        RepositoryError: no inputs, outputs or steps; a tensor with no producer or with two; a
            cycle. With file, line and key.
    """
    config, name, signature = draft.config, draft.name, draft.provisional().signature
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if not specs or len(specs) != len(config.values.get(kind, ())):
            expected = f"{kind} [ {{ name data_type dims }} ]: an ensemble declares every {kind}"
            raise config.error(kind, f"no full description of every {kind}", expected)
    given: list[dict[str, Any]] = config.values.get("ensemble_scheduling", {}).get("step", [])
    if not given:
        raise config.error(_STEPS, "none", "step [ { model_name input_map output_map } ]")
    steps = [_step(config, place, one, name) for place, one in enumerate(given)]
    if config.keys and draft.settings.app is not None:
        stages = zip(steps, draft.settings.app.stages.items(), strict=True)
        steps = [replace(one, name=stage, rows=own.rows) for one, (stage, own) in stages]
    producers = _producers(config, steps, signature)
    before = {
        place: {p for tensor in step.inputs.values() if (p := producers[tensor]) is not None}
        for place, step in enumerate(steps)
    }
    order = _sorted(config, before, steps)
    at = {place: index for index, place in enumerate(order)}
    readers: list[list[int]] = [[] for _ in order]
    for place, parents in before.items():
        for parent in parents:
            readers[at[parent]].append(at[place])
    return App(
        name,
        tuple(steps[place] for place in order),
        tuple(order),
        tuple(tuple(sorted(one)) for one in readers),
    )


def _step(config: ModelConfig, place: int, given: Mapping[str, Any], name: str) -> Step:
    key = f"{_STEPS}[{place}]"
    model = given.get("model_name", "")
    if not model or model == name:
        found = f"the ensemble itself, '{name}'" if model else "no model_name"
        raise config.error(f"{key}.model_name", found, "the name of another model")
    maps = []
    for kind in ("input_map", "output_map"):
        tensors: dict[str, str] = given.get(kind, {})
        if not tensors or "" in (*tensors, *tensors.values()):
            found = "an empty name" if tensors else "none"
            expected = 'key: "tensor of the model" value: "tensor of the ensemble"'
            raise config.error(f"{key}.{kind}", found, expected)
        maps.append(dict(tensors))
    version, (inputs, outputs) = given.get("model_version", -1), maps
    return Step(f"{model}.{place}", model, "" if version < 0 else str(version), inputs, outputs)


def _producers(
    config: ModelConfig, steps: list[Step], signature: Signature
) -> dict[str, int | None]:
    """The step that gives each tensor; ``None`` for inputs of the app."""
    found: dict[str, int | None] = dict.fromkeys(spec.name for spec in signature.inputs)
    for place, step in enumerate(steps):
        for own, tensor in step.outputs.items():
            if tensor in found:
                first = found[tensor]
                other = "an input of the ensemble" if first is None else f"step {first}"
                key = f"{_STEPS}[{place}].output_map"
                wrong = f"output '{own}' of '{step.model}' as tensor '{tensor}'"
                raise config.error(key, wrong, f"another name: it is {other}'s already")
            found[tensor] = place
    known = ", ".join(sorted(found))
    for place, step in enumerate(steps):
        for tensor in step.inputs.values():
            if tensor not in found:
                wrong = f"tensor '{tensor}', which no step gives"
                raise config.error(f"{_STEPS}[{place}].input_map", wrong, f"one of {known}")
    for place, spec in enumerate(signature.outputs):
        if found.get(spec.name) is None:
            expected = "a tensor in the output_map of a step"
            raise config.error(f"output[{place}].name", f"'{spec.name}'", expected)
    return found


def _sorted(
    config: ModelConfig, before: Mapping[int, Collection[int]], steps: list[Step]
) -> list[int]:
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        cycle = " -> ".join(f"{steps[place].model} (step {place})" for place in error.args[1])
        key = f"{_STEPS}[{error.args[1][0]}].input_map"
        raise config.error(key, f"a cycle: {cycle}", "steps that read only earlier ones") from error


def check_members(
    app: App, signature: Signature, find: Callable[[str, str], Model], config: ModelConfig
) -> None:
    """Check that the members' tensors fit each other.

    ``find`` returns the member of a name and version.

    Raises:
        RepositoryError: a member that is not served, a tensor that it does not have, a required
            input without a tensor, another datatype or shape, a smaller ``max_batch_size``. With
            file, line and key.
    """
    tensors = {spec.name: (spec, signature.batched, "the ensemble") for spec in signature.inputs}
    outputs = {spec.name: (spec, signature.batched, "the ensemble") for spec in signature.outputs}
    for place, step in zip(app.places, app.steps, strict=True):
        key = f"{_STEPS}[{place}]"
        try:
            model = find(step.model, step.version)
        except ServeError as error:
            wrong = f"'{step.model}' ({error})"
            raise config.error(f"{key}.model_name", wrong, "a model that is served") from error
        own = model.signature
        if own.decoupled or model.sequences is not None:
            found = f"'{step.model}', a model that is decoupled or takes sequences"
            raise config.error(key, found, "a model with one response to a request")
        if own.batched and own.max_batch < (signature.max_batch if signature.batched else 1):
            found = f"'{step.model}' with max_batch_size {own.max_batch}"
            raise config.error(key, found, f"at least the ensemble's, {signature.max_batch}")
        unmapped = [s.name for s in own.inputs if not s.optional and s.name not in step.inputs]
        if unmapped:
            found = f"no tensor for input '{unmapped[0]}' of '{step.model}'"
            raise config.error(f"{key}.input_map", found, "one for each input that is not optional")
        for kind, mapped, specs in (
            ("input_map", step.inputs, own.inputs),
            ("output_map", step.outputs, own.outputs),
        ):
            known = {spec.name: spec for spec in specs}
            for name, tensor in mapped.items():
                where = f"{key}.{kind}['{name}']"
                if name not in known:
                    found = f"'{name}', which '{step.model}' does not have"
                    raise config.error(where, found, f"one of {', '.join(known)}")
                mine = (known[name], own.batched, f"'{step.model}'")
                for others in (tensors, outputs):
                    if tensor in others:
                        _check_alike(config, where, tensor, mine, others[tensor])
                if kind == "output_map":
                    tensors[tensor] = mine


_End = tuple[TensorSpec, bool, str]  #: a tensor where it begins or ends, with rows or not, whose


def _check_alike(config: ModelConfig, where: str, tensor: str, mine: _End, other: _End) -> None:
    (spec, batched, owner), (known, known_batched, known_owner) = mine, other
    if spec.datatype != known.datatype:
        found = f"tensor '{tensor}' of {spec.datatype} in {owner}"
        raise config.error(where, found, f"{known.datatype}, as in {known_owner}")
    full = (-1, *spec.dims) if batched else spec.dims
    known_full = (-1, *known.dims) if known_batched else known.dims
    if not _alike(spec.dims, known.dims) and not _alike(full, known_full):
        found = f"tensor '{tensor}' of shape {list(full)} in {owner}"
        raise config.error(where, found, f"{list(known_full)}, as in {known_owner}")


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(
        -1 in (a, b) or a == b for a, b in zip(one, other, strict=True)
    )


def fitted_shape(
    shape: tuple[int, ...], had_rows: bool, spec: TensorSpec, rows: bool, where: str
) -> tuple[int, ...]:
    """The shape of a tensor where its next owner expects ``spec``, with ``rows`` in front or not.

    If only one of the two models has a batch dimension, a dimension of 1 is added or removed. A
    full shape that fits already stays.

    Raises:
        ServeError: BAD_INPUT, naming ``where``: no such shape fits.
    """
    expected = (-1, *spec.dims) if rows else spec.dims
    fitted = shape
    if had_rows != rows and len(shape) != len(expected):
        if rows:
            fitted = (1, *shape)
        elif shape[:1] == (1,):
            fitted = shape[1:]
    if not _alike(fitted, expected):
        raise bad_input(f"{where} has shape {list(shape)}, expected {list(expected)}")
    return fitted
