#!lua
-- Put a dead letter back on its queue, for a new life with no attempt behind it: to its old place, under its old id.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 finals  6 waiters  7 lapses  8 dead  9 dead messages  10 dead letters
--       11 untold  12 attempts  13 request  14 unique
-- ARGV  1 namespace  2 queue  3 entry  4 ms of the death that the caller has seen  5 delay in ms, or -
--       6 JSON of who and why, for the log of the job's attempts  7 the encoded message
--       8 its unique key, or nothing  9 for how many ms it counts from now on, or 0 for as long as the job is here
--       10 " ended" where it counts after the end too, or nothing
--       11 the idempotency key in place of its own, empty for none; absent where it keeps its own
-- Returns the entry that has the unique key, where another one has it: then nothing is changed; else 1 done; 0 done before
--         by this request; -1 there is no such dead letter any more; -2 the job is on its queue, since it was sent again;
--         -3 what stands before the message was not written by Callboard.
-- Complexity: O(log N).
local entry = ARGV[3]
if redis.call("SISMEMBER", KEYS[13], entry) == 1 then
    return 0
end
local stored = redis.call("HGET", KEYS[9], entry)
if not stored or tonumber(redis.call("ZSCORE", KEYS[8], entry)) ~= tonumber(ARGV[4]) then
    return -1
end
local created, _, most, actor, score, _, key = header_of(stored)
if not created then
    return -3
end
if ARGV[11] then
    key = ARGV[11] ~= "" and ARGV[11] or nil
end
local now = now_ms()
if ARGV[8] ~= "" then
    local owner, until_ms, counts = string.match(redis.call("HGET", KEYS[14], ARGV[8]) or "", "^(%S+) (%d+) ?(%a*)$")
    if owner and owner ~= entry and (until_ms == "0" or tonumber(until_ms) > now)
        and (counts == "ended" or redis.call("HEXISTS", KEYS[3], owner) == 1) then
        return owner
    end
end
local header = table.concat({ created, "1", most, actor }, " ") .. (key and "\t" .. key or "")
if redis.call("HSETNX", KEYS[3], entry, score .. " " .. header .. "\n" .. ARGV[7]) == 0 then
    return -2
end
if ARGV[8] ~= "" then
    redis.call("HSET", KEYS[14], ARGV[8], entry .. " " .. (ARGV[9] ~= "0" and text(now + ARGV[9]) or "0") .. ARGV[10])
end
local log = string.match(redis.call("HGET", KEYS[10], entry) or "", "\n(.*)$")
local replayed = '{"replayed_at":' .. text(now) .. "," .. string.sub(ARGV[6], 2)
redis.call("HSET", KEYS[12], entry, with_line(log, replayed))
redis.call("ZREM", KEYS[8], entry)
redis.call("HDEL", KEYS[9], entry)
redis.call("HDEL", KEYS[10], entry)
redis.call("ZREM", KEYS[11], ARGV[4] .. " " .. entry)
redis.call("HDEL", KEYS[5], entry)
redis.call("HDEL", KEYS[7], entry)
redis.call("SADD", KEYS[13], entry)
redis.call("EXPIRE", KEYS[13], 86400)
local priority = text(math.floor(score / 562949953421312))
local event = sent_event(ARGV[5], header, priority, "\n" .. ARGV[7])
redis.call("XADD", KEYS[4], "*", "kind", "replayed", "at", text(now), entry, event)
if ARGV[5] == "-" then
    redis.call("ZADD", KEYS[1], score, entry)
    wake(KEYS[6], ARGV[1], ARGV[2], 1)
else
    redis.call("ZADD", KEYS[2], text(now + ARGV[5]), entry)
    wake_for_due(KEYS[6], ARGV[1], ARGV[2], KEYS[2], now)
end
return 1
