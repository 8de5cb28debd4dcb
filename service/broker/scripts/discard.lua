#!lua flags=allow-oom
-- Remove dead letters.
--
-- KEYS  1 dead  2 dead messages  3 dead letters  4 untold
-- ARGV  1 namespace  2 queue  3... entry, ms of the death that the caller has seen, ...
-- Returns the number of those that were removed: what was replayed meanwhile, or has died again, is not.
-- Complexity: O(n log N) for n letters, n <= 1000.
local removed = 0
for i = 3, #ARGV, 2 do
    local entry, died = ARGV[i], ARGV[i + 1]
    local score = redis.call("ZSCORE", KEYS[1], entry)
    if score and tonumber(score) == tonumber(died) then
        redis.call("ZREM", KEYS[1], entry)
        redis.call("HDEL", KEYS[2], entry)
        redis.call("HDEL", KEYS[3], entry)
        redis.call("ZREM", KEYS[4], died .. " " .. entry)
        removed = removed + 1
    end
end
return removed
