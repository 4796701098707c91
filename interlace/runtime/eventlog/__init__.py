"""The event log: what a runtime heard, kept so that a replay decides the same again."""

from interlace.runtime.eventlog.reader import Entry, Header, LogError, read_header, read_log
from interlace.runtime.eventlog.writer import LogWriter

__all__ = ["Entry", "Header", "LogError", "LogWriter", "read_header", "read_log"]
