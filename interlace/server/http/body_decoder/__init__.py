"""Large request bodies, unpacked and decoded in a process beside the event loop."""
