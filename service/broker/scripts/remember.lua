#!lua
-- Keep idempotency keys taken that were lost, each with how its job has ended.
--
-- KEYS  1 once  2 once until
-- ARGV  1 namespace  2 queue  3... key, ms until which it is taken, record as in common.lua, ...
-- Returns the number of those that were kept: a key that is taken now stays as it is.
-- Complexity: O(n log N) for n keys, n <= 500.
local kept = 0
for i = 3, #ARGV, 3 do
    if redis.call("HSETNX", KEYS[1], ARGV[i], ARGV[i + 2]) == 1 then
        redis.call("ZADD", KEYS[2], ARGV[i + 1], ARGV[i])
        kept = kept + 1
    end
end
return kept
