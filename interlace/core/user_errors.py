"""The plain end of a command: one sentence instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A command cannot go on: what is wrong, and what to do about it."""


class InputError(UserError):
    """What was given cannot be used: an option, a file. The command ends with 2 instead of 1."""
