#!lua flags=allow-oom
-- Take messages out of their holder's hands, each with its event, in one step.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 finals  6 waiters  7 leases  8 deadlines  9 lapses  10 dead
--       11 dead messages  12 dead letters  13 untold  14 attempts  15 once  16 once until  17 once waiting  18 outgoing
--       19 progress  20 checkpoints  21 cancels
-- ARGV  1 namespace  2 queue
--       3... for each message `ENTRY TOKEN OUTCOME[:KEEP_MS] EVENT`, EVENT as JSON, for how long "done" or "dead" keeps the
--         key that the delivery holds, and after a line break what the outcome needs:
--         "done"     nothing; EVENT is kept in finals
--         "after"    what this delivery has sent, for outgoing: goes out only where a "done" of it stands before
--         "dead"     FAILURE, a line break, and another encoded message in place of the stored one, or nothing; EVENT is
--                    kept in finals
--         "retry"    FAILURE, a line break, delay in ms, a space, and the encoded message of the next attempt
--         "snooze"   delay in ms, a space, and the encoded message: later, with no attempt counted
--         "release"  nothing: back to its place in ready; a lapse of the worker is not counted
--         "crashed"  FAILURE: back to its place in ready; counted as a lapse
--         "cancelled"  nothing; EVENT is kept in finals. Where the lease is marked as cancelled, every outcome becomes
--                    this one; a "done" keeps its key, since it has taken effect, and nothing that it has sent goes out
--         FAILURE is JSON with type and message, for the log of the job's attempts
-- An error, with nothing changed, where one of them can't be read.
-- Returns the entries that the caller did not hold with this token any more: of those nothing changed.
-- Complexity: O(n log N + m) for n messages, n <= 200, that have sent m others; for those with a key
--             O(n * TOGETHER * log N).
local LETTERS = { KEYS[10], KEYS[11], KEYS[12], KEYS[13] }
-- How each outcome's argument looks behind its first words.
local READS = {
    done = "", release = "", cancelled = "", after = "\n", crashed = "\n", dead = "^[^\n]*\n[^\n]*\n",
    retry = "^[^\n]*\n[^\n]*\n%d+ ", snooze = "^[^\n]*\n%d+ ",
}
local now = now_ms()
local once = { ready = KEYS[1], once = KEYS[15], once_until = KEYS[16], once_waiting = KEYS[17] }
local entries, tokens, outcomes, keeps, settled_as = {}, {}, {}, {}, {}
for i = 3, #ARGV do
    entries[i - 2], tokens[i - 2], outcomes[i - 2], keeps[i - 2], settled_as[i - 2] =
        string.match(ARGV[i], "^(%S+) (%d+) (%a+):?(%d*) ([^\n]*)")
end
-- What has been sent is not looked up: there may be more of it than one command takes.
local settling, at = {}, {}
for i, entry in ipairs(entries) do
    -- Before anything is written: what can't be read must not leave half of a batch behind.
    local needs = READS[outcomes[i]]
    if not needs or not string.find(ARGV[i + 2], needs) then
        return redis.error_reply("ERR The outcome of " .. entry .. " can't be read")
    end
    if outcomes[i] ~= "after" then
        settling[#settling + 1], at[#at + 1] = entry, i
    end
end
local leases = {}
for number, lease in ipairs(redis.call("HMGET", KEYS[7], unpack(settling))) do
    leases[at[number]] = lease
end
local refused, held, gone = {}, {}, {}
local settled = {} -- what this call has settled: a second outcome of one delivery is refused here too
local events, finals = { "kind", "settled", "at", text(now) }, {}
local returned, delayed = 0, 0
local done, outgoing = {}, {}
local left = {}

-- The log of an entry's attempts with this one.
local function log_of(entry, stored, lease, failure)
    return with_line(redis.call("HGET", KEYS[14], entry), attempt_line(stored, lease, now, failure))
end

for i, entry in ipairs(entries) do
    local outcome, event = outcomes[i], settled_as[i]
    if outcome == "after" then
        if done[entry] == tokens[i] then
            outgoing[#outgoing + 1] = string.match(ARGV[i + 2], "\n(.*)$")
        end
    elseif settled[entry] or not leases[i] or string.match(leases[i], "^%d+") ~= tokens[i] then
        refused[#refused + 1] = entry
    else
        settled[entry] = true
        held[#held + 1] = entry
        if is_cancelled(leases[i]) then
            local stored = redis.call("HGET", KEYS[3], entry) or ""
            outcome, event = "cancelled", cancelled_event(stored, leases[i], redis.call("HGET", KEYS[21], entry), now)
            redis.call("HDEL", KEYS[21], entry)
        end
        done[entry] = outcome == "done" and tokens[i]
        if outcome == "done" or outcome == "dead" or outcome == "cancelled" then
            gone[#gone + 1] = entry
            finals[#finals + 1] = entry
            finals[#finals + 1] = text(now) .. " " .. event
            events[#events + 1] = entry
            events[#events + 1] = event
        end
        if outcome == "dead" then
            local failure, letter = string.match(ARGV[i + 2], "^[^\n]*\n([^\n]*)\n(.*)$")
            local stored = redis.call("HGET", KEYS[3], entry) or ""
            local log = log_of(entry, stored, leases[i], failure)
            if letter ~= "" and header_of(stored) then
                stored = string.match(stored, "^[^\n]*\n") .. letter
            end
            keep_letter(LETTERS, entry, stored, event, log, now)
        elseif outcome == "retry" or outcome == "snooze" then
            local rest = outcome == "retry" and "([^\n]*)\n(%d+) (.*)$" or "()(%d+) (.*)$"
            local failure, delay, message = string.match(ARGV[i + 2], "^[^\n]*\n" .. rest)
            local stored = redis.call("HGET", KEYS[3], entry) or ""
            local created, attempt, most, actor, score, _, key = header_of(stored)
            if score then
                if outcome == "retry" then
                    redis.call("HSET", KEYS[14], entry, log_of(entry, stored, leases[i], failure))
                    attempt = text(attempt + 1)
                    redis.call("HDEL", KEYS[9], entry)
                end
                local header = table.concat({ score, created, attempt, most, actor }, " ") .. (key and "\t" .. key or "")
                redis.call("HSET", KEYS[3], entry, header .. "\n" .. message)
                redis.call("ZADD", KEYS[2], text(now + delay), entry)
                delayed = delayed + 1
            else
                redis.call("ZADD", KEYS[1], score_of(false), entry)
                returned = returned + 1
            end
            events[#events + 1] = entry
            events[#events + 1] = event
        elseif outcome == "release" or outcome == "crashed" then
            local stored = redis.call("HGET", KEYS[3], entry)
            redis.call("ZADD", KEYS[1], score_of(stored), entry)
            if outcome == "crashed" then
                local failure = string.match(ARGV[i + 2], "\n(.*)$")
                redis.call("HSET", KEYS[14], entry, log_of(entry, stored or "", leases[i], failure))
                redis.call("HINCRBY", KEYS[9], entry, 1)
            end
            events[#events + 1] = entry
            events[#events + 1] = event
            returned = returned + 1
        end
        if string.find(leases[i], "\t", 1, true) then
            local each = { key = string.match(leases[i], "\t(.+)"), claim = "claimed " .. tokens[i] .. " " .. entry }
            if keeps[i] ~= "" and (outcome ~= "cancelled" or outcomes[i] == "done") then
                each.until_ms = text(now + keeps[i])
                local word = outcomes[i] == "done" and "done" or "failed"
                each.record = table.concat({ word, each.until_ms, job_of(entry), settled_as[i] }, " ")
            end
            left[#left + 1] = each
        end
    end
end
if #left > 0 then
    returned = returned + leave(once, left)
    forget(once, now, 2 * #left) -- so that there are never more than were kept at one time
end
if #held > 0 then
    redis.call("HDEL", KEYS[7], unpack(held))
    redis.call("ZREM", KEYS[8], unpack(held))
end
if #gone > 0 then
    redis.call("HDEL", KEYS[3], unpack(gone))
    if redis.call("EXISTS", KEYS[9], KEYS[14]) > 0 then
        redis.call("HDEL", KEYS[9], unpack(gone))
        redis.call("HDEL", KEYS[14], unpack(gone))
    end
    if redis.call("EXISTS", KEYS[19], KEYS[20]) > 0 then
        redis.call("HDEL", KEYS[19], unpack(gone))
        redis.call("HDEL", KEYS[20], unpack(gone))
    end
end
call_many("HSET", KEYS[5], finals)
call_many("RPUSH", KEYS[18], outgoing)
if #events > 4 then
    redis.call("XADD", KEYS[4], "*", unpack(events))
end
if returned > 0 then
    wake(KEYS[6], ARGV[1], ARGV[2], math.min(returned, 64))
end
if delayed > 0 then
    wake_for_due(KEYS[6], ARGV[1], ARGV[2], KEYS[2], now)
end
return refused
