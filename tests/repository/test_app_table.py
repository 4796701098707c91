"""Apps in ``interlace.toml``: what is read of them, and each mistake with its line and key."""

from pathlib import Path

import pytest

from interlace.apps.graph import App, read_ensemble
from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.repository.draft import read
from interlace.repository.folder import scan_folder

APP = """\
slo_ms = 80
rate_rps = 5

[app.inputs]
picture = { datatype = "UINT8", dims = [-1, -1, 3] }
mask = { datatype = "FP32", dims = [4], optional = true }

[app.outputs]
names = { datatype = "BYTES", dims = [-1] }

[app.stages.read]
model = "reader"
inputs = { x = "crops", m = "mask" }
outputs = { y = "names" }
rows = 2.5

[app.stages.find]
model = "finder"
version = 3
inputs = { x = "picture" }
outputs.boxes = "crops"
"""


def app_of(root: Path, text: str) -> App:
    (root / "app").mkdir()
    (root / "app" / "interlace.toml").write_text(text)
    return read_ensemble(read(root, "app", 1))


def test_an_app_is_a_folder_with_its_settings_alone(tmp_path: Path) -> None:
    app = app_of(tmp_path, APP)
    find, reading = app.steps
    assert (find.name, find.model, find.version, find.rows) == ("find", "finder", "3", 1.0)
    assert (reading.name, reading.inputs["m"], reading.rows) == ("read", "mask", 2.5)
    assert app.readers == ((1,), ())
    found = scan_folder(tmp_path, "app")
    assert found is not None and found.versions == (1,)
    draft = read(tmp_path, "app", 1)
    model = draft.provisional()
    assert (draft.format, model.terms.slo_ms, model.signature.batched) == (
        Format.ENSEMBLE,
        80.0,
        False,
    )
    assert [spec.optional for spec in model.signature.inputs] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"UINT8"', '"U8"', r"toml:5: app.inputs.picture.datatype: found 'U8'; expected one of BO"),
        ("rows = 2.5", "rows = -1", r"toml:15: app.stages.read.rows: found -1; expected rows of a"),
        ("rows", "row", r"toml:15: app.stages.read.row: found an unknown key"),
        ('model = "reader"', "", r"toml:11: app.stages.read.model: found missing"),
        ('x = "picture"', 'x = "names"', r"app.stages.\w+.inputs: found a cycle: .*reader"),
        ('es = "crops"', 'es = "z"', r"toml:13: app.stages.read.inputs: found tensor 'crops'"),
        ('es = "crops"', 'es = "names"', r"toml:17: .*'boxes' of 'finder' as tensor 'names'; exp"),
        ('{ y = "names" }', '{ y = "other" }', r"toml:9: app.outputs.names.name: found 'names'"),
        ("{ y = ", "{ = ", r"interlace.toml: found no TOML"),
        ("slo_ms = 80", "slo_ms = 0", r"toml:1: slo_ms: found 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, error: str) -> None:
    with pytest.raises(RepositoryError, match=error):
        app_of(tmp_path, APP.replace(old, new))


def test_an_app_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "config.pbtxt").write_text('platform: "ensemble"')
    (tmp_path / "app" / "interlace.toml").write_text(APP)
    with pytest.raises(RepositoryError, match=r"app: found an app, besides config.pbtxt"):
        read(tmp_path, "app", 1)
