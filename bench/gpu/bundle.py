"""All findings of a run in one file, to be carried away, and to go on from elsewhere."""

import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.gpu.findings import ROWS, SUMMARY

NAME: Final = "bundle.tar.gz"
#: What may come back from a borrowed machine.
MOST_BYTES: Final = 16 << 20
#: What a file costs in the archive beside its own bytes, compressed; and what the archive's end is.
_HEAD_BYTES: Final = 1024
#: A log may be anything; its end says where a part stood.
_LOG_BYTES: Final = 128 << 10
_FIRST: Final = (SUMMARY, ROWS)
_FINDINGS: Final = (".json", ".jsonl", ".csv")
_LEFT_OUT: Final = "left-out.txt"


def bundle(out: Path, file: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Put the findings in ``out`` into ``file``, the most telling first, and never too many.

    Caches and what programs left are not findings. Returns the names of what had no room, which
    are in the file as well.

    Raises:
        OSError: the file cannot be written.
    """
    missing: list[str] = []
    left_bytes = most_bytes - _HEAD_BYTES
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.part")
    with tarfile.open(made, "w:gz") as archive:
        for path in _ordered(out):
            name = str(path.relative_to(out))
            data = _read(path)
            need_bytes = len(zlib.compress(data)) + _HEAD_BYTES
            if need_bytes > left_bytes:
                missing.append(name)
                continue
            left_bytes -= need_bytes
            _add(archive, name, data)
        if missing:
            _add(archive, _LEFT_OUT, "\n".join(missing)[:_HEAD_BYTES].encode())
    made.replace(file)
    return missing


def unpack(file: Path, out: Path) -> None:
    """Lay the findings of a bundle into ``out``, over those of the same names.

    Raises:
        OSError: there is no such file, or it cannot be read.
        tarfile.TarError: it is no bundle, or was not made by ``bundle``.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "r:gz") as archive:
        archive.extractall(out, filter="data")


def _ordered(out: Path) -> Iterator[Path]:
    """Summary and rows, each part's file, what parts kept for others, logs."""
    found = [path for path in sorted(out.rglob("*")) if path.is_file() and not _hidden(path, out)]
    rank = {name: place for place, name in enumerate(_FIRST)}
    findings = [path for path in found if path.suffix in _FINDINGS]
    logs = [path for path in found if path.suffix == ".log"]
    yield from sorted(
        findings, key=lambda path: (rank.get(path.name, len(rank)), len(path.parts), path)
    )
    yield from logs


def _hidden(path: Path, out: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(out).parts)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return data[-_LOG_BYTES:] if path.suffix == ".log" else data


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
