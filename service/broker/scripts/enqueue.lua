#!lua
-- Put messages on a queue.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 counter  6 waiters  7 full  8 producer  9 sent, where ARGV[4] is not 0
--       where the only message has a unique key: 10 unique  11 leases  12 finals  13 once  14 once until
--       15 once waiting  16 lapses  17 attempts  18 progress  19 checkpoints; then KEYS[9] is not for use where ARGV[4] is 0
-- ARGV  1 namespace  2 queue  3 number of the send  4 seconds for which KEYS[9] refuses a further send, or 0
--       5... for each message `ENTRY PRIORITY DELAY_MS ATTEMPT MAX_DELIVERIES ACTOR[\tKEY]\n` and the message as it is
--       encoded, with - for no delay
--       with KEYS[10]: 6 unique key  7 for how many ms it counts after the send, or 0 for as long as the message is here
--       8 what becomes of a waiting job that has it: keep, replace, or reschedule  9 the states in which a job has it, of
--       waiting, running and ended, which needs ms
-- Returns 1 stored; 0 the client's own repetition, stored before; -1 refused by KEYS[9]; the entry that has the unique
--         key, where that refuses the send; {"replaced", the entry whose place it has taken}; {"rescheduled", the entry that
--         is due when this was to be, and this is not stored}. An error, with nothing stored, where the user may not publish,
--         or where too much is not in the database yet (FULL).
-- Complexity: O(n log N) for n messages, n <= 1000, on a queue of N.
if not may_wake(ARGV[1]) then
    local rights = "+publish &" .. ARGV[1] .. ":wake:*"
    return redis.error_reply("NOPERM The user may not call workers to what it sends: it needs the ACL rights " .. rights)
end
-- One command for the look and the note: the newest number of this producer is all that is kept.
local is_repeated = redis.call("SET", KEYS[8], ARGV[3], "EX", 3600, "GET") == ARGV[3]
if is_repeated and not (KEYS[10] and ARGV[8] == "reschedule") then
    return 0
end
if not is_repeated and redis.call("EXISTS", KEYS[7]) == 1 then
    redis.call("DEL", KEYS[8]) -- as for every refusal: its repetition is no repetition of what was stored
    return redis.error_reply("FULL What has happened on this queue is more than can wait for PostgreSQL")
end
local count = #ARGV - 4
local place, replaced -- where what this send replaces has stood, and its entry
if KEYS[10] then
    count = 1
    local now = now_ms()
    local entry, priority, delay = string.match(ARGV[5], "^(%S+) (%d) (%S+)")
    local owner, until_ms, counts = string.match(redis.call("HGET", KEYS[10], ARGV[6]) or "", "^(%S+) (%d+) ?(%a*)")
    if is_repeated then
        return owner and owner ~= entry and { "rescheduled", owner } or 0
    end
    if ARGV[4] ~= "0" and redis.call("EXISTS", KEYS[9]) == 1 then
        redis.call("DEL", KEYS[8])
        return -1
    end
    local stored, state = false, nil
    if owner and owner ~= entry and (until_ms == "0" or tonumber(until_ms) > now) then
        stored = redis.call("HGET", KEYS[3], owner)
        if stored then
            state = redis.call("HEXISTS", KEYS[11], owner) == 1 and "running" or "waiting"
        elseif counts == "ended" then
            state = counts -- else it had the key as long as it was here, whatever this send says of itself
        end
    end
    local is_met = state and string.find(ARGV[9], state, 1, true)
    if is_met and (ARGV[8] == "keep" or state ~= "waiting") then
        redis.call("DEL", KEYS[8])
        return owner
    elseif is_met then
        local created, attempt, _, actor, score, _, own = header_of(stored)
        local keys = {
            ready = KEYS[1], delayed = KEYS[2], messages = KEYS[3], unique = KEYS[10], once = KEYS[13],
            once_until = KEYS[14], once_waiting = KEYS[15], lapses = KEYS[16], attempts = KEYS[17], progress = KEYS[18],
            checkpoints = KEYS[19],
        }
        local key -- of which others may wait behind this entry
        local event
        if ARGV[8] == "replace" then
            local why = "A later send with its unique key has taken its place: job " .. entry
            local error = cjson.encode({ type = "Replaced", message = why, traceback = "" })
            event = cancelled_event(stored, nil, error, now)
            key = take_out(keys, owner, stored)
            redis.call("HSET", KEYS[12], owner, text(now) .. " " .. event)
            place = score and math.floor(score / 562949953421312) == tonumber(priority) and score
            replaced = owner
        else
            redis.call("ZREM", KEYS[1], owner)
            redis.call("ZREM", KEYS[2], owner)
            local has_waited = own and redis.call("ZREM", KEYS[15], waiting_as(own, score, owner)) == 1
            key = not has_waited and own or nil
            if delay == "-" then
                redis.call("ZADD", KEYS[1], score or "0", owner)
                wake(KEYS[6], ARGV[1], ARGV[2], 1)
            else
                redis.call("ZADD", KEYS[2], text(now + delay), owner)
                wake_for_due(KEYS[6], ARGV[1], ARGV[2], KEYS[2], now)
            end
            event = cjson.encode({
                state = attempt ~= "1" and "retrying" or (delay == "-" and "pending" or "scheduled"),
                type = actor or "unreadable", attempt = text((attempt or 1) - 1), created_at = created or text(now),
                run_at = delay ~= "-" and text(now + delay) or nil,
            })
        end
        redis.call("XADD", KEYS[4], "*", "kind", "settled", "at", text(now), owner, event)
        -- It may have been the one that would bring back those behind it.
        if key and leave(keys, { { key = key } }) > 0 then
            wake(KEYS[6], ARGV[1], ARGV[2], 1)
        end
        if not replaced then
            if ARGV[4] ~= "0" then
                redis.call("SET", KEYS[9], "1", "EX", ARGV[4])
            end
            return { "rescheduled", owner }
        end
    end
    -- Of what this hash has, as much is looked at as comes in, several times over: what nobody has any more goes.
    local some = redis.call("HRANDFIELD", KEYS[10], 4, "WITHVALUES")
    for i = 1, #some, 2 do
        local one, ends, counts = string.match(some[i + 1], "^(%S*) ?(%d*) ?(%a*)")
        local is_counted = counts == "ended" and ends ~= "" and tonumber(ends) > now
        if not is_counted and redis.call("HEXISTS", KEYS[3], one) == 0 then
            redis.call("HDEL", KEYS[10], some[i])
        end
    end
    local ends = ARGV[7] ~= "0" and text(now + ARGV[7]) or "0"
    local counts = string.find(ARGV[9], "ended", 1, true) and " ended" or ""
    redis.call("HSET", KEYS[10], ARGV[6], entry .. " " .. ends .. counts)
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
    local score = place or text(priority * 562949953421312 + last - count + i)
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
return replaced and { "replaced", replaced } or 1
