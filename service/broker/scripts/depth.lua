#!lua flags=no-writes
-- Count what a queue has. Reads only.
--
-- KEYS  1 ready  2 delayed  3 messages  4 deadlines  5 once waiting  6 dead
-- Returns {depth, scheduled, running, dead, oldest}: depth is what could start now (ready, due, or waiting for a key),
--         scheduled what is not due yet, oldest for how many ms the one that has waited longest has: since its send, or
--         since it was due; -1 where nothing waits.
-- Complexity: O(log N) for a queue of N.
local now = now_ms()
local due = redis.call("ZCOUNT", KEYS[2], "-inf", text(now))
local oldest = now + 1
local first_due = redis.call("ZRANGE", KEYS[2], 0, 0, "WITHSCORES")
if due > 0 then
    oldest = math.min(oldest, tonumber(first_due[2]))
end
-- Within a priority they are in the order of their sends.
for priority = 0, 9 do
    local from, to = priority * 562949953421312, (priority + 1) * 562949953421312
    local first = redis.call("ZRANGE", KEYS[1], text(from), "(" .. text(to), "BYSCORE", "LIMIT", 0, 1)[1]
    local created = first and header_of(redis.call("HGET", KEYS[3], first) or "")
    if created then
        oldest = math.min(oldest, tonumber(created))
    end
end
return {
    redis.call("ZCARD", KEYS[1]) + due + redis.call("ZCARD", KEYS[5]),
    redis.call("ZCARD", KEYS[2]) - due,
    redis.call("ZCARD", KEYS[4]),
    redis.call("ZCARD", KEYS[6]),
    oldest > now and -1 or now - oldest,
}
