"""Hugging Face folders: inputs by kind of model, heads, embeddings, nothing but safetensors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.core.tensor import TensorSpec
from interlace.formats import open_model
from interlace.formats.runner import ModelRunner
from tests.formats.making import a_model

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}


def saved(folder: Path, kind: str, config: Any) -> Path:
    import transformers

    torch.manual_seed(0)
    getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig

    return saved(tmp_path_factory.mktemp("hf") / "bert", "BertModel", BertConfig(**SMALL))


def opened(folder: Path) -> ModelRunner:
    return open_model(a_model(Format.HUGGINGFACE, folder), 1, None)


def configured(bert: Path, folder: Path, **changes: object) -> Path:
    """The same model with other settings."""
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(bert / "model.safetensors")
    config = json.loads((bert / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_pooling(bert: Path, folder: Path, mode: str, *more: str) -> Path:
    configured(bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    kinds = ("Transformer", "Pooling", *more)
    paths = {"Pooling": "1_Pooling"}
    modules = [
        {"path": paths.get(k, ""), "type": f"sentence_transformers.models.{k}"} for k in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


TOKENS = {"input_ids": np.array([[1, 2, 3, 4], [5, 6, 0, 0]])}
MASK = {"attention_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]])}


def test_text_models_describe_themselves(bert: Path, tmp_path: Path) -> None:
    runner = open_model(a_model(Format.HUGGINGFACE, bert), 1, str(tmp_path))
    assert [(spec.name, spec.datatype, spec.optional) for spec in runner.signature.inputs] == [
        ("input_ids", "INT64", False),
        ("attention_mask", "INT64", True),
        ("token_type_ids", "INT64", True),
    ]
    assert TensorSpec("last_hidden_state", "FP32", (-1, 16)) in runner.signature.outputs
    assert runner.shared_bytes == runner.resident_bytes > 0
    found = runner.run(TOKENS)["last_hidden_state"]
    full = runner.run({**TOKENS, "attention_mask": np.ones((2, 4), np.int64)})
    assert np.allclose(found, full["last_hidden_state"], atol=1e-5)


def test_embeddings_do_not_depend_on_padding(bert: Path, tmp_path: Path) -> None:
    folder = with_pooling(bert, tmp_path / "st", "mean_tokens", "Normalize")
    runner = opened(folder)
    assert runner.signature.outputs == (TensorSpec("sentence_embedding", "FP32", (16,)),)
    padded = runner.run(TOKENS | MASK)["sentence_embedding"]
    short = {name: array[1:, :2] for name, array in (TOKENS | MASK).items()}
    assert np.allclose(runner.run(short)["sentence_embedding"], padded[1:], atol=1e-5)
    assert np.allclose(np.linalg.norm(padded, axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "more", "found"),
    [("sum_of_all", (), "pooling_mode_sum_of_all"), ("mean_tokens", ("Dense",), "module Dense")],
)
def test_unknown_pooling_is_an_error(
    bert: Path, tmp_path: Path, mode: str, more: tuple[str, ...], found: str
) -> None:
    folder = with_pooling(bert, tmp_path / "st", mode, *more)
    with pytest.raises(RepositoryError, match=found):
        opened(folder)


def test_heads_come_with_the_architecture(tmp_path: Path) -> None:
    from transformers import BertConfig

    config = BertConfig(**SMALL, num_labels=3)
    folder = saved(tmp_path / "head", "BertForSequenceClassification", config)
    signature = opened(folder).signature
    assert signature.outputs == (TensorSpec("logits", "FP32", (3,)),)


def test_image_models_take_pixels(tmp_path: Path) -> None:
    from transformers import ViTConfig

    small = {key: size for key, size in SMALL.items() if key != "vocab_size"}
    folder = saved(tmp_path / "vit", "ViTModel", ViTConfig(**small, image_size=32, patch_size=16))
    signature = opened(folder).signature
    assert signature.inputs == (TensorSpec("pixel_values", "FP32", (3, 32, 32)),)


def test_code_beside_a_model_is_not_run(bert: Path, tmp_path: Path) -> None:
    mine = {"model_type": "mine", "architectures": ["Mine"], "auto_map": {"AutoModel": "evil.M"}}
    folder = configured(bert, tmp_path / "remote", **mine)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    with pytest.raises(RepositoryError, match="a model that does not load"):
        opened(folder)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_kernels_of_a_hub_are_not_named(bert: Path, tmp_path: Path, key: str) -> None:
    folder = configured(bert, tmp_path / "kernels", **{key: "evil/evil"})
    with pytest.raises(RepositoryError, match="evil/evil'; expected one of transformers' own"):
        opened(folder)


def test_weights_and_pooling_are_not_taken_from_outside_the_folder(
    bert: Path, tmp_path: Path
) -> None:
    """A model whose shards lie elsewhere would be served with another's weights."""
    folder = with_pooling(bert, tmp_path / "other", "mean")
    (folder / "model.safetensors").unlink()
    weights = bert / "model.safetensors"
    shard = tmp_path / "secret.safetensors"
    shard.symlink_to(weights)
    with safe_open(weights, "pt") as file:
        names = list(file.keys())
    index = folder / "model.safetensors.index.json"
    for place in ("../secret.safetensors", str(shard)):
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, place)}))
        with pytest.raises(RepositoryError, match=rf"index.json: found the path '{place}'"):
            opened(folder)
    index.unlink()
    (folder / "model.safetensors").symlink_to(weights)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../../1_Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(RepositoryError, match=r"modules\.json: found the path"):
        opened(folder)


def test_an_adapter_is_refused_where_it_would_name_another_model(
    bert: Path, tmp_path: Path
) -> None:
    folder = with_pooling(bert, tmp_path / "adapted", "mean")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/x"}))
    with pytest.raises(RepositoryError, match=r"adapter_config\.json: found an adapter"):
        opened(folder)


def test_pickled_weights_are_not_read(bert: Path, tmp_path: Path) -> None:
    folder = configured(bert, tmp_path / "pickle")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(RepositoryError, match=r"safetensors|no file named"):
        opened(folder)


def test_a_worker_imports_nothing_but_the_models_own_code(bert: Path) -> None:
    """The fork server has imported the rest, and workers share its pages."""
    code = (
        "import sys; from importlib import import_module; from pathlib import Path; "
        "from interlace.device.cpu.settings import CpuSettings; "
        "from tests.formats.test_huggingface import Format, opened; "
        "preload = CpuSettings((0,), 0).preload[Format.HUGGINGFACE]; "
        "before = [import_module(name) for name in preload] and set(sys.modules); "
        "opened(Path(sys.argv[1])); print(*sorted(set(sys.modules) - before))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(bert)], capture_output=True, text=True, check=True
    )
    found = [name for name in said.stdout.split() if name.startswith(("torch", "transformers"))]
    assert found and all(name.startswith("transformers.models.bert") for name in found)
