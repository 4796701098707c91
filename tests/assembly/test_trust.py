"""Data never becomes code: models that are programs run only where the operator trusts them."""

import json
import zipfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch

import interlace
from interlace.assembly.live_server import ServeOptions
from interlace.core.errors import RepositoryError
from interlace.core.model import CODE_FORMATS, Format, TrustedModels
from interlace.device.process.sandbox import why_unconfined
from tests.formats.making import layers_onnx, write_exported, write_factory, write_torchscript


class Reader(torch.nn.Module):
    """Answers what a file of the host holds, and writes another."""

    def __init__(self, mark: Path, secret: Path) -> None:
        super().__init__()
        self.mark, self.secret = str(mark), str(secret)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.mark)
        return torch.from_file(self.secret, False, 4) + x


def exported(folder: Path, key: str) -> None:
    """An archive with a hostile expression in place of a dimension's, or of a guard."""
    code = f"__import__('os').write(2, b'{key} ran')"
    rows = {0: torch.export.Dim("rows", min=1, max=8)}
    layer = torch.nn.Sequential(torch.nn.Linear(4, 2))
    write_exported(folder, layer, (torch.ones(2, 4),), dynamic_shapes=[rows])
    aside = folder / "aside"
    with zipfile.ZipFile(folder / "model.pt2") as old, zipfile.ZipFile(aside, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("models/model.json"):
                content = json.dumps(hostile(json.loads(content), key, code)).encode()
            new.writestr(name, content)
    aside.replace(folder / "model.pt2")


def hostile(value: object, key: str, code: str) -> object:
    if isinstance(value, list):
        return [hostile(one, key, code) for one in value]
    if not isinstance(value, dict):
        return value
    changed = {"expr_str": code, "guards_code": [code]}
    return {
        name: changed[key] if name == key else hostile(one, key, code)
        for name, one in value.items()
    }


def write_hostile(models: Path, marks: Path) -> set[str]:
    (marks / "secret").write_bytes(b"0123456789abcdef")
    folders = {name: models / name / "1" for name in ("python", "script", "expr", "guards")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    write_factory(folders["python"], "import os; os.write(2, b'python ran')" + LINEAR)
    write_torchscript(folders["script"], Reader(marks / "script", marks / "secret"))
    exported(folders["expr"], "expr_str")
    exported(folders["guards"], "guards_code")
    config = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]'
    (models / "script" / "config.pbtxt").write_text(f"max_batch_size: 8 {config}")
    return set(folders)


LINEAR = """
import torch
INPUTS = {"x": ("FP32", (4,))}
def create_model():
    return torch.nn.Linear(4, 2)
"""


def server(folder: Path, trust: str) -> interlace.Server:
    return interlace.serve(
        folder / "models", port=0, grpc_port=0, metrics_port=0, device="cpu", cores="0",
        profiles=folder / "profiles", options=ServeOptions(trust_models=trust),
    )  # fmt: skip


def index(url: str) -> dict[str, str]:
    with urlopen(Request(f"{url}/v2/repository/index", b"{}"), timeout=30) as reply:
        return {one["name"]: one.get("reason", "") for one in json.load(reply)}


def test_models_that_are_code_run_nothing_where_they_are_not_trusted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "models/plain").mkdir(parents=True)
    layers_onnx(tmp_path / "models/plain/1", (4, 2))
    names = write_hostile(tmp_path / "models", marks)
    with server(tmp_path, "none") as untrusting:
        assert [model.name for model in untrusting.models] == ["plain"]
        reasons = index(untrusting.url)
        for name in names:
            assert f"--trust-models {name}" in reasons[name]
            load = Request(f"{untrusting.url}/v2/repository/models/{name}/load", b"{}")
            with pytest.raises(HTTPError) as refused:
                urlopen(load, timeout=30)
            assert "which is code" in refused.value.read().decode()
    assert {mark.name for mark in marks.iterdir()} == {"secret"}
    assert " ran" not in capfd.readouterr().err


def test_the_same_models_run_their_code_where_they_are_trusted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """So what was refused was hostile. What it can reach: workers are confined."""
    marks = tmp_path / "marks"
    marks.mkdir()
    names = write_hostile(tmp_path / "models", marks)
    with server(tmp_path, ",".join(names)) as trusting:
        reason = index(trusting.url)["script"]
        assert "python" in [model.name for model in trusting.models]
    if not why_unconfined():
        assert "Permission denied" in reason, reason
        assert {mark.name for mark in marks.iterdir()} == {"secret"}
    said = capfd.readouterr().err
    assert all(f"{what} ran" in said for what in ("python", "expr_str", "guards_code"))


def test_every_format_is_code_or_data(tmp_path: Path) -> None:
    data = {Format.ONNX, Format.HUGGINGFACE, Format.PROFILE, Format.ENSEMBLE}
    assert data == set(Format) - CODE_FORMATS
    some = TrustedModels.of("a, b")
    for form in CODE_FORMATS:
        TrustedModels.of("all").check("c", form, "c/1")
        some.check("b", form, "b/1")
        for trusted in (some, TrustedModels.of("none"), TrustedModels.of("")):
            with pytest.raises(RepositoryError, match=r"c/1: found model\.p.*--trust-models .*c "):
                trusted.check("c", form, "c/1")
    for said, wanted in (("a, b", "a,b,c"), ("all,b", "all,b,c"), ("none", "c")):
        with pytest.raises(RepositoryError, match=f"--trust-models {wanted} if"):
            TrustedModels.of(said).check("c", Format.PYTHON, "c/1", sent=True)
    TrustedModels.of("all,c").check("c", Format.PYTHON, "c/1", sent=True)
    for form in data:
        TrustedModels.of("none").check("c", form, "c/1")


def test_models_that_are_fetched_are_not_trusted_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def trusted(models: Path | None, said: str = "") -> bool:
        options = ServeOptions(admin_key="key", assigned=True, node="n", trust_models=said)
        made = interlace.serve(models, device="cpu", profiles=tmp_path, options=options)
        return made._settings.trusted.everyone

    with pytest.raises(interlace.InputError, match="shows the key itself"):
        interlace.serve(None, options=ServeOptions(admin_key="sha256:0", assigned=True))
    assert trusted(tmp_path)
    assert not trusted(tmp_path, "none")
    assert not trusted(None)
    assert trusted(None, "all")
