-- Shared by the scripts; stands at the head of each.
--
-- A message is stored as `SCORE CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR\n`, then the message as Dramatiq encodes it.
-- SCORE is priority * 2^49 + number of the send: so a message that comes back keeps its place for ever.
local GONE = 200 -- workers that are gone, and that one call passes over
local CHUNK = 1000 -- arguments for one command: far below the stack of every server

local function now_ms()
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function text(number)
    return string.format("%.0f", number)
end

-- call("HSET", key, {field, value, ...}) with any number of arguments; `step` keeps pairs together.
local function call_many(command, key, arguments, from)
    for i = from or 1, #arguments, CHUNK do
        redis.call(command, key, unpack(arguments, i, math.min(i + CHUNK - 1, #arguments)))
    end
end

-- Created, attempt, most deliveries, actor, score, and where the message begins; or nil where no header of ours stands
-- before it: anybody can write to the server. The digits are as many as what reads them can hold.
local function header_of(stored)
    local score, created, attempt, most, actor, from =
        string.match(stored, "^(%d+) (%d+) (%d+) (%d+) ([^%c]*)\n()")
    if score and #score <= 16 and #created <= 14 and #attempt <= 9 and #most <= 9 then
        return created, attempt, most, actor, score, from
    end
end

-- What has no header of ours, or is not there at all, goes to the head of ready: the next fetch makes an end of it.
local function score_of(stored)
    local _, _, _, _, score = header_of(stored or "")
    return score or "0"
end

-- The message as Dramatiq encodes it; all of it where no header stands before it.
local function body_of(stored)
    return header_of(stored) and string.match(stored, "\n(.*)$") or stored
end

-- Whether this user may call workers: asked before, since an error of PUBLISH would end a script that has written.
local function may_wake(namespace)
    return not redis.acl_check_cmd or redis.acl_check_cmd("PUBLISH", namespace .. ":wake:", "")
end

-- Wake up to `count` idle workers, each of them once: who is woken is no waiter any more, and who does not listen (it
-- died, or drains) is passed over.
local function wake(waiters, namespace, queue, count)
    if not may_wake(namespace) then
        return -- they ask by themselves in time
    end
    local woken = 0
    for _ = 1, count + GONE do
        local waiter = woken < count and redis.call("ZPOPMAX", waiters)[1]
        if not waiter then
            return
        end
        woken = woken + redis.call("PUBLISH", namespace .. ":wake:" .. waiter, queue)
    end
end

-- Idle workers sleep until something comes due: one of them must ask by itself by then. Who was told of it may be busy.
local function wake_for_due(waiters, namespace, queue, delayed, now)
    local first = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
    if first[2] and not redis.call("ZRANGE", waiters, text(now), first[2], "BYSCORE", "LIMIT", 0, 1)[1] then
        wake(waiters, namespace, queue, 1)
    end
end
