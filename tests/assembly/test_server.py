"""`interlace.serve`: a server as a value, in a thread of its own."""

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import interlace
from bench.attack.repository import write_model


def served(tmp_path: Path, port: int = 0, grpc_port: int | None = None) -> interlace.Server:
    return interlace.serve(
        tmp_path / "models",
        port=port,
        grpc_port=grpc_port,
        device="cpu",
        cores="0",
        profiles=tmp_path / "profiles",
    )


def test_it_serves_while_it_is_entered(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "double")
    server = served(tmp_path)
    with server:
        assert [model.name for model in server.models] == ["double"]
        assert not {0, 8001, 8002} & {*server.ports}  # all are free ones where the first is
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        body = json.dumps({"inputs": [tensor]}).encode()
        with urlopen(Request(f"{server.url}/v2/models/double/infer", body), timeout=30) as reply:
            assert json.load(reply)["outputs"][0]["data"] == [2, 4, 6, 8]
    server.close()  # a second time: nothing
    with server:  # again, from the start
        assert [model.name for model in server.models] == ["double"]
    with pytest.raises(OSError):
        urlopen(server.url, timeout=5)


def test_what_keeps_it_from_beginning_is_raised(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "double")
    with served(tmp_path) as first, pytest.raises(interlace.ServeError, match="already in use"):
        served(tmp_path, grpc_port=first.ports.grpc).__enter__()
    with pytest.raises(interlace.InputError, match="unknown system"):
        interlace.serve(tmp_path / "models", system="none")
    with pytest.raises(interlace.UserError, match="expected one of"):
        interlace.serve(tmp_path / "models", device="tpu")
