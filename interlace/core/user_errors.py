"""The plain end of a command: one sentence instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A command cannot go on: what is wrong, and what to do about it, in one line."""

    def __init__(self, said: str) -> None:
        # Names come from files, which may hold anything.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in said))


class InputError(UserError):
    """What was given cannot be used: an option, a file. The command ends with 2 instead of 1."""
