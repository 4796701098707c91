"""A system whose partitions always overlap, for a server of its own."""

from dataclasses import replace

from interlace.policy.catalog import resolve
from interlace.policy.planners.overcommitted import Overcommitted

SYSTEM = replace(resolve("interlace"), planner=Overcommitted())
