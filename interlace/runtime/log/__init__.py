"""Event logs: enough to replay a run decision by decision.

A file is a magic line, then frames: a length of 4 bytes, little-endian, and so many bytes of
MessagePack. The first frame is the ``LogHeader``, each other an event with its time and a digest
of the commands it was answered with. Commands are not kept: equal events give equal commands.
"""
