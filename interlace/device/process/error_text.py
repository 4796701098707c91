"""Errors of a worker as the text that clients and operators read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.model import Format
from interlace.device.process.wire import Failed, RunBatch

_DETAIL_CHARS: Final = 2000
#: What torch, ONNX Runtime and NumPy say of an index into a table that is not so long.
_NO_SUCH_ROW: Final = re.compile(
    r"index out of range in self|invalid index found[^\n]*|"
    r"ind(?:ex|ices)\b[^\n]{0,40} out of (?:data )?bounds[^\n]*"
)
#: What ONNX Runtime says of the operator that failed: its type, its name, and the reason.
_ONNX_NODE: Final = re.compile(
    r"while running (\w+) node\. Name:'([^']*)' Status Message: "
    r"(?:\S+:\d+ )?(?:.* was false\. )?(.*)",
    re.DOTALL,
)
#: Where an object lies in memory is of no use to anybody.
_ADDRESS: Final = re.compile(r" (?:object )?at 0x[0-9a-f]+")
#: The line of a traceback that says what was raised.
_RAISED: Final = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): ")
#: What a request's values do not cause, or not alone.
_NOT_OF_VALUES: Final = re.compile(
    r"memory|alloc|\bCUDA|cuDNN|CUBLAS|driver|thread|not implemented|NOT_IMPLEMENTED", re.I
)
#: Formats that are a fixed graph: what they raise is of their operators, not of somebody's code.
_GRAPHS: Final = (Format.ONNX, Format.TORCHSCRIPT, Format.EXPORTED, Format.HUGGINGFACE)


class OutputTooLargeError(MemoryError):
    """An output that the worker's arena can never hold."""


class MemoryLimitError(Exception):
    """A model needs more memory than its operator allows."""


class ReadableError(Exception):
    """An error whose text needs no class name before it."""


def error_text(what: str, error: BaseException) -> str:
    """What failed and why. A repository's error stands alone: it names its file."""
    if isinstance(error, RepositoryError):
        return str(error)[:_DETAIL_CHARS]
    readable = isinstance(error, ReadableError | MemoryError)
    name = "" if readable else f"{type(error).__name__}: "
    return _ADDRESS.sub("", f"{what}: {name}{error}")[:_DETAIL_CHARS]


def batch_failure(
    run: RunBatch, error: BaseException, format: Format, runs: Callable[[], bool]
) -> Failed:
    """Why a batch failed: by a request's values, or by the model.

    The values are at fault if a check says so, or if a graph fails that ``runs`` on others: nothing
    else differs. Python code is not believed so easily, nor is what speaks of memory or devices.
    """
    if isinstance(error, ServeError) and error.reason is Reason.BAD_INPUT:
        return Failed(error.detail, bad_input=True)
    text = str(error)
    missing_row = _NO_SUCH_ROW.search(text)
    if missing_row or (
        (isinstance(error, OutputTooLargeError) or _of_values(error, format)) and runs()
    ):
        why = missing_row[0] if missing_row else _reason(text)
        detail = f"model '{run.model.rpartition('/')[0]}' cannot use these values: {why}"
        return Failed(_ADDRESS.sub("", detail)[:_DETAIL_CHARS], bad_input=True)
    if format is Format.TORCHSCRIPT and "TorchScript interpreter" in text:
        error = ReadableError(_reason(text))  # without its traceback
    return Failed(error_text(f"model {run.model} failed on batch {run.batch}", error))


def _of_values(error: BaseException, format: Format) -> bool:
    """Whether values may cause such an error of a model of that format."""
    library = type(error).__module__.startswith(("torch", "onnxruntime"))
    operator = library or isinstance(error, RuntimeError | AssertionError)
    return operator and format in _GRAPHS and not _NOT_OF_VALUES.search(str(error))


def _reason(text: str) -> str:
    """The sentence that says what a graph's operator refused."""
    node = _ONNX_NODE.search(text)
    if node:
        name = f" '{node[2]}'" if node[2] else ""
        return f"{node[1]} node{name}: {node[3].strip()}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return _RAISED.sub("", (raised or lines or ["it says no more"])[-1 if raised else 0])
