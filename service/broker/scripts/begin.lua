#!lua flags=allow-oom
-- Note that a suspect begins: from here on the death of its worker may be its doing.
--
-- KEYS  1 leases
-- ARGV  1 namespace  2 queue  3 entry  4 token
-- Returns 1, or 0 where the caller does not hold the entry with this token any more, or the job is cancelled.
-- Complexity: O(1).
local lease = redis.call("HGET", KEYS[1], ARGV[3])
if not lease or string.match(lease, "^%d+") ~= ARGV[4] or is_cancelled(lease) then
    return 0
end
if not has_begun(lease) then
    redis.call("HSET", KEYS[1], ARGV[3], (string.gsub(lease, "^%d+ %d+ %S+", "%0 begun")))
end
return 1
