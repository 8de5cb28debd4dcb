"""`callboard up`: the whole service on a developer's machine, with servers of its own, under one supervisor."""
