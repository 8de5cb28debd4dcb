"""The HTTP API: one router for each resource, errors as problem details (RFC 9457)."""
