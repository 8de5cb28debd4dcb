-- Put a message on its queue, or on its delay queue, and record its job.
--
-- KEYS  1 job (hash)  2 events (stream)  3 list  4 messages (hash)  5 sent (string): marks a job sent once for all
-- ARGV  1 message id  2 encoded message  3 seconds for which the job may not be sent again, or 0
--       4 state  5... field, value, ...
-- Returns 1 when stored, 0 when the job was sent before within its time. Complexity: O(fields).
if ARGV[3] ~= "0" and not redis.call("SET", KEYS[5], "1", "NX", "EX", ARGV[3]) then
    return 0
end
redis.call("HSET", KEYS[4], ARGV[1], ARGV[2])
redis.call("RPUSH", KEYS[3], ARGV[1])
record(KEYS[1], KEYS[2], ARGV[4], fields_from(5))
return 1
