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
    "dispatcher_laws",
    "fairness_laws",
    "cold_laws",
)


#: ``max_examples`` of Hypothesis unless a profile says more.
_USUAL: Final = 100


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
    known: Sequence[Case] = (),
) -> Callable[[Callable[[System, Case], None]], Law]:
    """Make a law of a function of a system and a case.

    Hypothesis draws ``examples`` of the ``cases``, times the ``max_examples`` of its current
    profile over its default of 100. All of a sequence, and of the cases ``known`` to have broken
    the law, are checked every time.
    """

    def made(check: Callable[[System, Case], None]) -> Law:
        def check_all(system: System) -> None:
            if not isinstance(cases, SearchStrategy):
                for case in cases:
                    check(system, case)
                return

            for case in known:
                check(system, case)
            drawn = max(1, examples * settings().max_examples // _USUAL)

            @settings(max_examples=drawn, deadline=None)
            @given(cases)
            def on(case: Case) -> None:
                check(system, case)

            on()

        return Law(check.__name__, check_all, holds_for)

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
