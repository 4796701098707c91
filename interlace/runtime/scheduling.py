"""Priority, descriptors and garbage collection of a process that serves."""

from __future__ import annotations

import gc
import os
import resource
from contextlib import suppress


def wait_for_turns() -> None:
    """Let a model that computes on this core finish its time slice before requests are read.

    Else every packet of every request interrupts it, for work of 0.1 ms: in overload that is a
    quarter of the core. Where a core is idle it is taken at once. Only the thread that serves is
    scheduled so; processes begun from here on are scheduled as usual.
    """
    with suppress(OSError):  # forbidden in some sandboxes
        os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system does: both transports keep 1,024 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """Collect what starting left, and look at the rest rarely.

    Requests make no cycles, and a collection in the middle of one walks everything that was ever
    loaded: tens of milliseconds on somebody's deadline.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
