#!lua
-- Give a job that waits another priority, another time, or both.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 waiters  6 leases  7 once  8 once until  9 once waiting
-- ARGV  1 namespace  2 queue  3 entry  4 priority 0 to 9, or -
--       5 when: ms of a time, or + and the ms from now on, or -. What is not after now may start at once.
-- Returns {"ok", state, priority, ms of the time at which it is due or -1}; {"running"}; {"gone"} where it is not on the
--         queue; {"foreign"} where no header of ours stands before the message.
-- Complexity: O(log N).
local entry = ARGV[3]
local stored = redis.call("HGET", KEYS[3], entry)
if not stored then
    return { "gone" }
elseif redis.call("HEXISTS", KEYS[6], entry) == 1 then
    return { "running" }
end
local created, attempt, _, actor, score, from, key = header_of(stored)
if not created then
    return { "foreign" }
end
local now = now_ms()
local waits_as = key and waiting_as(key, score, entry)
local place = "ready"
local due = tonumber(redis.call("ZSCORE", KEYS[2], entry) or -1)
if due >= 0 then
    place = "delayed"
elseif waits_as and redis.call("ZSCORE", KEYS[9], waits_as) then
    place = "waiting"
end
if ARGV[4] ~= "-" then
    local number = tonumber(score) % 562949953421312
    score = text(ARGV[4] * 562949953421312 + number)
    redis.call("HSET", KEYS[3], entry, (string.gsub(stored, "^%d+", score, 1)))
end
local after = place
if ARGV[5] ~= "-" then
    local given = string.match(ARGV[5], "^%+(%d+)$")
    due = given and now + given or tonumber(ARGV[5])
    -- What waits for its key has been due: it goes on waiting where it is to start now.
    after = due > now and "delayed" or (place == "waiting" and place or "ready")
end
redis.call("ZREM", KEYS[1], entry)
redis.call("ZREM", KEYS[2], entry)
if place == "waiting" then
    redis.call("ZREM", KEYS[9], waits_as)
end
local returned = 0
if after == "ready" then
    redis.call("ZADD", KEYS[1], score, entry)
    returned = 1
elseif after == "delayed" then
    redis.call("ZADD", KEYS[2], text(due), entry)
    if place == "ready" and key then
        -- It may have been the one that would bring back those behind it.
        local once = { ready = KEYS[1], once = KEYS[7], once_until = KEYS[8], once_waiting = KEYS[9] }
        returned = leave(once, { { key = key } })
    end
else
    redis.call("ZADD", KEYS[9], "0", waiting_as(key, score, entry))
end
local state = attempt ~= "1" and "retrying" or (after == "delayed" and "scheduled" or "pending")
state = after == "waiting" and after or state
local priority = text(math.floor(score / 562949953421312))
local event = {
    state = state, type = actor, attempt = text(attempt - 1), created_at = created, priority = priority,
    run_at = after == "delayed" and text(due) or nil,
}
redis.call("XADD", KEYS[4], "*", "kind", "settled", "at", text(now), entry, cjson.encode(event))
if returned > 0 then
    wake(KEYS[5], ARGV[1], ARGV[2], returned)
end
if after == "delayed" then
    wake_for_due(KEYS[5], ARGV[1], ARGV[2], KEYS[2], now)
end
return { "ok", state, priority, after == "delayed" and text(due) or "-1" }
