"""A bounded cache of what was worked out before."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class GenerationalCache(Generic[Key, Value]):
    """At most ``2 * limit`` entries in two generations.

    A full young generation becomes the old one, and the old one is dropped; what is still asked
    for moves back into the young. So a flood of keys seen once never evicts the keys in use.
    """

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._old: dict[Key, Value] = {}
        self._young: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """An entry of either generation, kept from now on."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        if len(self._young) >= self._limit:
            self._old = self._young
            self._young = {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
