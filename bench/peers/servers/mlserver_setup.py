"""Writes MLServer's settings: with one parallel worker (its default) and with none."""

import json
import os
import shutil
from pathlib import Path

import models

HERE = Path(__file__).parent
HOME = Path(os.environ["PEERS_HOME"])


def settings(folder: Path, workers: int) -> dict:
    return {
        "host": "127.0.0.1", "http_port": 18900, "grpc_port": 18901, "metrics_port": 18902,
        "parallel_workers": workers, "debug": False, "gzip_enabled": False,
        "grpc_max_message_length": 64 << 20, "environments_dir": f"{folder}/envs",
        "metrics_dir": f"{folder}/.metrics", "logging_settings": None,
    }  # fmt: skip


def tensor(name: str, dims: tuple) -> dict:
    return {"name": name, "datatype": "FP32", "shape": [-1, *dims]}


for count in (0, 1):
    run = HOME / f"mlserver_run{count}"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    (run / "settings.json").write_text(json.dumps(settings(run, count)))
    for name, (inputs, outputs) in models.SHAPES.items():
        (run / name).mkdir()
        shutil.copy(HERE / "mlserver_runtime.py", run / name / f"rt_{name}.py")
        model = {
            "name": name, "implementation": f"rt_{name}.Runtime",
            "max_batch_size": models.MAX_BATCH, "max_batch_time": models.DELAY_US / 1e6,
            "inputs": [tensor("INPUT", inputs)], "outputs": [tensor("OUTPUT", outputs)],
        }  # fmt: skip
        (run / name / "model-settings.json").write_text(json.dumps(model))
