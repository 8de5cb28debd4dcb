"""Keeps programs running: starts them, replaces what died, stops them. Behind `callboard worker` and `callboard up`."""
