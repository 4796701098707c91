"""Answers without what changes from run to run, so that two of them can be compared."""

from __future__ import annotations

from typing import Any

Answer = dict[str, Any]
#: What may differ between servers by nature: shown as a star.
OWN = "*"
CONFIG_KEYS = ("name", "max_batch_size", "input", "output")
TENSOR_KEYS = ("name", "data_type", "dims")


def normal(case: str, answer: Answer) -> Answer:
    """An answer in comparable form: own names and measured times starred, lists by name."""
    if "json" not in answer:
        return answer
    return {**answer, "json": _body(case.split(".", maxsplit=1)[1], case, answer["json"])}


def _body(name: str, case: str, body: Any) -> Any:
    if isinstance(body, dict) and "model_stats" in body:
        return {"model_stats": [_numberless(one) for one in _by_name(body["model_stats"])]}
    if isinstance(body, dict) and "extensions" in body:
        return {"name": OWN, "version": OWN, "extensions": sorted(body["extensions"])}
    if isinstance(body, dict) and "platform" in body:
        return {**body, "platform": OWN}
    if isinstance(body, dict) and "config" in body and "name" in body["config"]:
        return {"config": _config(body["config"])}
    if isinstance(body, dict) and "max_batch_size" in body:
        return _config(body)
    if isinstance(body, dict) and "models" in body:
        return {"models": _by_name(body["models"])}
    if isinstance(body, list) and case.startswith("repository."):
        return _by_name(body)
    return body


def _by_name(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (row.get("name", ""), row.get("version", "")))


def _numberless(value: Any) -> Any:
    """Statistics with their shape only; per-batch rows and memory as what they are called."""
    if isinstance(value, dict):
        lists = ("batch_stats", "memory_usage")
        kept = {k: _numberless(v) for k, v in value.items() if k not in lists}
        return kept
    return 0 if isinstance(value, int | float) else value


def _config(config: Answer) -> Answer:
    """The part of a model configuration that both servers must agree on."""
    kept = {key: config[key] for key in CONFIG_KEYS if key in config}
    for key in ("input", "output"):
        kept[key] = [{k: t[k] for k in TENSOR_KEYS if k in t} for t in kept.get(key, [])]
    return kept
