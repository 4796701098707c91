"""The documentation as a site: `scripts/docs` builds it and treats warnings as errors."""

from __future__ import annotations

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

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")


def _offer_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a file of the repository becomes a download; one to a folder only names it.

    Sphinx warns of files that are not there, so these links are checked as well.
    """
    folder = (Path(app.srcdir) / page).parent

    def offer(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(Path(app.srcdir)):
            return link[0]
        return (
            f"`{path.relative_to(ROOT)}`" if path.is_dir() else f"{{download}}`{text} <{target}>`"
        )

    source[0] = _OUTSIDE.sub(offer, source[0])


def setup(app: Sphinx) -> None:
    """What this project adds to Sphinx."""
    app.connect("source-read", _offer_files_outside)
