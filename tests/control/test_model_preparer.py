"""What a preparer says of kept profiles."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.control.model_preparer import ModelPreparer
from interlace.core.model import TrustedModels
from interlace.core.profile import LayerProfile
from interlace.profiling.store import FillResult, ProfileStore
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
