"""Answers without what changes from run to run, so that two of them can be compared."""

import re
from typing import Any

Answer = dict[str, Any]
#: What may differ between servers by nature: shown as a star.
OWN = "*"
FOLDER = re.compile(r"/[\w./-]+/(ours|triton)\b")
CONFIG_KEYS = ("name", "max_batch_size", "input", "output")
TENSOR_KEYS = ("name", "data_type", "dims")


def normal(case: str, answer: Answer) -> Answer:
    """An answer in comparable form: own names and measured times starred, lists by name."""
    if "text" in answer:
        return {**answer, "text": _words(answer["text"])}
    return {**answer, "json": _body(case, answer["json"])}


def _words(text: str) -> str:
    """An error without the blanks at its end and the folder the test's models lie in."""
    return FOLDER.sub("models", text).strip()


def _body(case: str, body: Any) -> Any:
    if isinstance(body, dict) and "error" in body:
        return {"error": _words(body["error"])}
    if isinstance(body, dict) and "model_stats" in body:
        return {"model_stats": [_numberless(one) for one in _by_name(body["model_stats"])]}
    if isinstance(body, dict) and "extensions" in body:
        return {"name": OWN, "version": OWN, "extensions": sorted(body["extensions"])}
    if isinstance(body, dict) and "max_batch_size" in body:
        return _config(body)
    if isinstance(body, dict) and "platform" in body:
        return {**body, "platform": OWN}
    if isinstance(body, dict) and "config" in body and "name" in body["config"]:
        return {"config": _config(body["config"])}
    if isinstance(body, dict) and "models" in body:
        return {"models": _by_name(body["models"])}
    if isinstance(body, list) and case.startswith("repository."):
        return _by_name(body)
    if isinstance(body, list) and case.startswith("stream."):  # replies come in any order
        return sorted(body, key=lambda row: str(row["infer_response"].get("id")))
    return body


def _by_name(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (row.get("name", ""), row.get("version", "")))


def _numberless(value: Any) -> Any:
    """Statistics with their shape only; per-batch rows and memory as what they are called."""
    if isinstance(value, dict):
        lists = ("batch_stats", "memory_usage")
        named = {key: value[key] for key in ("name", "version") if key in value}
        return {k: _numberless(v) for k, v in value.items() if k not in lists} | named
    # Over gRPC 64-bit numbers come as strings.
    return 0 if isinstance(value, int | float) or str(value).isdigit() else value


def _config(config: Answer) -> Answer:
    """The part of a model configuration that both servers must agree on."""
    kept = {key: config[key] for key in CONFIG_KEYS if key in config}
    for key in ("input", "output"):
        kept[key] = [{k: t[k] for k in TENSOR_KEYS if k in t} for t in kept.get(key, [])]
    return kept
