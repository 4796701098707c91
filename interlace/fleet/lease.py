"""Who may command: one controller at a time, by files in a folder that all of them reach."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

_PREFIX: Final = "term-"
_RELEASED: Final = b"\n"


#: A term that is later than most nodes' by more is nobody's: each controller takes the next one.
_PLAUSIBLE: Final = 1 << 20


def next_term(terms: Iterable[int], begins: bool) -> int:
    """The term after those that nodes have seen, each saying its own; 1 if there are none.

    Whoever ``begins`` to command takes a later one than any node has seen, within reason. Whoever
    commands goes on until more than half of the nodes have seen a later one: no node alone ends it.
    """
    latest_first = sorted(terms, reverse=True)
    if not latest_first:
        return 1
    of_most = latest_first[len(latest_first) // 2]
    if not begins:
        return of_most + 1
    return max(term for term in latest_first if term <= of_most + _PLAUSIBLE) + 1


class Lease(Protocol):
    """Says whether this controller commands, and in which term."""

    def renew(self, at_least: int = 1) -> int | None:
        """The term that is held, or taken now; ``None`` while another commands.

        A term that is taken is ``at_least`` that: later than any that nodes have seen.
        """
        ...

    def release(self) -> None:
        """Command no more."""
        ...


class LatestLease:
    """The controller that began last commands: for those that share no folder.

    It takes the term after the latest that nodes have seen, once, and has lost it when they see a
    later one.
    """

    def __init__(self) -> None:
        self._term = 0

    def renew(self, at_least: int = 1) -> int | None:
        """The term, or ``None`` from when a later one was seen."""
        if not self._term:
            self._term = at_least
        return self._term if at_least <= self._term + 1 else None

    def release(self) -> None:
        """The next one takes its own."""


class FileLease:
    """A lease that its holder renews, and that another takes once it was not renewed for long.

    Each term is a file, made by whoever makes it first; its holder writes to it with each renewal.
    Nobody's clock is compared with another's: whoever waits sees that a file has not changed for
    ``ttl_ms`` of its own time. A holder that was stopped meanwhile may not know yet that it lost
    the lease; nodes refuse what it says then, since its term is an older one.
    """

    def __init__(
        self, folder: Path, holder: str, now_ms: Callable[[], float], ttl_ms: float = 1500.0
    ) -> None:
        """``holder`` says in the file who it is, for people.

        Raises:
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._holder = holder
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._term = 0  #: ours, 0 if we hold none
        self._renewals = 0
        self._seen: tuple[int, bytes] = (0, b"")
        self._seen_ms = now_ms()

    def renew(self, at_least: int = 1) -> int | None:
        """Renew or try to take the lease: its term, or ``None`` while another holds it.

        To be called several times in ``ttl_ms``. A term that is taken is ``at_least`` that.

        Raises:
            OSError: the folder cannot be used.
        """
        newest = self._newest()
        if self._term and newest == self._term:
            self._write()
            return self._term
        self._term = 0
        seen = (newest, self._read(newest))
        now_ms = self._now_ms()
        if seen != self._seen:
            self._seen, self._seen_ms = seen, now_ms
        if newest and seen[1] != _RELEASED and now_ms - self._seen_ms < self._ttl_ms:
            return None
        return self._take(max(newest + 1, at_least))

    @property
    def holder(self) -> str:
        """Who held the lease when it was last looked at; "" for nobody."""
        return self._seen[1].decode("utf-8", "replace").partition("\n")[0]

    def release(self) -> None:
        """Let the next one take it at once; in a later term, as ever."""
        if self._term and self._newest() == self._term:
            with suppress(OSError):
                self._path(self._term).write_bytes(_RELEASED)
        self._term = 0

    def _take(self, term: int) -> int | None:
        try:
            made = os.open(self._path(term), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        os.close(made)
        self._term = term
        self._write()
        for path in self._folder.glob(f"{_PREFIX}*"):
            if _term_of(path) < term:
                path.unlink(missing_ok=True)
        return term

    def _write(self) -> None:
        self._renewals += 1
        self._path(self._term).write_text(f"{self._holder}\n{self._renewals}\n", encoding="utf-8")

    def _newest(self) -> int:
        return max(map(_term_of, self._folder.glob(f"{_PREFIX}*")), default=0)

    def _read(self, term: int) -> bytes:
        try:
            return self._path(term).read_bytes() if term else b""
        except FileNotFoundError:
            return b""

    def _path(self, term: int) -> Path:
        return self._folder / f"{_PREFIX}{term:012d}"


def _term_of(path: Path) -> int:
    number = path.name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else 0
