"""Which version of the package this is."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
