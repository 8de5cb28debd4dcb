-- Shared by the scripts; stands at the head of each.
--
-- A message is stored as `SCORE CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR[\tKEY]\n`, then the message as Dramatiq encodes
-- it. SCORE is priority * 2^49 + number of the send: so a message that comes back keeps its place for ever. A lease is
-- `TOKEN STARTED_MS WORKER[ begun][\tKEY]`.
--
-- KEY is an idempotency key. While it is taken, the hash `once` has for it one of
--   claimed TOKEN ENTRY             the delivery that holds it, as long as that has the lease
--   done UNTIL_MS JOB_ID EVENT      it has succeeded: its final event
--   failed UNTIL_MS JOB_ID EVENT    it has failed, where that is remembered
-- `once_until` has the last two by UNTIL_MS. `once_waiting` has the entries that met a claim, as `KEY\tSCORE\tENTRY` with
-- all scores 0: so by its text, those of one key stand together in the order in which they would start. While a key has
-- waiting entries, one of its entries is in ready or leased, and brings the next ones back when it goes.
local TOGETHER = 10 -- entries of one key that come back at a time, to end as duplicates
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

-- Created, attempt, most deliveries, actor, score, where the message begins, and the key if there is one; or nil where no
-- header of ours stands before it: anybody can write to the server. The digits are as many as what reads them can hold.
local function header_of(stored)
    local score, created, attempt, most, actor, from = string.match(stored, "^(%d+) (%d+) (%d+) (%d+) ([^%c]*)()")
    if score and #score <= 16 and #created <= 14 and #attempt <= 9 and #most <= 9 then
        local divider = string.byte(stored, from)
        if divider == 10 then
            return created, attempt, most, actor, score, from + 1
        elseif divider == 9 then
            local key, behind = string.match(stored, "^([^%c]+)\n()", from + 1)
            if key then
                return created, attempt, most, actor, score, behind, key
            end
        end
    end
end

-- Whether a suspect has begun under this lease.
local function has_begun(lease)
    return string.find(lease, "^%d+ %d+ %S+ begun") ~= nil
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

-- An entry is named by its job, and a further copy of it by `JOB_ID~NUMBER`.
local function job_of(entry)
    return string.match(entry, "^[^~]*")
end

-- The event of a send: see events.py. What stands before it and `header` ends with the actor, or with a tab and its key;
-- `rest` is a line break and the message.
local function sent_event(before, header, priority, rest)
    local divider = string.find(header, "\t", 1, true) and "\t" or "\t\t"
    return before .. " " .. header .. divider .. priority .. rest
end

-- What an entry is called among those that wait for its key.
local function waiting_as(key, score, entry)
    return key .. "\t" .. string.rep("0", 16 - #score) .. score .. "\t" .. entry
end

-- Entries with keys have ended or go back: `left` has for each its key, and where its delivery holds that the claim, and
-- what is kept in its place until when. Where nothing is, the key is free again. What waited comes back to its place in
-- ready: one, who takes the key, or some of those who are duplicates now. Returns how many.
local function leave(keys, left)
    local names, stored, over, gone, now_is = {}, {}, {}, {}, {}
    for i, each in ipairs(left) do
        names[i] = each.key
    end
    for i, known in ipairs(redis.call("HMGET", keys.once, unpack(names))) do
        local each = left[i]
        if known and known == each.claim then
            known = each.record or false
            if known then
                stored[#stored + 1] = each.key
                stored[#stored + 1] = known
                over[#over + 1] = each.until_ms
                over[#over + 1] = each.key
            else
                gone[#gone + 1] = each.key
            end
            now_is[each.key] = known
        elseif now_is[each.key] == nil then
            now_is[each.key] = known
        end
    end
    call_many("HSET", keys.once, stored)
    call_many("ZADD", keys.once_until, over)
    call_many("HDEL", keys.once, gone)
    if redis.call("EXISTS", keys.once_waiting) == 0 then
        return 0
    end
    local returned = 0
    for key, known in pairs(now_is) do
        if not (known and string.find(known, "^claimed ")) then -- else its holder brings them back
            local waiting = redis.call("ZRANGE", keys.once_waiting, "[" .. key .. "\t", "(" .. key .. "\n", "BYLEX",
                "LIMIT", 0, known and TOGETHER or 1)
            if #waiting > 0 then
                local ready = {}
                for _, name in ipairs(waiting) do
                    ready[#ready + 1] = string.sub(name, #key + 2, #key + 17)
                    ready[#ready + 1] = string.sub(name, #key + 19)
                end
                redis.call("ZREM", keys.once_waiting, unpack(waiting))
                redis.call("ZADD", keys.ready, unpack(ready))
                returned = returned + #waiting
            end
        end
    end
    return returned
end

-- Forget up to `count` keys whose time is over.
local function forget(keys, now, count)
    local over = redis.call("ZRANGE", keys.once_until, "-inf", text(now), "BYSCORE", "LIMIT", 0, count)
    if #over > 0 then
        redis.call("ZREM", keys.once_until, unpack(over))
        redis.call("HDEL", keys.once, unpack(over))
    end
end
