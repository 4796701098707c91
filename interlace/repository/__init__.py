"""Model folders on disk: layout, config.pbtxt, interlace.toml, digests.

To deploy models: ``scan`` a root, ``read`` each version into a ``Draft``, open
``draft.provisional()`` once to learn its signature, ``complete`` the draft with it to a ``Model``.
"""

from interlace.repository.config_json import config_json
from interlace.repository.digest import Digests
from interlace.repository.draft import Draft, read
from interlace.repository.folder import ModelFolder, folder_names, scan, scan_folder
from interlace.repository.model import complete
from interlace.repository.model_config import ModelConfig

__all__ = [
    "Digests",
    "Draft",
    "ModelConfig",
    "ModelFolder",
    "complete",
    "config_json",
    "folder_names",
    "read",
    "scan",
    "scan_folder",
]
