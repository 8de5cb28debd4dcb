"""What operators see of a process: logs and probes. Imports settings only; every room above may import it."""
