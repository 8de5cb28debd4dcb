"""Tasks of agents: a table that other services read and write, each task carried out by one job at a time.

The row of a task is written before its job is sent, with the job's id, and what is not sent by then is sent by a
reconciler. How the job ended is written into the row by a job of its own, and by the reconciler where that is lost.
"""
