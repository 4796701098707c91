"""A GPU's memory by model: what each holds, what it may take, and errors that say why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Final

from interlace.device.cuda.driver.api import CudaError, DeviceMemory, Driver
from interlace.device.process.error_text import MemoryLimitError

_MIB: Final = 1 << 20
_OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"


class DeviceMemoryError(Exception):
    """A GPU has too little memory left for a model."""


@dataclass(slots=True)
class MemoryChange:
    """Memory of the GPU before and after something, all processes together."""

    before: DeviceMemory
    after: DeviceMemory

    @property
    def grown_bytes(self) -> int:
        """What is held more than before; less if negative."""
        return self.before.free_bytes - self.after.free_bytes

    def __str__(self) -> str:
        before, after = _mib(self.before.free_bytes), _mib(self.after.free_bytes)
        return f"{before} free before, {after} free after, of {_mib(self.after.total_bytes)}"


@dataclass(slots=True)
class _Account:
    limit_bytes: int | None
    held_bytes: int = 0


class MemoryBudget:
    """The models of one process and what each holds on its GPU, as the driver counts it.

    Changes are measured one at a time: another thread waits, and nothing else allocates meanwhile.
    So they are exact unless other processes use the GPU. Memory of other processes would be counted
    to the model that grows just then.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._accounts: dict[str, _Account] = {}
        self._lock = RLock()
        self._measuring = False

    def held_bytes(self, model: str) -> int:
        """What a model holds; 0 if it is not there."""
        account = self._accounts.get(model)
        return 0 if account is None else account.held_bytes

    @property
    def models(self) -> dict[str, int]:
        """What each model holds."""
        return {model: account.held_bytes for model, account in self._accounts.items()}

    @contextmanager
    def loading(
        self, model: str, needed_bytes: int, limit_bytes: int | None
    ) -> Iterator[MemoryChange]:
        """Around the load of a new model, which holds at least ``needed_bytes`` afterwards.

        If the body raises, or these errors are raised at its end, the caller undoes what it did;
        the model has no account then.

        Raises:
            ValueError: the model is there already.
            MemoryLimitError: it needs, or took, more than its limit.
            DeviceMemoryError: the GPU has less, before or while it loads.
        """
        if model in self._accounts:
            raise ValueError(f"model {model} is loaded already")
        self._accounts[model] = _Account(limit_bytes)
        try:
            with self.growing(model, needed_bytes) as change:
                yield change
        except BaseException:
            self._accounts.pop(model, None)
            raise

    @contextmanager
    def growing(self, model: str, needed_bytes: int = 0) -> Iterator[MemoryChange]:
        """Around something that makes a loaded model larger: graphs for another partition.

        If it ends with an error, the caller undoes what it did; nothing is counted.

        Raises:
            KeyError: no such model.
            MemoryLimitError: it needs, or took, more than its limit.
            DeviceMemoryError: the GPU has less, before or meanwhile.
        """
        account = self._accounts[model]
        with self._measured() as change:
            self._admit(model, account, needed_bytes, change.before)
            try:
                yield change
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                raise self._short(model, needed_bytes, self._driver.memory()) from error
        _check_limit(model, account, account.held_bytes + change.grown_bytes)
        account.held_bytes += change.grown_bytes

    @contextmanager
    def shrinking(self, model: str) -> Iterator[MemoryChange]:
        """Around something that makes a loaded model smaller.

        Raises:
            KeyError: no such model.
        """
        account = self._accounts[model]
        with self._measured() as change:
            yield change
        account.held_bytes += change.grown_bytes

    @contextmanager
    def unloading(self, model: str) -> Iterator[MemoryChange]:
        """Around the end of a model; its account ends with it, whatever happens.

        Raises:
            KeyError: no such model.
        """
        del self._accounts[model]
        with self._measured() as change:
            yield change

    @contextmanager
    def _measured(self) -> Iterator[MemoryChange]:
        with self._lock:
            assert not self._measuring, "one change of a GPU's memory is measured inside another"
            self._measuring = True
            try:
                before = self._driver.memory()
                change = MemoryChange(before, before)
                yield change
                change.after = self._driver.memory()
            finally:
                self._measuring = False

    def _admit(
        self, model: str, account: _Account, needed_bytes: int, memory: DeviceMemory
    ) -> None:
        _check_limit(model, account, account.held_bytes + needed_bytes)
        if needed_bytes > memory.free_bytes:
            raise self._short(model, needed_bytes, memory)

    def _short(self, model: str, needed_bytes: int, memory: DeviceMemory) -> DeviceMemoryError:
        free, total = _mib(memory.free_bytes), _mib(memory.total_bytes)
        needs = f"at least {_mib(needed_bytes)}" if needed_bytes else "more memory"
        text = f"it needs {needs} on the GPU, {free} of {total} are there"
        held = {name: size for name, size in self.models.items() if size > 0}
        if held:
            listed = sorted(held.items(), key=lambda item: -item[1])
            text += "; held by " + ", ".join(f"{name}: {_mib(size)}" for name, size in listed)
        return DeviceMemoryError(f"model {model}: {text}; unload a model or use smaller ones")


def _check_limit(model: str, account: _Account, bytes_wanted: int) -> None:
    limit = account.limit_bytes
    if limit is not None and bytes_wanted > limit:
        raise MemoryLimitError(
            f"model {model}: it needs {_mib(bytes_wanted)} on the GPU, its memory limit is "
            f"{_mib(limit)}; raise the limit or use a smaller model"
        )


def is_short_of_memory(error: BaseException) -> bool:
    """Whether something failed that would not have failed with more free memory, or a model with
    less of it."""
    known = DeviceMemoryError | MemoryLimitError | MemoryError
    return isinstance(error, known) or _is_out_of_memory(error)


def _is_out_of_memory(error: BaseException) -> bool:
    """Of the driver, or of a framework, which need not be imported to tell."""
    if isinstance(error, CudaError):
        return error.name == _OUT_OF_MEMORY
    return type(error).__name__ == "OutOfMemoryError"


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:.1f} MiB"
