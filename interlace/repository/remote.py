"""Model repositories in object stores: fetched once to a folder, by what the store says of them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from interlace.core.errors import RepositoryError
from interlace.core.tables import counted
from interlace.repository.folder import leads_out

_log = logging.getLogger(__name__)
#: What stores say of a file that changes with its content: the first of them that is known, as a
#: hash stays the same when a file is written again; else all times.
_HASHES: Final = ("md5Hash", "md5", "ETag", "blob_id", "sha", "etag")
_TIMES: Final = ("LastModified", "last_modified", "updated", "mtime", "created")
_AT_ONCE: Final = 8
#: Triton's form of an endpoint, with its scheme or without.
_WITH_HOST: Final = re.compile(r"s3://(https?://|[^/]+:\d+(/|$))")
_BUCKET: Final = "s3://BUCKET/PATH, with the host in AWS_ENDPOINT_URL=http://HOST:PORT"
_EXPECTED: Final = "a repository that can be read, such as s3://bucket/models"


def is_remote(place: str) -> bool:
    """Whether a repository is named by a URL, such as s3://bucket/models."""
    return "://" in place


def fetched_repository(url: str, cache: Path) -> Path:
    """A folder with what lies at a URL now; files that were fetched before are not fetched again.

    It stays as it is while this process lives. All folders of a URL have one parent in ``cache``.
    fsspec reads it, by the provider of the URL's scheme, with the provider's own credentials.

    Raises:
        ModuleNotFoundError: the provider is not installed.
        RepositoryError: it cannot be read, or is empty.
    """
    import fsspec

    if _WITH_HOST.match(url):
        raise RepositoryError(url, "a host", _BUCKET)
    try:
        store, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ModuleNotFoundError(str(error), name=_provider(url)) from error
    except ValueError as error:  # no such scheme
        raise RepositoryError(url, str(error), _EXPECTED) from error
    try:
        store.invalidate_cache()
        listed = store.find(root, detail=True)
        if not listed:
            raise RepositoryError(url, "no files", _EXPECTED)
        files = {_relative(path, root, url): (path, entry) for path, entry in listed.items()}
        with _Fetching(store, cache / _text_digest(url)) as fetching:
            return fetching.tree(url, files)
    except RepositoryError:
        raise
    except Exception as error:  # providers raise what their libraries do
        raise RepositoryError(url, f"{type(error).__name__}: {error}", _EXPECTED) from error


class _Fetching:
    """Files by their identity, and trees of links to them; one process at a time fetches.

    A process holds a lock on each tree that it uses. Trees that no process uses are removed at the
    end, and files of no tree. Where storage has no locks, nothing is removed.
    """

    _used: ClassVar[dict[Path, int]] = {}  #: descriptors of locked trees

    def __init__(self, store: Any, cache: Path) -> None:
        self._store = store
        self._files = cache / "files"
        self._trees = cache / "trees"
        for folder in (self._files, self._trees):
            folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self._lock = _locked(self._files, fcntl.LOCK_EX)
        return self

    def __exit__(self, failed: object, *raised: object) -> None:
        if self._lock is None:
            return
        if not failed:  # else the next try needs what was fetched
            self._clean()
        os.close(self._lock)

    def _clean(self) -> None:
        for tree in self._trees.iterdir():
            descriptor = _locked(tree, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None:
                shutil.rmtree(tree, ignore_errors=True)
                os.close(descriptor)
        for file in self._files.iterdir():
            if file.stat().st_nlink == 1:
                file.unlink()

    def tree(self, url: str, files: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Path:
        """The folder with exactly these files."""
        named = {name: _digest(path, entry) for name, (path, entry) in files.items()}
        tree = self._trees / _text_digest(sorted(named.items()))
        if tree.exists():
            _log.debug("%s is as it was fetched before", url)
        else:
            new = {digest: files[name][0] for name, digest in named.items()}
            new = {one: path for one, path in new.items() if not (self._files / one).exists()}
            _log.info("fetching %s of %d from %s", counted(len(new), "file"), len(files), url)
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(self._fetch, new.keys(), new.values()))
            self._link(tree, named)
        with suppress(KeyError):  # anew: somebody may have deleted it meanwhile
            os.close(self._used.pop(tree))
        if (lock := _locked(tree, fcntl.LOCK_SH)) is not None:
            self._used[tree] = lock
        return tree

    def _link(self, tree: Path, named: Mapping[str, str]) -> None:
        into = Path(tempfile.mkdtemp(dir=self._trees))
        into.chmod(0o755)
        for name, digest in named.items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(self._files / digest, into / name)
        try:
            into.rename(tree)
        except OSError:  # another server was faster, where there are no locks
            shutil.rmtree(into)

    def _fetch(self, digest: str, path: str) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._files)
        os.close(descriptor)
        try:
            self._store.get_file(path, name)
            os.chmod(name, 0o644)
            os.rename(name, self._files / digest)
        except BaseException:
            os.unlink(name)
            raise


def _relative(path: str, root: str, url: str) -> str:
    """The name of a file below the repository; it leads nowhere else."""
    name = path.removeprefix(root).lstrip("/")
    if not name or leads_out(name):
        raise RepositoryError(url, f"'{path}'", "files below it")
    return name


def _digest(path: str, entry: Mapping[str, Any]) -> str:
    known = {key: str(entry[key]) for key in (*_HASHES, *_TIMES) if entry.get(key) is not None}
    told = [known[key] for key in _HASHES if key in known][:1]
    return _text_digest([path, entry.get("size"), told or known])


def _locked(folder: Path, how: int) -> int | None:
    """A descriptor that holds a lock; ``None`` if it cannot be had."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _text_digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _provider(url: str) -> str:
    """The module that reads URLs of a scheme."""
    from fsspec.registry import known_implementations

    known = known_implementations.get(url.partition("://")[0], {})
    return str(known.get("class", "fsspec")).partition(".")[0]
