#!lua flags=no-writes
-- Say who has an idempotency key in a queue, for a job of another queue.
--
-- KEYS  1 once  2 leases  3 deadlines
-- ARGV  1 namespace  2 queue  3 idempotency key
-- Returns "claimed" for a delivery that has its lease; "lapsed" for one whose lease has ended, and which the next fetch of
--         the queue lets go of; the record of who has ended; nothing where the key is free.
-- Complexity: O(1).
local known = redis.call("HGET", KEYS[1], ARGV[3])
local word, number, entry = string.match(known or "", "^(%a+) (%d+) (%S+)")
if word == "claimed" then
    local lease = redis.call("HGET", KEYS[2], entry)
    if not lease or string.match(lease, "^%d+") ~= number then
        return nil
    end
    return tonumber(redis.call("ZSCORE", KEYS[3], entry) or 0) > now_ms() and "claimed" or "lapsed"
end
return word and tonumber(number) > now_ms() and known or nil
