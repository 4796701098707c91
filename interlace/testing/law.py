"""Laws as values: a name, what it is checked on, and the systems that it holds for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, TypeVar

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from interlace.policy.base import System

Case = TypeVar("Case")

#: Modules that hold the laws, in the order in which they are checked.
_MODULES: Final = (
    "planner_laws",
    "packer_laws",
    "dispatcher_laws",
    "run_laws",
    "fairness_laws",
    "cold_laws",
)


@dataclass(frozen=True, slots=True)
class Law:
    """What a system keeps, whatever the case; ``law(system)`` checks it.

    Raises:
        AssertionError: when called, if some case breaks it.
    """

    name: str
    check: Callable[[System], None]
    holds_for: Callable[[System], bool]

    def __call__(self, system: System) -> None:
        self.check(system)

    def __str__(self) -> str:
        return self.name


def law(
    cases: SearchStrategy[Case] | Sequence[Case],
    examples: int = 10,
    holds_for: Callable[[System], bool] = lambda system: True,
) -> Callable[[Callable[[System, Case], None]], Law]:
    """Makes a law of a function of a system and a case.

    ``cases`` are drawn by Hypothesis, ``examples`` of them; a sequence is gone through in full.
    """

    def made(check: Callable[[System, Case], None]) -> Law:
        def drawn(system: System) -> None:
            if not isinstance(cases, SearchStrategy):
                for case in cases:
                    check(system, case)
                return

            @settings(max_examples=examples, deadline=None)
            @given(cases)
            def on(case: Case) -> None:
                check(system, case)

            on()

        return Law(check.__name__, drawn, holds_for)

    return made


def single_case(check: Callable[[System], None]) -> Law:
    """A law of every system with one case, which its function holds."""
    return Law(check.__name__, check, lambda system: True)


def laws_of(system: System) -> list[Law]:
    """The laws that a system promises to keep, by the properties of its row."""
    modules = [import_module(f"interlace.testing.{name}") for name in _MODULES]
    found = [value for module in modules for value in vars(module).values()]
    return [one for one in found if isinstance(one, Law) and one.holds_for(system)]


def check_system(system: System) -> None:
    """Check every law of a system.

    Raises:
        AssertionError: one is broken; the note says which.
    """
    for one in laws_of(system):
        try:
            one(system)
        except AssertionError as error:
            error.add_note(f"system '{system.name}' breaks the law {one.name}")
            raise
