"""What a part found: one row a question, with what was expected and what was seen."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any


class Verdict(Enum):
    """How a row ended."""

    AS_EXPECTED = "as expected"
    OTHER = "other"  #: it ran, and what it found is not what was expected
    SEEN = "seen"  #: a figure of which nothing was expected
    SKIPPED = "skipped"  #: what it needs is not there
    FAILED = "failed"  #: it did not run to its end
    DRY = "dry"  #: it ran without a GPU: nothing it found says anything of one


@dataclass(frozen=True, slots=True)
class Row:
    """One question and its answer. ``figures`` are the numbers behind the words, units in names.

    A ``binding`` row tells of a law, not of a figure: it must hold without a GPU, too.
    """

    what: str
    expected: str
    found: str
    verdict: Verdict
    figures: Mapping[str, Any] = field(default_factory=dict)
    binding: bool = False

    def __str__(self) -> str:
        wanted = f" (expected: {self.expected})" if self.expected else ""
        return f"{self.verdict.value:>12}  {self.what}: {self.found}{wanted}"

    @property
    def broken(self) -> bool:
        """Whether a run that has this row has failed."""
        return self.verdict is Verdict.FAILED or (self.binding and self.verdict is Verdict.OTHER)

    def plain(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {**asdict(self), "verdict": self.verdict.value}

    def dry(self) -> Row:
        """The row as it counts without a GPU: that it ran is all that it says, so that no figure
        of a dry run is ever taken for one of a GPU. A law that does not hold is an error."""
        if self.verdict in (Verdict.FAILED, Verdict.SKIPPED):
            return self
        if self.broken:
            return Row(self.what, self.expected, self.found, Verdict.FAILED)
        return Row(self.what, "", "ran", Verdict.DRY, binding=self.binding)


def seen(what: str, found: str, **figures: Any) -> Row:
    """A figure of which nothing was expected."""
    return Row(what, "", found, Verdict.SEEN, figures)


def judged(what: str, expected: str, found: str, holds: bool, **figures: Any) -> Row:
    """An expectation, and whether it holds."""
    return Row(what, expected, found, Verdict.AS_EXPECTED if holds else Verdict.OTHER, figures)


def law(what: str, expected: str, found: str, holds: bool, **figures: Any) -> Row:
    """What must hold on any GPU, and without one: if it does not, the run has failed."""
    return replace(judged(what, expected, found, holds, **figures), binding=True)


def skipped(what: str, why: str) -> Row:
    """A question that cannot be asked here."""
    return Row(what, "", why, Verdict.SKIPPED)


def failed(what: str, error: BaseException | str) -> Row:
    """A question whose answer is an error; the way there is kept beside it."""
    if isinstance(error, str):
        return Row(what, "", error, Verdict.FAILED)
    words = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))[-4000:]
    return Row(what, "", words[:500], Verdict.FAILED, {"trace": trace})


def attempt(what: str, ask: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of one question; if it breaks, a row says so and the next question is asked."""
    try:
        yield from ask()
    except Exception as error:
        yield failed(what, error)


def flow(rows: AsyncIterator[Row]) -> Iterator[Row]:
    """Run the loop from one row to the next; between them nothing moves, which no part minds."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        while True:
            yield loop.run_until_complete(anext(rows))
    except StopAsyncIteration:
        return
    finally:  # nothing is waited for: a GPU may hang
        asyncio.set_event_loop(None)
        loop.close()


def as_line(value: object) -> str:
    """Return JSON on one line; numbers that JSON does not know become words."""
    return json.dumps(_known(value), ensure_ascii=False, separators=(",", ":")) + "\n"


def _known(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _known(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return _known(value.item()) if hasattr(value, "item") else str(value)
