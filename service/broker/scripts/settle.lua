#!lua flags=allow-oom
-- Take messages out of their holder's hands, each with its event, in one step.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 finals  6 waiters  7 leases  8 deadlines  9 lapses  10 dead
--       11 dead messages  12 outgoing  13 progress  14 checkpoints
-- ARGV  1 namespace  2 queue
--       3... for each message `ENTRY TOKEN OUTCOME EVENT`, EVENT as JSON, and after a line break what the outcome needs:
--         "done"     nothing; EVENT is kept in finals
--         "after"    what this delivery has sent, for outgoing: goes out only where a "done" of it stands before
--         "dead"     the dead letter, or nothing for the message as it is stored; EVENT is kept in finals
--         "retry"    delay in ms, a space, and the encoded message of the next attempt
--         "snooze"   delay in ms, a space, and the encoded message: later, with no attempt counted
--         "release"  nothing: back to its place in ready; a lapse of the worker is not counted
--         "crashed"  nothing: back to its place in ready; counted as a lapse
-- Returns the entries that the caller did not hold with this token any more: of those nothing changed.
-- Complexity: O(n log N + m) for n messages, n <= 200, that have sent m others.
local now = now_ms()
local entries, tokens, outcomes, settled_as = {}, {}, {}, {}
for i = 3, #ARGV do
    entries[i - 2], tokens[i - 2], outcomes[i - 2], settled_as[i - 2] =
        string.match(ARGV[i], "^(%S+) (%d+) (%a+) ([^\n]*)")
end
local leases = redis.call("HMGET", KEYS[7], unpack(entries))
local refused, held, gone = {}, {}, {}
local settled = {} -- what this call has settled: a second outcome of one delivery is refused here too
local events, finals = { "kind", "settled", "at", text(now) }, {}
local returned, delayed = 0, 0
local done, outgoing = {}, {}
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
        done[entry] = outcome == "done" and tokens[i]
        if outcome == "done" or outcome == "dead" then
            gone[#gone + 1] = entry
            finals[#finals + 1] = entry
            finals[#finals + 1] = text(now) .. " " .. event
            events[#events + 1] = entry
            events[#events + 1] = event
        end
        if outcome == "dead" then
            redis.call("ZADD", KEYS[10], text(now), entry)
            local letter = string.match(ARGV[i + 2], "\n(.+)$") or body_of(redis.call("HGET", KEYS[3], entry) or "")
            redis.call("HSET", KEYS[11], entry, letter)
        elseif outcome == "retry" or outcome == "snooze" then
            local delay, message = string.match(ARGV[i + 2], "\n(%d+) (.*)$")
            local created, attempt, most, actor, score = header_of(redis.call("HGET", KEYS[3], entry) or "")
            if score then
                if outcome == "retry" then
                    attempt = text(attempt + 1)
                    redis.call("HDEL", KEYS[9], entry)
                end
                local header = table.concat({ score, created, attempt, most, actor }, " ")
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
            redis.call("ZADD", KEYS[1], score_of(redis.call("HGET", KEYS[3], entry)), entry)
            if outcome == "crashed" then
                redis.call("HINCRBY", KEYS[9], entry, 1)
            end
            events[#events + 1] = entry
            events[#events + 1] = event
            returned = returned + 1
        end
    end
end
if #held > 0 then
    redis.call("HDEL", KEYS[7], unpack(held))
    redis.call("ZREM", KEYS[8], unpack(held))
end
if #gone > 0 then
    redis.call("HDEL", KEYS[3], unpack(gone))
    if redis.call("EXISTS", KEYS[9]) == 1 then
        redis.call("HDEL", KEYS[9], unpack(gone))
    end
    if redis.call("EXISTS", KEYS[13], KEYS[14]) > 0 then
        redis.call("HDEL", KEYS[13], unpack(gone))
        redis.call("HDEL", KEYS[14], unpack(gone))
    end
end
call_many("HSET", KEYS[5], finals)
call_many("RPUSH", KEYS[12], outgoing)
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
