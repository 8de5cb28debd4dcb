"""Keeps programs running: starts them, replaces what died, stops them. Used by `callboard worker` and `callboard up`."""
