"""What models said of themselves: kept by what it depends on, and asked again where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.tensor import Signature, TensorSpec
from interlace.profiling.store import KnownModel, SignatureStore
from tests.device.models import model

SAID = KnownModel(
    Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "INT64", ()),), True, 7), "net"
)


def test_it_is_found_again_for_the_same_files_only(tmp_path: Path) -> None:
    known = model("double")
    SignatureStore(tmp_path).save(known, SAID)
    again = SignatureStore(tmp_path)
    assert again.find(known) == SAID
    assert again.find(replace(known, name="other", path="elsewhere")) == SAID
    assert again.find(replace(known, digest="changed")) is None
    assert again.find(replace(known, sample={"x": (5,)})) is None
    assert again.find(replace(known, signature=Signature((), (), False, 1))) is None


def test_what_cannot_be_read_or_kept_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, known = SignatureStore(tmp_path / "kept"), model("double")
    store.save(known, SAID)
    for file in (tmp_path / "kept").iterdir():
        file.write_bytes(b"{")
    assert store.find(known) is None
    (tmp_path / "file").write_text("no folder")
    SignatureStore(tmp_path / "file" / "below").save(known, SAID)
    assert "is not kept" in caplog.text
