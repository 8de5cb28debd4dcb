-- Take a message out of its holder's hands: finished, dead or to be tried again, with its event, in one step.
--
-- KEYS  1 job (hash)  2 events (stream)  3 held (set)  4 messages (hash)
--       5 where it goes: list of the delay queue, or dead (sorted set)  6 messages of 5 (hash)
-- ARGV  1 message id  2 "done", "dead" or "retry"  3 new message id (retry)  4 encoded message (dead, retry)
--       5 state, or "" to record nothing  6... field, value, ...
-- Returns 1, or 0 where the caller does not hold the message any more: then nothing changes. Complexity: O(fields).
if redis.call("SREM", KEYS[3], ARGV[1]) == 0 then
    return 0
end
redis.call("HDEL", KEYS[4], ARGV[1])
if ARGV[2] == "dead" then
    redis.call("ZADD", KEYS[5], now_ms(), ARGV[1])
    redis.call("HSET", KEYS[6], ARGV[1], ARGV[4])
elseif ARGV[2] == "retry" then
    redis.call("HSET", KEYS[6], ARGV[3], ARGV[4])
    redis.call("RPUSH", KEYS[5], ARGV[3])
end
if ARGV[5] ~= "" then
    record(KEYS[1], KEYS[2], ARGV[5], fields_from(6))
end
return 1
