#!lua
-- Keep what running jobs say of themselves.
--
-- KEYS  1 leases  2 progress  3 checkpoints  4 events
-- ARGV  1 namespace  2 queue  3... for each job `ENTRY TOKEN KIND CREATED_MS ATTEMPT` (the release before ends
--         with KIND) and after a line break JSON, of the KIND
--         "progress"    {"done", "total", "note"}: replaces the one before
--         "checkpoint"  whatever a later attempt is to go on from: replaces the one before
--         "log"         [{"at", "attempt", "message", "fields"}, ...]
--       Progress and lines go to the events too. A line says what a run has done: it is kept whoever holds the job by now.
-- Returns the entries that the caller does not hold with this token any more: of those only lines were kept.
-- Complexity: O(n) for n notes.
local now = text(now_ms())
local refused = {}
for i = 3, #ARGV do
    local entry, token, kind, about, data = string.match(ARGV[i], "^(%S+) (%d+) (%a+) ?([%d ]*)\n(.*)$")
    local event = about == "" and data or about .. " " .. data
    local lease = kind ~= "log" and redis.call("HGET", KEYS[1], entry)
    if kind == "log" then
        redis.call("XADD", KEYS[4], "*", "kind", kind, "at", now, entry, event)
    elseif not lease or string.match(lease, "^%d+") ~= token then
        refused[#refused + 1] = entry
    elseif kind == "checkpoint" then
        redis.call("HSET", KEYS[3], entry, data)
    else
        redis.call("HSET", KEYS[2], entry, data)
        redis.call("XADD", KEYS[4], "*", "kind", kind, "at", now, entry, event)
    end
end
return refused
