#!lua
-- Bring jobs back that were lost, each from what the database knows of it: to its queue, or to the dead letters.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 finals  6 waiters  7 counter  8 leases  9 deadlines  10 dead
--       11 dead messages  12 dead letters  13 unique  14 restored
-- ARGV  1 namespace  2 queue  3 ms: a time after all that the database knows of these jobs
--       4... for each job `KIND ENTRY SEQUENCE RANK PRIORITY AT CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR[\tKEY]\n`, a line with
--         `UNTIL_MS[ ended]\tUNIQUE_KEY` or nothing, a line with EVENT as JSON, and the message as it is encoded. KIND is "job" or
--         "dead"; AT the ms at which it is due, or -, or the ms of its death; SEQUENCE the newest event that is stored of
--         it; RANK its place among those of its priority
-- Returns for each job 1 brought back; 0 it is here, or its end is; -1 it was brought back before as the database knows it:
--         what it has done since is on its way there, or was lost with it.
-- Complexity: O(n log N) for n jobs, n <= 500.
local now = now_ms()
-- Tokens of leases count on from the counter, and a worker may still hold one of before: no number may come again.
if tonumber(redis.call("GET", KEYS[7]) or 0) < now * 100 then
    redis.call("SET", KEYS[7], text(now * 100))
end
local replies, returned, delayed = {}, 0, 0
local events = { "kind", "settled", "at", text(now) }

-- Of two numbers with more digits than a number of Lua has.
local function is_newer(one, other)
    return #one > #other or (#one == #other and one > other)
end

local function is_here(entry)
    return redis.call("HEXISTS", KEYS[3], entry) + redis.call("HEXISTS", KEYS[5], entry)
        + redis.call("HEXISTS", KEYS[11], entry) > 0
end

local function back_on_queue(entry, score, at, event)
    local deadline = redis.call("HEXISTS", KEYS[8], entry) == 1 and redis.call("ZSCORE", KEYS[9], entry)
    if deadline and tonumber(deadline) > now then
        return -- its worker has it still, and settles it
    end
    redis.call("HDEL", KEYS[8], entry)
    redis.call("ZREM", KEYS[9], entry)
    redis.call("ZREM", KEYS[1], entry)
    redis.call("ZREM", KEYS[2], entry)
    if at ~= "-" and tonumber(at) > now then
        redis.call("ZADD", KEYS[2], at, entry)
        delayed = delayed + 1
    else
        redis.call("ZADD", KEYS[1], score, entry)
        returned = returned + 1
    end
    events[#events + 1] = entry
    events[#events + 1] = event
end

local function take_unique(entry, line)
    local ends, key = string.match(line, "^(%d+ ?%a*)\t(.+)$")
    local owner, until_ms, counts = string.match(key and redis.call("HGET", KEYS[13], key) or "", "^(%S+) (%d+) ?(%a*)$")
    local is_taken = owner and (redis.call("HEXISTS", KEYS[3], owner) == 1
        or (counts == "ended" and tonumber(until_ms) > now))
    if key and not is_taken then
        redis.call("HSET", KEYS[13], key, entry .. " " .. ends)
    end
end

for i = 4, #ARGV do
    local kind, entry, sequence, rank, priority, at, from =
        string.match(ARGV[i], "^(%a+) (%S+) (%d+) (%d+) (%d) (%S+) ()")
    local header, unique, event, message = string.match(ARGV[i], "^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$", from)
    local before = redis.call("HGET", KEYS[14], entry)
    if is_here(entry) then
        replies[#replies + 1] = 0
    elseif before and not is_newer(sequence, before) then
        replies[#replies + 1] = -1
    else
        local score = text(priority * 562949953421312 + rank)
        local stored = score .. " " .. header .. "\n" .. message
        redis.call("HSET", KEYS[14], entry, sequence)
        if kind == "dead" then
            -- Without a note that it is to be told of: that was done.
            redis.call("ZADD", KEYS[10], at, entry)
            redis.call("HSET", KEYS[11], entry, stored)
            redis.call("HSET", KEYS[12], entry, '{"died_at":' .. at .. ',"event":' .. event .. "}")
        else
            redis.call("HSET", KEYS[3], entry, stored)
            take_unique(entry, unique)
            back_on_queue(entry, score, at, event)
        end
        replies[#replies + 1] = 1
    end
end
redis.call("EXPIRE", KEYS[14], 86400)
if #events > 4 then
    -- Where this server's clock is behind that of the one before, its events would pass for older ones.
    local floor = tonumber(ARGV[3])
    local reply = floor >= now and redis.pcall("XADD", KEYS[4], text(floor + 1) .. "-0", unpack(events))
    if not reply or type(reply) == "table" then
        redis.call("XADD", KEYS[4], "*", unpack(events))
    end
end
if returned > 0 then
    wake(KEYS[6], ARGV[1], ARGV[2], math.min(returned, 64))
end
if delayed > 0 then
    wake_for_due(KEYS[6], ARGV[1], ARGV[2], KEYS[2], now)
end
return replies
