#!lua flags=allow-oom
-- Pause a queue, or let it go on.
--
-- KEYS  1 paused  2 ready  3 waiters
-- ARGV  1 namespace  2 queue  3 JSON of who and why, or nothing to go on
-- Returns 1, or 0 where the queue was so already. Idle workers are woken when it goes on.
-- Complexity: O(log N).
if ARGV[3] ~= "" then
    local noted = '{"at":' .. text(now_ms()) .. "," .. string.sub(ARGV[3], 2)
    return redis.call("SET", KEYS[1], noted, "NX") and 1 or 0
end
if redis.call("DEL", KEYS[1]) == 0 then
    return 0
end
local ready = redis.call("ZCARD", KEYS[2])
if ready > 0 then
    wake(KEYS[3], ARGV[1], ARGV[2], math.min(ready, 64))
end
return 1
