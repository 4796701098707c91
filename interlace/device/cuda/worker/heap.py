"""Python's own memory in a process that serves: no search for cycles through all that stays."""

from __future__ import annotations

import gc


def freeze_heap(thaw: bool = False) -> None:
    """Leave everything that is there now out of later searches, after one among what is new.

    A search through torch and a few models stops the process for 50 ms and more, one through what a
    load has left for 3. Cycles of what is set aside are only found when all of it is searched: with
    ``thaw``, now.
    """
    if thaw:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
