"""Benchmarks: load, other inference servers, overload, and real models together."""

import sys
from types import TracebackType

from interlace.core.user_errors import remedy


def _advise(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of a library that is missing, only what brings it: most benchmarks need some extra."""
    advice = remedy(error) if isinstance(error, ModuleNotFoundError) else None
    if advice is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(f"error: {advice}", file=sys.stderr)


sys.excepthook = _advise
