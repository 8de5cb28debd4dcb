#!lua flags=allow-oom
-- Return lapsed and due messages to ready, then lease up to n.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 counter  6 waiters  7 leases  8 deadlines  9 lapses  10 finals
--       11 dead  12 dead messages  13 dead letters  14 untold  15 attempts  16 once  17 once until  18 once waiting
--       19 outgoing  20 progress  21 checkpoints  22 cancels  23 paused
-- ARGV  1 namespace  2 queue  3 n, up to 1000  4 lease in ms  5 worker
--       6 ms for which a worker that gets fewer can be woken, or 0  7 bytes of the longest message that is handed out
-- Returns {now, ms until it is worth asking again, or -1, first token, messages, deaths to tell of, whether there are outgoing
--         ones}. The ms are 0 where all n were there, else those until something comes due or lapses. For each message, the
--         tokens rising: `LENGTH LAPSES ENTRY SCORE CREATED_MS ATTEMPT MAX_DELIVERIES ACTOR[\tKEY]\n`, then LENGTH bytes as
--         encoded. Of a duplicate, LAPSES is `=`, and the bytes are what `once` has for its key, a line
--         break, and JSON with its tenant and parent_id.
--         While the queue is paused nothing is leased, and all else is done as ever.
-- Complexity: O((n + 2 * BOUND) log N).
local FORGET_MS = 3600000 -- an idle worker that has not asked for so long is gone
local BYTES = 33554432 -- of messages in one reply, but for the last piece
local PIECE = 16 -- messages that are read at a time
local DIED = '{"type":"crashed","message":"Its worker died, or was not heard of for a lease"'
local LAPSE = DIED .. "}"
local BOUND = 200 -- lapsed and due messages that one call returns, so that none is long

local now = now_ms()
local namespace, queue, wanted, worker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]

local once = { ready = KEYS[1], once = KEYS[16], once_until = KEYS[17], once_waiting = KEYS[18] }
local returned = 0

local function back_to_ready(entries)
    if #entries == 0 then
        return 0
    end
    local stored = redis.call("HMGET", KEYS[3], unpack(entries))
    local ready = {}
    for i, entry in ipairs(entries) do
        if stored[i] then
            ready[#ready + 1] = score_of(stored[i])
            ready[#ready + 1] = entry
        end
    end
    call_many("ZADD", KEYS[1], ready)
    return #ready / 2
end

local LETTERS = { KEYS[11], KEYS[12], KEYS[13], KEYS[14] }
local made = 0

-- What no worker is to get becomes a dead letter, with its final event, which `events` takes as well.
local function bury(events, entry, stored, kind, why, log)
    local created, attempt, _, actor, score, _, key = header_of(stored)
    local options = kind == "crashed" and options_with(stored, "tenant", "parent_id") or {}
    local event = cjson.encode({
        tenant = text_or_none(options.tenant), parent_id = text_or_none(options.parent_id), key = key,
        priority = score and text(math.floor(score / 562949953421312)),
        state = "dead", reason = kind == "crashed" and kind or "invalid", type = actor or kind, attempt = attempt or "1", created_at = created or text(now),
        error = cjson.encode({ type = kind, traceback = "", message = why }),
    })
    keep_letter(LETTERS, entry, stored, event, log or redis.call("HGET", KEYS[15], entry), now)
    redis.call("HDEL", KEYS[3], entry)
    redis.call("HDEL", KEYS[9], entry)
    redis.call("HDEL", KEYS[15], entry)
    redis.call("HDEL", KEYS[20], entry)
    redis.call("HDEL", KEYS[21], entry)
    made = made + 1
    redis.call("HSET", KEYS[10], entry, text(now) .. " " .. event)
    events[#events + 1] = entry
    events[#events + 1] = event
    if key then
        returned = returned + leave(once, { { key = key } })
    end
end

-- Whoever held it is gone, and it was cancelled meanwhile: it never starts again.
local function end_cancelled(events, entry, stored, lease)
    local event = cancelled_event(stored, lease, redis.call("HGET", KEYS[22], entry), now)
    for _, key in ipairs({ KEYS[3], KEYS[9], KEYS[15], KEYS[20], KEYS[21], KEYS[22] }) do
        redis.call("HDEL", key, entry)
    end
    redis.call("HSET", KEYS[10], entry, text(now) .. " " .. event)
    events[#events + 1] = entry
    events[#events + 1] = event
end

-- Count the lapses that may be the message's own doing: the first, since Redis does not know whether a job has begun in its
-- worker, and of a suspect those in which it had. Who has had its last delivery is a dead letter, before it can start again.
local function without_the_crashed(entries, leases)
    local stored = redis.call("HMGET", KEYS[3], unpack(entries))
    local counts = redis.call("HMGET", KEYS[9], unpack(entries))
    local logs = redis.call("HMGET", KEYS[15], unpack(entries))
    local alive, logged, events = {}, {}, { "kind", "settled", "at", text(now) }
    for i, entry in ipairs(entries) do
        if stored[i] and is_cancelled(leases[i] or "") then
            end_cancelled(events, entry, stored[i], leases[i])
        elseif stored[i] then
            local log = with_line(logs[i], attempt_line(stored[i], leases[i], now, LAPSE))
            local created, attempt, most, actor = header_of(stored[i])
            local lapses = tonumber(counts[i] or 0)
            if (lapses == 0 and most ~= "1") or has_begun(leases[i] or "") then
                lapses = redis.call("HINCRBY", KEYS[9], entry, 1)
            end
            if not most or lapses < tonumber(most) then
                alive[#alive + 1] = entry
                logged[#logged + 1] = entry
                logged[#logged + 1] = log
                if created then
                    events[#events + 1] = entry
                    events[#events + 1] = cjson.encode({
                        state = "pending", type = actor, attempt = attempt, created_at = created,
                        error = DIED .. ',"traceback":""}',
                    })
                end
            else
                bury(events, entry, stored[i], "crashed", "Its worker died in each of " .. lapses .. " deliveries", log)
            end
        end
    end
    call_many("HSET", KEYS[15], logged)
    if #events > 4 then
        redis.call("XADD", KEYS[4], "*", unpack(events))
    end
    return alive
end

-- Whoever holds a key and has lost its lease holds neither.
local function let_go(entries, leases)
    local left = {}
    for i, entry in ipairs(entries) do
        local token, key = string.match(leases[i] or "", "^(%d+)[^\t]*\t(.+)")
        if key then
            left[#left + 1] = { key = key, claim = "claimed " .. token .. " " .. entry }
        end
    end
    if #left > 0 then
        returned = returned + leave(once, left)
    end
end

local lapsed = redis.call("ZRANGE", KEYS[8], "-inf", text(now), "BYSCORE", "LIMIT", 0, BOUND)
if #lapsed > 0 then
    local leases = redis.call("HMGET", KEYS[7], unpack(lapsed))
    redis.call("ZREM", KEYS[8], unpack(lapsed))
    redis.call("HDEL", KEYS[7], unpack(lapsed))
    let_go(lapsed, leases)
    returned = returned + back_to_ready(without_the_crashed(lapsed, leases))
end
local due = redis.call("ZRANGE", KEYS[2], "-inf", text(now), "BYSCORE", "LIMIT", 0, BOUND)
if #due > 0 then
    redis.call("ZREM", KEYS[2], unpack(due))
    returned = returned + back_to_ready(due)
end

-- Take up to `wanted` from ready, and their messages, as long as those are not too much for one reply.
local function take()
    local popped = wanted > 0 and redis.call("ZPOPMIN", KEYS[1], wanted) or {}
    local taken, messages, left, bytes = {}, {}, {}, 0
    for i = 1, #popped, 2 * PIECE do
        local piece = {}
        for k = i, math.min(i + 2 * PIECE, #popped) - 1, 2 do
            if bytes < BYTES then
                piece[#piece + 1] = popped[k]
                taken[#taken + 1] = popped[k]
            else
                left[#left + 1] = popped[k + 1]
                left[#left + 1] = popped[k]
            end
        end
        if #piece > 0 then
            for _, stored in ipairs(redis.call("HMGET", KEYS[3], unpack(piece))) do
                messages[#messages + 1] = stored
                bytes = bytes + #(stored or "")
            end
        end
    end
    call_many("ZADD", KEYS[1], left)
    return taken, messages, #left > 0 or #taken == wanted
end

-- What stands between an entry and its key: nothing, a holder ("claimed"), or the record of who has ended.
local function hindrance(key, entry)
    local known = redis.call("HGET", once.once, key)
    local word, number, owner = string.match(known or "", "^(%a+) (%d+) (%S+)")
    if word == "claimed" then
        local lease = redis.call("HGET", KEYS[7], owner)
        return lease and string.match(lease, "^%d+") == number and word or nil
    elseif word and tonumber(number) > now and (word == "done" or owner ~= job_of(entry)) then
        return known -- a failure is not held against the job itself: whoever sends it again means it
    elseif known then
        redis.call("ZREM", once.once_until, key)
    end
end

-- One look for both, since most queues have neither.
local is_paused, has_outgoing = false, redis.call("EXISTS", KEYS[19], KEYS[23])
if has_outgoing > 0 then
    is_paused = redis.call("EXISTS", KEYS[23]) == 1
    has_outgoing = has_outgoing - (is_paused and 1 or 0)
end
local reply = { text(now), -1, 0, "", 0, has_outgoing }
local taken, messages, is_more = {}, {}, false
if not is_paused then
    taken, messages, is_more = take()
end
if #taken > 0 then
    local lapses = redis.call("EXISTS", KEYS[9]) == 1 and redis.call("HMGET", KEYS[9], unpack(taken)) or {}
    local token = redis.call("INCRBY", KEYS[5], #taken) - #taken
    reply[3] = text(token + 1)
    local longest = tonumber(ARGV[7])
    local buried = { "kind", "settled", "at", text(now) }
    local leases, deadlines, parts, events = {}, {}, {}, { "kind", "started", "at", text(now), "worker", worker }
    local claims, claimed, waiting, waits = {}, {}, {}, { "kind", "waiting", "at", text(now) }
    local records, later = 0, {} -- bytes of the records of keys, and what of them is too much for one reply
    local deadline, holder = text(now + ARGV[4]), " " .. text(now) .. " " .. worker
    for i, entry in ipairs(taken) do
        local stored = messages[i]
        local created, _, _, _, score, from, key = header_of(stored or "")
        local known = key and (claims[key] or hindrance(key, entry))
        if stored and (not created or string.find(entry, "[^!-~]")) then
            bury(buried, entry, stored, "unreadable", "What stands before the message was not written by Callboard")
        elseif stored and #stored > longest then
            local why = "The message has " .. #stored .. " bytes, and a worker takes up to " .. longest
            bury(buried, entry, stored, "too-large", why .. " (CALLBOARD_MAX_MESSAGE_BYTES and room for retries)")
        elseif known == "claimed" then
            waiting[#waiting + 1] = "0"
            waiting[#waiting + 1] = waiting_as(key, score, entry)
            waits[#waits + 1] = entry
            waits[#waits + 1] = "-" .. string.sub(stored, #score + 1, from - 2)
        elseif known and records > BYTES then
            later[#later + 1] = score
            later[#later + 1] = entry
        elseif stored then
            token = token + 1
            leases[#leases + 1] = entry
            leases[#leases + 1] = text(token) .. holder .. (key and "\t" .. key or "")
            deadlines[#deadlines + 1] = deadline
            deadlines[#deadlines + 1] = entry
            events[#events + 1] = entry
            events[#events + 1] = "-" .. string.sub(stored, #score + 1, from - 2)
            if known then
                local options = options_with(stored, "tenant", "parent_id")
                known = known .. "\n" .. cjson.encode({
                    tenant = text_or_none(options.tenant), parent_id = text_or_none(options.parent_id),
                })
                records = records + #known
                parts[#parts + 1] = #known .. " = " .. entry .. " " .. string.sub(stored, 1, from - 1)
                parts[#parts + 1] = known
            else
                if key then
                    claims[key] = "claimed"
                    claimed[#claimed + 1] = key
                    claimed[#claimed + 1] = "claimed " .. text(token) .. " " .. entry
                end
                parts[#parts + 1] = (#stored - from + 1) .. " " .. (lapses[i] or "0") .. " " .. entry .. " "
                parts[#parts + 1] = stored
            end
        end
    end
    reply[4] = table.concat(parts)
    call_many("HSET", KEYS[7], leases)
    call_many("ZADD", KEYS[8], deadlines)
    call_many("HSET", once.once, claimed)
    call_many("ZADD", once.once_waiting, waiting)
    call_many("ZADD", KEYS[1], later)
    is_more = is_more or #later > 0
    if #leases > 0 then
        redis.call("XADD", KEYS[4], "*", unpack(events))
    end
    if #buried > 4 then
        redis.call("XADD", KEYS[4], "*", unpack(buried))
    end
    if #waits > 4 then
        redis.call("XADD", KEYS[4], "*", unpack(waits))
    end
    redis.call("ZREM", KEYS[6], worker)
else
    forget(once, now, BOUND)
end
-- What came back and is more than this worker takes is for others.
if is_paused then
    is_more = false
elseif returned > #taken then
    wake(KEYS[6], namespace, queue, math.min(returned - #taken, 64))
elseif wanted == 0 and redis.call("EXISTS", KEYS[1]) == 1 then
    wake(KEYS[6], namespace, queue, 1) -- the caller was woken, and has no slot
end

local soonest = -1
for _, key in ipairs({ KEYS[2], KEYS[8] }) do
    local first = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
    if first[2] then
        local wait = math.max(tonumber(first[2]) - now, 0)
        if soonest < 0 or wait < soonest then
            soonest = wait
        end
    end
end
if is_more then
    soonest = 0
end
reply[2] = text(soonest)
reply[5] = made
if soonest == 0 or ARGV[6] == "0" then
    wake_for_due(KEYS[6], namespace, queue, KEYS[2], now)
else
    -- Nothing more is ready, and this worker has room: it can be woken, with no further call to say so. By the time at
    -- which it asks by itself: who sleeps longest is woken first.
    local asleep = tonumber(ARGV[6])
    local untold = redis.call("ZRANGE", KEYS[14], 0, 0, "WITHSCORES")
    if untold[2] and tonumber(untold[2]) <= now then
        reply[5] = made + 1 -- who made it may have died before it told
    end
    redis.call("ZREMRANGEBYSCORE", KEYS[6], "-inf", text(now - FORGET_MS))
    redis.call("ZADD", KEYS[6], text(now + (soonest < 0 and asleep or math.min(soonest, asleep))), worker)
end
return reply
