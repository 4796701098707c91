"""Checks and small syntaxes that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from interlace.cli.failure import CommandError


def positive(values: Mapping[str, float | None]) -> None:
    """Every value given is above zero.

    Raises:
        CommandError: one is not; it is named.
    """
    for name, value in values.items():
        if value is not None and not value > 0:
            raise CommandError(f"{name} is {value:g}; expected a number above 0")


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dict.

    Raises:
        CommandError: one has no name or no ``=``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CommandError(f"{option} {text}: expected NAME=VALUE")
        found[name] = value
    return found


def numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """``NAME=NUMBER`` texts as a dict of numbers above 0.

    Raises:
        CommandError: one is not of that form.
    """
    found: dict[str, float] = {}
    for name, value in pairs(option, texts).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise CommandError(f"{option} {name}={value}: '{value}' is not a number") from None
    positive({f"{option} {name}": value for name, value in found.items()})
    return found


def read_key(file: Path | None) -> str | None:
    """The API key in a file, which unlike an argument is not seen in the list of processes.

    Raises:
        CommandError: the file is empty.
        OSError: it cannot be read.
    """
    if file is None:
        return None
    key = file.read_text(encoding="utf-8").strip()
    if not key:
        raise CommandError(f"--api-key-file {file}: it is empty")
    return key
