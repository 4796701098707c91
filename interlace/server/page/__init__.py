"""The page: a server or a log in a browser, its questions answered by the commands."""
