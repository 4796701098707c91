"""Where the shared weights of models lie while a command runs."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

_log = logging.getLogger(__name__)


class WeightsFolder:
    """A folder that can be written to: the wanted one, else one that goes with the command.

    ``folder`` is ``None`` where neither is to be had, or none is wanted: then each worker keeps
    weights of its own.
    """

    def __init__(self, wanted: str | None) -> None:
        self._temporary: TemporaryDirectory[str] | None = None
        self.folder = wanted
        if wanted is None:
            return
        try:
            Path(wanted).mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".probe-", dir=wanted):
                pass
        except OSError as error:
            self.folder = self._instead()
            place = self.folder or "the memory of each worker"
            _log.warning(
                "%s: %s; profiles and weights are not kept, weights lie in %s; --profiles names "
                "another folder",
                wanted,
                error.strerror or error,
                place,
            )

    def close(self) -> None:
        """Give the folder back if it was made for this run."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _instead(self) -> str | None:
        try:
            self._temporary = TemporaryDirectory(prefix="interlace-weights-")
        except OSError:
            return None
        return self._temporary.name
