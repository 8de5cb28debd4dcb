-- record(job, events, state, fields...) -> 1 recorded, 0 refused
--
-- Not a script of its own: it stands at the head of each script that moves a message, so that the move and its event
-- are one atomic step.
--
-- job     hash: what is known of the job. `seq` counts its events, `created_at` is set by the first.
-- events  stream: each entry is the whole hash after the change, so that a reader needs no earlier entry.
-- A final state is never left, and a job that is known is not created again: both are refused with 0.
-- Times are the server's, in milliseconds. Complexity: O(fields).
local function now_ms()
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function record(job, events, state, fields)
    local known = redis.call("HGET", job, "state")
    if known == "succeeded" or known == "dead" then
        return 0
    end
    -- A delayed message that comes due is put on its queue again: its job was created before.
    if state == "pending" and known and known ~= "scheduled" then
        return 0
    end
    local now = string.format("%.0f", now_ms())
    redis.call("HSETNX", job, "created_at", now)
    redis.call("HINCRBY", job, "seq", 1)
    redis.call("HSET", job, "state", state, "at", now)
    if state == "running" then
        redis.call("HSETNX", job, "started_at", now)
    elseif state == "succeeded" or state == "dead" then
        redis.call("HSET", job, "completed_at", now)
    end
    for i = 1, #fields, 2 do
        redis.call("HSET", job, fields[i], fields[i + 1])
    end
    redis.call("XADD", events, "*", unpack(redis.call("HGETALL", job)))
    return 1
end

local function fields_from(first)
    local fields = {}
    for i = first, #ARGV do
        fields[#fields + 1] = ARGV[i]
    end
    return fields
end
