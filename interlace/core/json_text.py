"""Indented JSON, as commands print it and files keep it."""

from __future__ import annotations

import msgspec


def json_text(value: object) -> str:
    """A value of plain types, dataclasses and structs as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()
