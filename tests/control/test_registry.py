"""Entries by name and version, and by what is deployed."""

from typing import Any

from interlace.control.lifecycle import ModelLifecycle
from interlace.control.registry import UNLOADED, VersionEntry, VersionRegistry, VersionState
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature


def _model(version: int, generation: int) -> Model:
    terms = ServiceTerms(slo_ms=10.0)
    return Model(
        "m", version, Format.ONNX, "", "", Signature((), (), False, 1), terms, generation=generation
    )


def test_a_deployment_is_found_while_it_serves_and_no_other_of_its_version() -> None:
    registry = VersionRegistry()
    for version in (1, 12):
        served = _model(version, 3)
        registry.put(VersionEntry("m", str(version), VersionState.READY, model=served))
    found = registry.by_key("m/12#3")
    assert found is not None and found.version == "12"
    assert registry.by_key("m/12#2") is None, "an earlier one, which gives way"
    assert registry.by_key("m/2#3") is None
    assert registry.by_key("other/1#3") is None
    registry.put(VersionEntry("m", "12", VersionState.UNAVAILABLE, "unloaded"))
    assert registry.by_key("m/12#3") is None


def test_models_that_failed_to_load_are_missing_with_the_reason() -> None:
    registry = VersionRegistry()
    registry.put(VersionEntry("bad", "1", VersionState.UNAVAILABLE, "no model file"))
    registry.put(VersionEntry("late", "1", VersionState.LOADING))
    registry.put(VersionEntry("gone", "1", VersionState.UNAVAILABLE, UNLOADED))
    assert registry.missing() == {"bad", "late"}
    assert registry.why_missing("bad") == "no model file"
    assert registry.why_missing("unknown") == ""
    control: Any = None
    strict = ModelLifecycle(control, control, control, registry, control, control)
    lenient = ModelLifecycle(control, control, control, registry, control, control, ("bad", "late"))
    strict.started = lenient.started = True
    assert not strict.ready() and lenient.ready()
    registry.put(VersionEntry("bad", "1", VersionState.READY, model=_model(1, 3)))
    registry.forget("late")
    assert strict.ready()
    registry.put(VersionEntry("bad", "1", VersionState.UNAVAILABLE, "it crashed"))
    assert strict.ready()  # that is the model's own readiness now
