"""One state machine: events in, commands out; no clock, thread, socket or random number."""
