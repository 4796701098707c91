"""Large request bodies, unpacked and decoded in a process of their own."""
