"""Model folders on disk: layout, config.pbtxt, interlace.toml, digests.

For whoever deploys models: ``scan`` a root, ``read`` each version into a ``Draft``, open
``draft.provisional()`` once to learn its signature, ``complete`` the draft with it to a ``Model``.
"""

from interlace.repository.config import Config
from interlace.repository.config_json import config_json
from interlace.repository.digest import Digests
from interlace.repository.draft import Draft, read
from interlace.repository.layout import Found, look_at, names, scan
from interlace.repository.model import complete
from interlace.repository.staging import stage

__all__ = [
    "Config",
    "Digests",
    "Draft",
    "Found",
    "complete",
    "config_json",
    "look_at",
    "names",
    "read",
    "scan",
    "stage",
]
