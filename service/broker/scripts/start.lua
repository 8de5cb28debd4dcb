-- Record that a job has started.
--
-- KEYS  1 job (hash)  2 events (stream)
-- ARGV  1... field, value, ...
-- Returns 1, or 0 where the job has ended before. Complexity: O(fields).
return record(KEYS[1], KEYS[2], "running", fields_from(1))
