#!lua flags=allow-oom
-- Take deaths to tell of: for a while nobody else gets them.
--
-- KEYS  1 untold
-- ARGV  1 namespace  2 queue  3 n, up to 1000  4 ms for which they are taken
-- Returns up to n deaths, `died_ms entry`.
-- Complexity: O(n log N).
local now = now_ms()
local deaths = redis.call("ZRANGE", KEYS[1], "-inf", text(now), "BYSCORE", "LIMIT", 0, ARGV[3])
local until_then = {}
for _, death in ipairs(deaths) do
    until_then[#until_then + 1] = text(now + ARGV[4])
    until_then[#until_then + 1] = death
end
call_many("ZADD", KEYS[1], until_then)
return deaths
