"""The documentation as a site: `scripts/docs` builds it and treats warnings as errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent

project = "Interlace"
author = "The Interlace authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Interlace"
myst_heading_anchors = 4  # GitHub's anchors, which the pages link to
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
#: What planning and simulating do without is not needed to read about it either.
autodoc_mock_imports = ["torch", "onnxruntime", "transformers", "cuda", "pynvml", "grpc"]
#: Headings that skip a level, and code in formats that Pygments does not colour (pbtxt, csv).
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

_INCLUDED = re.compile(r"^```{include} \.\./(\S+)\n```$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#:\s]+)(#[^)]*)?\)")
#: Files of the repository's root that are pages of the site.
_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def _include(app: Sphinx, page: str, source: list[str]) -> None:
    """Pages of the repository's root become part of the site, and their links lead on in it.

    A link to a file outside the site becomes a download, one to a folder only names it; Sphinx
    warns of files that are not there.
    """
    site, folder = Path(app.srcdir), (Path(app.srcdir) / page).parent

    def lead(link: re.Match[str], base: Path) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        path = (base / target).resolve()
        if path.parent == ROOT and path.name in _PAGES:
            path = site / _PAGES[path.name]
        if path.is_relative_to(site):
            return f"{image}[{text}]({os.path.relpath(path, folder)}{anchor})"
        if path.is_dir():
            return f"`{path.relative_to(ROOT)}`"
        return f"{{download}}`{text} <{os.path.relpath(path, folder)}>`"

    text = _LINK.sub(lambda link: lead(link, folder), source[0])
    source[0] = _INCLUDED.sub(
        lambda found: _LINK.sub(lambda link: lead(link, ROOT), (ROOT / found[1]).read_text()), text
    )


def setup(app: Sphinx) -> None:
    """What this project adds to Sphinx."""
    app.connect("source-read", _include)
