#!lua flags=allow-oom
-- Take out of a queue what waits in it: one step of a walk through its messages.
--
-- KEYS  1 ready  2 delayed  3 messages  4 events  5 finals  6 waiters  7 leases  8 lapses  9 attempts  10 once
--       11 once until  12 once waiting  13 progress  14 checkpoints  15 unique  16 dead  17 dead messages
--       18 dead letters  19 untold
-- ARGV  1 namespace  2 queue  3 cursor, 0 at first  4 the number of the last send that is meant  5 JSON of the error
--       6 `cancelled`, or `dead` to keep them as dead letters  7 the error as the log of the attempts has it
-- Returns {next cursor, 0 where all was seen; how many were taken out}. What is held is left to its worker.
-- Complexity: O(STEP log N).
local STEP = 100

local now = now_ms()
local letters = { KEYS[16], KEYS[17], KEYS[18], KEYS[19] }
local keys = {
    ready = KEYS[1], delayed = KEYS[2], messages = KEYS[3], lapses = KEYS[8], attempts = KEYS[9], once = KEYS[10],
    once_until = KEYS[11], once_waiting = KEYS[12], progress = KEYS[13], checkpoints = KEYS[14], unique = KEYS[15],
}
local seen = redis.call("HSCAN", KEYS[3], ARGV[3], "COUNT", STEP)
local found, taken, left = seen[2], 0, {}
local events, finals = { "kind", "settled", "at", text(now) }, {}
for i = 1, #found, 2 do
    local entry, stored = found[i], found[i + 1]
    local number = tonumber(score_of(stored)) % 562949953421312
    if number <= tonumber(ARGV[4]) and redis.call("HEXISTS", KEYS[7], entry) == 0 then
        local event = cancelled_event(stored, nil, ARGV[5], now)
        if ARGV[6] == "dead" then
            local dead = cjson.decode(event)
            dead.state, dead.reason = "dead", "cancelled-by-operator"
            event = cjson.encode(dead)
            local log = with_line(redis.call("HGET", KEYS[9], entry), attempt_line(stored, nil, now, ARGV[7]))
            keep_letter(letters, entry, stored, event, log, now)
        end
        local key = take_out(keys, entry, stored)
        if key then
            left[#left + 1] = { key = key }
        end
        taken = taken + 1
        finals[#finals + 1] = entry
        finals[#finals + 1] = text(now) .. " " .. event
        events[#events + 1] = entry
        events[#events + 1] = event
    end
end
call_many("HSET", KEYS[5], finals)
if taken > 0 then
    redis.call("XADD", KEYS[4], "*", unpack(events))
end
local returned = #left > 0 and leave(keys, left) or 0
if returned > 0 then
    wake(KEYS[6], ARGV[1], ARGV[2], math.min(returned, 64))
end
return { seen[1], taken }
