"""What the jobs do: one module for each domain. Imports only `service.job` and clients of its own."""
