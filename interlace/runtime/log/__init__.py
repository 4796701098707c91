"""Events kept in files: enough to play a run again, decision by decision.

A file is a magic line, then frames: a length of 4 bytes, little-endian, and so many bytes of
MessagePack. The first frame is the ``Header``, each other one an event with its time and a digest
of the commands it was answered with. Commands are not kept: equal events give equal commands.
"""

from interlace.runtime.log.header import Header
from interlace.runtime.log.read import LogError, LogFile, open_log
from interlace.runtime.log.replay import Replay, Step
from interlace.runtime.log.write import LogWriter, older

__all__ = ["Header", "LogError", "LogFile", "LogWriter", "Replay", "Step", "older", "open_log"]
