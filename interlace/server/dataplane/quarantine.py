"""Requests that ended their worker twice: the same one is refused for a while."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from interlace.core.deployment_key import model_name
from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Span, Tensor

#: Deaths from which on a request is refused, for how long after the last, and of how many requests
#: that is remembered.
DEATHS: Final = 2
KEPT_MS: Final = 600_000.0
KEPT: Final = 256
#: An input is identified by so many bytes from each end.
_END_BYTES: Final = 1 << 19

View = Callable[[Span], memoryview]


class Quarantine:
    """Digests of inputs by deployment key, with the deaths that each caused.

    Nothing is computed for models that none is remembered of.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: OrderedDict[tuple[str, bytes], tuple[int, float]] = OrderedDict()
        self._models: frozenset[str] = frozenset()

    def suspects(self, key: str) -> bool:
        """True if something is remembered of that deployment."""
        return key in self._models

    def died(self, key: str, inputs: Sequence[Tensor], deaths: int, now_ms: float) -> None:
        """Enter that so many processes ended while they ran this, and nothing else."""
        name = (key, self._digest(inputs))
        before, _ = self._known.pop(name, (0, 0.0))
        self._known[name] = before + deaths, now_ms
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        self._models = frozenset(model for model, _ in self._known)

    def check(self, key: str, inputs: Sequence[Tensor], now_ms: float) -> None:
        """Refuse what has ended its worker too often.

        Raises:
            ServeError: BACKEND, with when it may be tried again.
        """
        self._forget(now_ms)
        deaths, last_ms = self._known.get((key, self._digest(inputs)), (0, 0.0))
        if deaths < DEATHS:
            return
        left_ms = last_ms + KEPT_MS - now_ms
        raise ServeError(
            Reason.BACKEND,
            f"not run: these inputs ended the worker of '{model_name(key)}' {deaths} times; "
            f"they are tried again after {left_ms / 1000.0:.0f} s, or when the model is reloaded",
            retry_after_ms=left_ms,
        )

    def _forget(self, now_ms: float) -> None:
        old = [name for name, (_, last_ms) in self._known.items() if last_ms + KEPT_MS <= now_ms]
        for name in old:
            del self._known[name]
        if old:
            self._models = frozenset(model for model, _ in self._known)

    def _digest(self, inputs: Sequence[Tensor]) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for tensor in inputs:
            data = self._view(tensor.span)
            digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
            digest.update(data[:_END_BYTES])
            digest.update(data[max(_END_BYTES, len(data) - _END_BYTES) :])
        return digest.digest()
