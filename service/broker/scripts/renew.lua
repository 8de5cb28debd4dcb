#!lua flags=allow-oom
-- Extend leases.
--
-- KEYS  1 leases  2 deadlines
-- ARGV  1 namespace  2 queue  3 lease in ms  4... entry, token, ...
-- Returns {the entries that the caller does not hold with this token any more, those that it holds and that are cancelled}.
-- Complexity: O(n log N) for n leases.
local deadline = text(now_ms() + ARGV[3])
local lost, cancelled = {}, {}
for i = 4, #ARGV, 2 do
    local lease = redis.call("HGET", KEYS[1], ARGV[i])
    if lease and string.match(lease, "^%d+") == ARGV[i + 1] then
        redis.call("ZADD", KEYS[2], "XX", deadline, ARGV[i])
        if is_cancelled(lease) then
            cancelled[#cancelled + 1] = ARGV[i]
        end
    else
        lost[#lost + 1] = ARGV[i]
    end
end
return { lost, cancelled }
