"""Callboard: typed background jobs on Redis, with durable state in PostgreSQL.

The rooms, from the bottom up, are drawn in docs/architecture.md; import-linter holds the direction.
"""

__version__ = "0.1.0"
