-- Shared by the scripts; stands at the head of each.
--
-- A message is stored as `SCORE CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR\n`, then the message as Dramatiq encodes it.
-- SCORE is priority * 2^49 + number of the send: so a message that comes back keeps its place for ever.
local GONE = 200 -- workers that are gone, and that one call passes over
local CHUNK = 1000 -- arguments for one command: far below the stack of every server
local LOG_BYTES = 16384 -- of the log of one job's attempts

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

-- What became of one delivery, as a line of its job's log. `failure` is JSON with type and message.
local function attempt_line(stored, lease, now, failure)
    local _, attempt = header_of(stored)
    local started, worker = string.match(lease or "", "^%d+ (%d+) (%S+)")
    local at = (started and #started <= 14) and started or text(now)
    return '{"attempt":' .. (attempt or "1") .. ',"started_at":' .. at .. ',"ended_at":' .. text(now)
        .. ',"worker":' .. cjson.encode(worker or "") .. ',"error":' .. failure .. "}"
end

-- A log with one more line. Of one that has grown too long the first line stays, and the oldest after it go.
local function with_line(log, line)
    log = (log and log ~= "") and (log .. "\n" .. line) or line
    while #log > LOG_BYTES do
        local first = string.find(log, "\n", 1, true)
        local second = first and string.find(log, "\n", first + 1, true)
        if not second then
            break
        end
        log = string.sub(log, 1, first) .. string.sub(log, second + 1)
    end
    return log
end

-- Keep a dead letter: the message with its header, the record (the death as JSON, then the lines of its log), and a note
-- that the death is still to be told.
-- `keys` are dead, dead messages, dead letters and untold.
local function keep_letter(keys, entry, stored, event, log, now)
    redis.call("ZADD", keys[1], text(now), entry)
    redis.call("HSET", keys[2], entry, stored)
    local record = '{"died_at":' .. text(now) .. ',"event":' .. event .. "}"
    redis.call("HSET", keys[3], entry, log and log ~= "" and (record .. "\n" .. log) or record)
    redis.call("ZADD", keys[4], text(now), text(now) .. " " .. entry)
end

-- Wake up to `count` idle workers, each of them once: who is woken is no waiter any more, and who does not listen (it
-- died, or drains) is passed over.
local function wake(waiters, namespace, queue, count)
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
