"""Trace and log settings as Triton's clients ask for them; none of them can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from interlace.core.errors import Reason, ServeError

#: Tracing is off: values as Triton spells them, all strings.
TRACE: Final[Mapping[str, object]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}

LOGGING: Final[Mapping[str, object]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def changed(kind: str, now: Mapping[str, object], asked: Mapping[str, object]) -> dict[str, object]:
    """The settings after a request for change: the same, as long as nothing else was asked for.

    ``None`` clears a setting to its default, which it already has.

    Raises:
        ServeError: BAD_INPUT for an unknown setting, UNSUPPORTED for another value.
    """
    for name, value in asked.items():
        if name not in now:
            known = ", ".join(now)
            raise ServeError(
                Reason.BAD_INPUT, f"unknown {kind} setting '{name}'; settings: {known}"
            )
        if value is not None and value != now[name] and [value] != now[name]:
            raise ServeError(
                Reason.UNSUPPORTED,
                f"{kind} setting '{name}' is {now[name]!r} and cannot be changed to {value!r} "
                f"while the server runs",
            )
    return dict(now)
