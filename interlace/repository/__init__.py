"""Model folders on disk: layout, config.pbtxt, interlace.toml, digests.

To deploy models: ``scan`` a root, ``read`` each version into a ``Draft``, open
``draft.provisional()`` once to learn its signature, ``complete`` the draft with it to a ``Model``.
"""
