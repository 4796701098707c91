"""Repositories in object stores: fetched once, by what the store says of each file."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlace.assembly import machine
from interlace.assembly.live_server import ServeOptions
from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.core.user_errors import remedy
from interlace.repository.draft import read
from interlace.repository.remote import fetched_repository
from tests.cli.planning import invoke
from tests.repository.folders import add

fsspec = pytest.importorskip("fsspec")
CONFIG = """backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
FILES = {"m/config.pbtxt": CONFIG, "m/1/model.py": "class TritonPythonModel: pass"}


def put(store: Any, root: str, files: dict[str, str] = FILES) -> None:
    for name, text in files.items():
        store.pipe_file(f"{root}/{name}", text.encode())


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    put(store, "/models")
    yield store
    store.store.clear()


def test_what_has_not_changed_is_not_fetched_again(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    get_file = type(memory).get_file

    def noted(self: Any, path: str, *rest: Any) -> None:
        fetched.append(path)
        get_file(self, path, *rest)

    monkeypatch.setattr(type(memory), "get_file", noted)
    first = fetched_repository("memory://models", tmp_path)
    assert read(first, "m", 1).format is Format.PYTHON and len(fetched) == 2
    assert fetched_repository("memory://models", tmp_path) == first and len(fetched) == 2
    put(memory, "/models", {"m/1/model.py": "class TritonPythonModel:\n    pass"})
    second = fetched_repository("memory://models", tmp_path)
    assert second != first and fetched[2:] == ["/models/m/1/model.py"]
    assert "\n" in (second / "m/1/model.py").read_text()
    assert "\n" not in (first / "m/1/model.py").read_text()
    assert second.parent == first.parent


def test_what_no_process_uses_is_removed(memory: Any, tmp_path: Path) -> None:
    code = "import fsspec, sys; from interlace.repository.remote import fetched_repository as f; "
    code += "print(f(sys.argv[1], __import__('pathlib').Path(sys.argv[2])), flush=True); input()"
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a").write_text("1")
    url, cache = f"file://{tmp_path}/there", tmp_path / "cache"
    command = [sys.executable, "-c", code, url, str(cache)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        first = Path(one.stdout.readline().strip())
        (tmp_path / "there/a").write_text("22")
        second = fetched_repository(url, cache)
        assert (first / "a").read_text() == "1" and (second / "a").read_text() == "22"
        one.communicate("\n")
    (tmp_path / "there/a").write_text("333")
    third = fetched_repository(url, cache)
    assert set(first.parent.iterdir()) == {second, third}  # this process has not ended
    assert len(list((first.parent.parent / "files").iterdir())) == 2


def test_a_file_that_is_written_again_is_not_fetched_if_the_store_has_its_hash(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = type(memory).find

    def tagged(self: Any, path: str, **how: Any) -> dict[str, Any]:
        entries = find(self, path, **how)
        tags = {name: hashlib.md5(self.cat_file(name)).hexdigest() for name in entries}
        return {name: {**entry, "ETag": tags[name]} for name, entry in entries.items()}

    monkeypatch.setattr(type(memory), "find", tagged)
    first = fetched_repository("memory://models", tmp_path)
    put(memory, "/models")
    assert fetched_repository("memory://models", tmp_path) == first
    put(memory, "/models", {"m/1/model.py": FILES["m/1/model.py"].replace("pass", "1234")})
    assert fetched_repository("memory://models", tmp_path) != first


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (
            "s3://localhost:9000/bucket/models",
            "a host; expected s3://BUCKET/PATH, with the host in A",
        ),
        (
            "s3://https://minio:9000/bucket",
            "a host; expected s3://BUCKET/PATH, with the host in AWS_",
        ),
        ("memory://nothing", "memory://nothing: found no files"),
        ("nowhere://bucket", "nowhere://bucket: found Protocol not known"),
        ("file:///does/not/exist", "file:///does/not/exist: found no files"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, url: str, found: str) -> None:
    with pytest.raises(RepositoryError, match=found):
        fetched_repository(url, tmp_path)


def test_a_missing_provider_is_said_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        fetched_repository("gs://bucket/models", tmp_path)
    assert remedy(caught.value) == "gcsfs is not installed: pip install 'interlace[gs]'"


def test_commands_take_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_kept", lambda: tmp_path / "cache")
    add(tmp_path / "there", "m", {name[2:]: text for name, text in FILES.items()})
    answer = invoke("check", f"file://{tmp_path}/there", "--json")
    assert answer.exit_code == 0 and json.loads(answer.stdout)[0]["verdict"] == "served"


def test_models_of_a_hub_are_not_trusted_as_those_of_a_bucket_are() -> None:
    options = ServeOptions()
    assert options.trusted("s3://bucket/models").everyone
    assert not options.trusted("hf://someone/models").everyone


def test_s3_is_read_with_the_credentials_of_its_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed: no S3 to try")
    server = pytest.importorskip("moto.server", reason="moto is not installed: no S3 to try")
    local = server.ThreadedMotoServer(port=0)
    local.start()
    try:
        host, port = local.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        store.mkdir("bucket")
        put(store, "bucket/models")
        root = fetched_repository("s3://bucket/models", tmp_path)
        assert read(root, "m", 1).format is Format.PYTHON
        assert fetched_repository("s3://bucket/models", tmp_path) == root
    finally:
        local.stop()
