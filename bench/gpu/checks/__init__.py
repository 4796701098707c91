"""Questions about a GPU and its libraries that no document answers, a file each."""
