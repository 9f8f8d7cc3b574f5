"""What the service remembers: jobs, attempts, points, lines and events, in SQLite or PostgreSQL."""

from stoker.jobs.store.store import Store

__all__ = ["Store"]
