#!lua flags=allow-oom
-- Remove what was relayed from the outgoing list.
--
-- KEYS  1 outgoing
-- ARGV  1 namespace  2 queue  3 n  4 the element, which was among the first n when it was read: it only moves up
-- Returns 1, or 0 where another relay has removed it. For that the whole list is not searched: it may be long, and the
--         relays of all workers of the queue meet at its head.
-- Complexity: O(n).
if redis.call("LPOS", KEYS[1], ARGV[4], "MAXLEN", ARGV[3]) then
    return redis.call("LREM", KEYS[1], 1, ARGV[4])
end
return 0
