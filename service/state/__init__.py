"""Durable job state: states and transitions, the projector that stores them, the table, and queries on it."""
