#!lua
-- Put messages on a queue.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 counter  6 waiters  7 full  8 producer
--       9 sent, where ARGV[4] is not 0  10 unique, where the only message has a unique key
-- ARGV  1 namespace  2 queue  3 number of the send  4 seconds for which KEYS[9] refuses a further send, or 0
--       5... for each message `ENTRY PRIORITY DELAY_MS ATTEMPT MAX_DELIVERIES ACTOR[\tKEY]\n` and the message as it is
--       encoded, with - for no delay
--       6 unique key  7 for how many ms it counts after the send, or 0 for as long as the message is here: with KEYS[10]
-- Returns {1} stored; {0} the client's own repetition, stored before; {-1} refused by KEYS[9]; the entry that has the unique
--         key, where that refuses the send. An error, with nothing stored, where the user may not publish, or where
--         too much is not in the database yet (FULL).
-- Complexity: O(n log N) for n messages, n <= 1000, on a queue of N.
if not may_wake(ARGV[1]) then
    local rights = "+publish &" .. ARGV[1] .. ":wake:*"
    return redis.error_reply("NOPERM The user may not call workers to what it sends: it needs the ACL rights " .. rights)
end
-- One command for the look and the note: the newest number of this producer is all that is kept.
if redis.call("SET", KEYS[8], ARGV[3], "EX", 3600, "GET") == ARGV[3] then
    return 0
end
if redis.call("EXISTS", KEYS[7]) == 1 then
    redis.call("DEL", KEYS[8]) -- as for every refusal: its repetition is no repetition of what was stored
    return redis.error_reply("FULL What has happened on this queue is more than can wait for PostgreSQL")
end
local count = #ARGV - 4
if KEYS[10] then
    count = 1
    local entry = string.match(ARGV[5], "^%S+")
    local ends = ARGV[7] ~= "0" and text(now_ms() + ARGV[7]) or "0"
    local owner, until_ms = string.match(redis.call("HGET", KEYS[10], ARGV[6]) or "", "^(%S+) (%d+)$")
    if owner and owner ~= entry and (until_ms == "0" or tonumber(until_ms) > now_ms())
        and redis.call("HEXISTS", KEYS[3], owner) == 1 then
        redis.call("DEL", KEYS[8])
        return owner
    end
    -- Of what this hash has, as much is looked at as comes in, several times over: what nobody has any more goes.
    local some = redis.call("HRANDFIELD", KEYS[10], 4, "WITHVALUES")
    for i = 1, #some, 2 do
        if redis.call("HEXISTS", KEYS[3], string.match(some[i + 1], "^%S*")) == 0 then
            redis.call("HDEL", KEYS[10], some[i])
        end
    end
    redis.call("HSET", KEYS[10], ARGV[6], entry .. " " .. ends)
end
if ARGV[4] ~= "0" and not redis.call("SET", KEYS[9], "1", "NX", "EX", ARGV[4]) then
    redis.call("DEL", KEYS[8]) -- a repetition of what was refused must not be answered as one of what was stored
    return -1
end

local now = now_ms()
local created = text(now)
local last = redis.call("INCRBY", KEYS[5], count)
local ready, delayed, events = {}, {}, { "kind", "sent", "at", created }
for i = 1, count do
    local entry, priority, delay, from, header = string.match(ARGV[4 + i], "^(%S+) (%d) (%S+) ()([^\n]*)")
    local score = text(priority * 562949953421312 + last - count + i)
    local message = score .. " " .. created .. " " .. string.sub(ARGV[4 + i], from)
    if redis.call("HSETNX", KEYS[3], entry, message) == 0 then
        -- A further copy of a message that is still here or in this batch, such as the retry of somebody's middleware.
        entry = entry .. "~" .. text(last - i + 1)
        redis.call("HSET", KEYS[3], entry, message)
    end
    if delay == "-" then
        ready[#ready + 1] = score
        ready[#ready + 1] = entry
    else
        delayed[#delayed + 1] = text(now + delay)
        delayed[#delayed + 1] = entry
    end
    events[#events + 1] = entry
    events[#events + 1] = sent_event(delay .. " " .. created, header, priority, string.sub(ARGV[4 + i], from + #header))
end
call_many("ZADD", KEYS[1], ready)
call_many("ZADD", KEYS[2], delayed)
redis.call("XADD", KEYS[4], "*", unpack(events))
if #ready > 0 then
    wake(KEYS[6], ARGV[1], ARGV[2], math.min(#ready / 2, 64))
end
if #delayed > 0 then
    wake_for_due(KEYS[6], ARGV[1], ARGV[2], KEYS[2], now)
end
return 1
