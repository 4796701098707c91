"""What a preparer says of kept profiles, and what it assumes."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.control.model_preparer import ModelPreparer, prepared_model, with_assumed_slo
from interlace.core.errors import RepositoryError
from interlace.core.model import Description, Format, ServiceTerms, TrustedModels
from interlace.core.profile import LayerProfile
from interlace.core.tensor import Signature
from interlace.device.cpu.outgoing_calls import _MEASURED
from interlace.profiling.store import FillResult, ProfileStore
from tests.apps.test_graph import ensemble, model
from tests.builders import line_profile


def test_a_profile_without_times_from_disk_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = cast(Any, SimpleNamespace(gpu=SimpleNamespace(kind="cpu-2")))
    unused = cast(Any, None)
    preparer = ModelPreparer(tmp_path, unused, rig, ProfileStore(tmp_path), TrustedModels())
    layer = LayerProfile("a", 100, 1.0, 1.0, 2.0)
    profiles = {
        "known/1#0": replace(line_profile("known", 1.0, 1.0), layers=(layer,)),
        "fresh/1#0": replace(
            line_profile("fresh", 1.0, 1.0), layers=(replace(layer, copy_disk_ms=2.0),)
        ),
    }
    models = [cast(Any, SimpleNamespace(name=key[:5], key=key)) for key in profiles]
    for _ in range(3):  # as it is reloaded
        preparer._warn_of_cached(models, FillResult(profiles, {}))
    (message,) = caplog.messages
    assert message.startswith("1 profiles (the first: known)")


async def test_values_are_asked_for_only_where_they_help(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = cast(Any, SimpleNamespace(gpu=SimpleNamespace(kind="cpu-2")))
    preparer = ModelPreparer(
        tmp_path, cast(Any, None), rig, ProfileStore(tmp_path), TrustedModels()
    )
    calls = f"b: {_MEASURED.format('c')}"
    with caplog.at_level(logging.INFO):
        await preparer._completed((), FillResult(guessed={"a": "a: bad crop", "b": calls}))
    wrong, alone = caplog.messages
    assert wrong.startswith("a: bad crop: its sample values") and "[sample]" in wrong
    assert alone == calls


@pytest.mark.parametrize(
    ("kind", "signature", "said"),
    [
        ("cpu-2", None, "a GPU to serve it on"),
        ("h100", Signature((), (), True, 4), "without a description; expected input"),
        ("h100", None, ""),
    ],
)
async def test_a_plan_is_described_by_its_configuration_and_opened_on_a_gpu(
    tmp_path: Path, kind: str, signature: Signature | None, said: str
) -> None:
    rig = cast(Any, SimpleNamespace(gpu=SimpleNamespace(kind=kind)))
    unused = cast(Any, None)
    preparer = ModelPreparer(tmp_path, unused, rig, ProfileStore(tmp_path), TrustedModels())
    known = replace(model("m", {"X": (5,)}, {"Y": (5,)}), format=Format.TENSORRT)
    known = replace(known, signature=signature or known.signature)
    if said:
        with pytest.raises(RepositoryError, match=said):
            await preparer._described(known)
    else:
        assert await preparer._described(known) == Description(known.signature)


def test_an_slo_that_nobody_set_is_ten_times_what_one_row_takes() -> None:
    stated = model("m", {"X": (5,)}, {"Y": (5,)})
    assumed = replace(stated, terms=ServiceTerms(100.0, slo_assumed=True))
    for known, row_ms, slo_ms in (
        (stated, 299.0, 100.0),
        (assumed, 299.0, 1_800.0),  # on the whole accelerator, where it is faster
        (assumed, 1.0, 100.0),
    ):
        profile = line_profile("m", 1.0, row_ms)
        assert with_assumed_slo(known, profile).terms.slo_ms == slo_ms


def test_the_log_says_what_is_assumed_where_nobody_set_an_slo(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = model("m", {"X": (5,)}, {"Y": (5,)})
    assumed = ServiceTerms(100.0, slo_assumed=True)
    code = replace(known, format=Format.PYTHON, terms=assumed)
    profile = line_profile("m", 1.0, 1.0)
    draft = cast(Any, SimpleNamespace(config=ensemble()))
    with caplog.at_level(logging.INFO):
        for one in (known, replace(known, terms=assumed), code):
            prepared_model(draft, one, FillResult({one.key: profile}, {}))
    assert caplog.messages == [
        "m: nobody set its SLO: planned for 100 ms, a request may take 60000 ms; slo_ms in "
        "interlace.toml sets both"
    ]
