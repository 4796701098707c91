"""Results as text: JSON, and HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import msgspec


def json_text(value: object) -> str:
    """A value of plain types, dataclasses and structs as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def html_table(caption: str, heading: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table with a row for each key; all rows have the columns of the first."""
    columns = [heading, *next(iter(rows.values()), {})]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = [
        "".join(f"<td>{escape(text)}</td>" for text in (name, *cells.values()))
        for name, cells in rows.items()
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"
