"""Writes the reference pages from the code: ``.venv/bin/python -m tests.reference.pages``.

With ``--check`` nothing is written; pages that differ are named, and the exit code is 1.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import commands, errors, metrics, settings

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = ".venv/bin/python -m tests.reference.pages"
PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "errors.md": errors.page,
    "metrics.md": metrics.page,
    "settings.md": settings.page,
}


def text_of(name: str) -> str:
    """What the page is to be."""
    title, _, rest = PAGES[name]().partition("\n")
    return f"{title}\n\n<!-- Written by `{COMMAND}`; do not edit. -->\n{rest}"


def main() -> int:
    """Write the pages, or with ``--check`` name those that differ."""
    check = "--check" in sys.argv[1:]
    old = [name for name in PAGES if not _same(name)]
    for name in old:
        print(f"docs/{name} {'differs: run ' + COMMAND if check else 'written'}")
        if not check:
            (DOCS / name).write_text(text_of(name), encoding="utf-8")
    return 1 if check and old else 0


def _same(name: str) -> bool:
    path = DOCS / name
    return path.exists() and path.read_text(encoding="utf-8") == text_of(name)


if __name__ == "__main__":
    sys.exit(main())
