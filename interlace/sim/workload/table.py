"""A table of a scenario file: its values, checked, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path


class WorkloadError(ValueError):
    """A table that is no workload: which key, what is there, what was expected."""


@dataclass(frozen=True, slots=True)
class Table:
    """A TOML table, the model it is of, its planned rate and variation, where its files lie.

    Raises:
        WorkloadError: from every method, if the value is not what it asks for.
    """

    keys: Mapping[str, object]
    model: str
    rate_rps: float
    cv: float
    folder: Path

    def number(self, key: str, default: float | None = None) -> float:
        """A number of 0 or more."""
        value = self._given(key, default)
        if not _is_number(value) or float(value) < 0:  # type: ignore[arg-type]
            raise WorkloadError(f"{key}: expected a number of 0 or more, found {value!r}")
        return float(value)  # type: ignore[arg-type]

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise WorkloadError(f"{key}: expected a number above 0, found {value:g}")
        return value

    def flag(self, key: str) -> bool:
        """true or false; false where nothing is said."""
        value = self.keys.get(key, False)
        if not isinstance(value, bool):
            raise WorkloadError(f"{key}: expected true or false, found {value!r}")
        return value

    def counts(self, key: str, default: int) -> int | tuple[int, ...]:
        """A whole number from 1, or a list of them."""
        value = self.keys.get(key, default)
        many = tuple(value) if isinstance(value, list) else (value,)
        if not many or not all(type(one) is int and one >= 1 for one in many):
            raise WorkloadError(f"{key}: expected whole numbers from 1, found {value!r}")
        return many if isinstance(value, list) else int(many[0])

    def positives(self, key: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        value = self._given(key, None)
        if not isinstance(value, list) or not value or not all(_above_0(one) for one in value):
            raise WorkloadError(f"{key}: expected a list of numbers above 0, found {value!r}")
        return tuple(float(one) for one in value)

    def pairs(self, key: str, what: str) -> tuple[tuple[float, float], ...]:
        """A list of two numbers of 0 or more each; ``what`` they are."""
        value = self._given(key, None)
        if not isinstance(value, list) or not value:
            raise WorkloadError(f"{key}: expected a list of [{what}], found {value!r}")
        for place, one in enumerate(value):
            numbers = isinstance(one, list) and all(_is_number(n) and n >= 0 for n in one)
            if not numbers or len(one) != 2:
                raise WorkloadError(f"{key}[{place}]: expected [{what}], found {one!r}")
        return tuple((float(first), float(second)) for first, second in value)

    def part(self) -> tuple[int, int] | None:
        """Which part of how many, from 0: "2/9" is the second of nine. None if not given."""
        value = self.keys.get("part")
        if value is None:
            return None
        first, _, of = value.partition("/") if isinstance(value, str) else ("", "", "")
        if not (first.isdigit() and of.isdigit() and 1 <= int(first) <= int(of)):
            raise WorkloadError(
                f'part: expected such as "2/9", the second of nine, found {value!r}'
            )
        return int(first) - 1, int(of)

    def file(self) -> Path:
        """A file's path; relative ones begin where the scenario lies."""
        value = self._given("file", None)
        if not isinstance(value, str):
            raise WorkloadError(f"file: expected a path, found {value!r}")
        return self.folder / value

    def _given(self, key: str, default: float | None) -> object:
        value = self.keys.get(key, default)
        if value is None:
            raise WorkloadError(f"{key}: it is missing")
        return value


def _is_number(value: object) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and isfinite(value)  # type: ignore[arg-type]


def _above_0(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]
