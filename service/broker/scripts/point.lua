#!lua flags=allow-oom
-- Say in which queue an idempotency key counts that is one for all queues.
--
-- KEYS  1 pointer: `QUEUE TOKEN`, of the delivery that has set it
-- ARGV  1 namespace  2 queue  3 token of the delivery, which holds the key in its queue  4 ms for which this is kept
--       5 the pointer whose place it may take, or nothing
-- Returns nothing where the key counts in this queue now; else the pointer, which is left as it is.
-- Complexity: O(1).
local known = redis.call("GET", KEYS[1])
-- A pointer to this queue is no hindrance: the delivery holds the key here, so who has set that does not any more.
if known and known ~= ARGV[5] and string.match(known, "^%S+") ~= ARGV[2] then
    return known
end
redis.call("SET", KEYS[1], ARGV[2] .. " " .. ARGV[3], "PX", ARGV[4])
return nil
