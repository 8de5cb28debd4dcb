#!lua flags=allow-oom
-- Cancel a job: at once where it waits, or by a mark on its lease, which its worker is told of.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 finals  6 waiters  7 leases  8 deadlines  9 lapses  10 attempts
--       11 once  12 once until  13 once waiting  14 progress  15 checkpoints  16 unique  17 cancels
-- ARGV  1 namespace  2 queue  3 entry  4 JSON of the error: type, message, traceback
-- Returns "cancelled" or "running"; else nothing is changed, and it is the final event, `MS JSON`, or nothing. What is
--         marked already keeps its mark, and its worker is told once more.
-- Complexity: O(log N).
local entry = ARGV[3]
local stored = redis.call("HGET", KEYS[3], entry)
if not stored then
    return redis.call("HGET", KEYS[5], entry)
end
local now = now_ms()
local lease = redis.call("HGET", KEYS[7], entry)
local until_ms = lease and tonumber(redis.call("ZSCORE", KEYS[8], entry) or 0)
if lease and until_ms > now then
    if not is_cancelled(lease) then
        redis.call("HSET", KEYS[7], entry, (string.gsub(lease, "^[^\t]+", "%0 cancelled")))
        redis.call("HSET", KEYS[17], entry, ARGV[4])
    end
    if may_wake(ARGV[1]) then -- else it finds the mark by itself
        local token, worker = string.match(lease, "^(%d+) %d+ ([^%s]+)")
        redis.call("PUBLISH", ARGV[1] .. ":wake:" .. worker, "cancel " .. ARGV[2] .. " " .. token .. " " .. entry)
    end
    return "running"
end
local keys = {
    ready = KEYS[1], delayed = KEYS[2], messages = KEYS[3], lapses = KEYS[9], attempts = KEYS[10], once = KEYS[11],
    once_until = KEYS[12], once_waiting = KEYS[13], progress = KEYS[14], checkpoints = KEYS[15], unique = KEYS[16],
}
local claim
if lease then
    -- It has lapsed, and no worker has asked since: whoever held it may be gone, and nobody may come.
    local token = string.match(lease, "^%d+")
    claim = "claimed " .. token .. " " .. entry
    redis.call("HDEL", KEYS[7], entry)
    redis.call("ZREM", KEYS[8], entry)
end
local event = cancelled_event(stored, lease, redis.call("HGET", KEYS[17], entry) or ARGV[4], now)
redis.call("HDEL", KEYS[17], entry)
local key = take_out(keys, entry, stored)
local returned = key and leave(keys, { { key = key, claim = claim } }) or 0
redis.call("HSET", KEYS[5], entry, text(now) .. " " .. event)
redis.call("XADD", KEYS[4], "*", "kind", "settled", "at", text(now), entry, event)
if returned > 0 then
    wake(KEYS[6], ARGV[1], ARGV[2], returned)
end
return "cancelled"
