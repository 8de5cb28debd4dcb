#!lua flags=allow-oom
-- Remove dead letters, and tell of that.
--
-- KEYS  1 dead  2 dead messages  3 dead letters  4 untold  5 events
-- ARGV  1 namespace  2 queue  3 JSON of who and why  4... entry, ms of the death that the caller has seen, ...
-- Returns the number of those that were removed: what was replayed meanwhile, or has died again, is not.
-- Complexity: O(n log N) for n letters, n <= 1000.
local removed, events = 0, { "kind", "deleted", "at", text(now_ms()) }
for i = 4, #ARGV, 2 do
    local entry, died = ARGV[i], ARGV[i + 1]
    local score = redis.call("ZSCORE", KEYS[1], entry)
    if score and tonumber(score) == tonumber(died) then
        local created, attempt = header_of(redis.call("HGET", KEYS[2], entry) or "")
        if created then
            events[#events + 1] = entry
            events[#events + 1] = created .. " " .. attempt .. " " .. ARGV[3]
        end
        redis.call("ZREM", KEYS[1], entry)
        redis.call("HDEL", KEYS[2], entry)
        redis.call("HDEL", KEYS[3], entry)
        redis.call("ZREM", KEYS[4], died .. " " .. entry)
        removed = removed + 1
    end
end
if #events > 4 then
    redis.call("XADD", KEYS[5], "*", unpack(events))
end
return removed
