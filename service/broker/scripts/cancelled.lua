-- Shared by the scripts that know of cancelled jobs; stands after common.lua.
--
-- A job that waits is taken out at once. Of one that is held, the lease is marked: it becomes
-- `TOKEN STARTED_MS WORKER[ begun] cancelled[\tKEY]`, and the hash `cancels` has for its entry the error, JSON with type,
-- message and traceback, that says who has cancelled it and why. However a marked delivery ends, the job is cancelled.

local function is_cancelled(lease)
    -- The plain search first: it is all that most leases need.
    return string.find(lease, " cancelled", 1, true) ~= nil and string.find(lease, "^[^\t]* cancelled") ~= nil
end

-- The final event of an entry that is cancelled: of one that is held, with its lease.
local function cancelled_event(stored, lease, error, now)
    local created, attempt, _, actor = header_of(stored)
    local started = lease and string.match(lease, "^%d+ (%d+)")
    return cjson.encode({
        state = "cancelled",
        type = actor or "unreadable",
        attempt = text((tonumber(attempt) or 1) - (lease and 0 or 1)),
        created_at = created or text(now),
        started_at = started,
        error = error or '{"type":"Cancelled","message":"","traceback":""}',
    })
end

-- Take an entry that nobody holds out of its queue, with every trace of it. Returns the idempotency key that may have
-- others waiting behind this entry, if it has one.
local function take_out(keys, entry, stored)
    redis.call("ZREM", keys.ready, entry)
    redis.call("ZREM", keys.delayed, entry)
    redis.call("HDEL", keys.messages, entry)
    for _, name in ipairs({ "lapses", "attempts", "progress", "checkpoints" }) do
        redis.call("HDEL", keys[name], entry)
    end
    local _, _, _, _, score, _, key = header_of(stored)
    if string.find(stored, '"unique_key"', 1, true) then
        local is_read, message = pcall(cjson.decode, body_of(stored))
        local options = is_read and type(message) == "table" and message.options
        local unique = type(options) == "table" and options.unique_key
        if type(unique) == "string" then
            local owner = string.match(redis.call("HGET", keys.unique, unique) or "", "^%S+")
            if owner == entry then
                redis.call("HDEL", keys.unique, unique)
            end
        end
    end
    local has_waited = key and redis.call("ZREM", keys.once_waiting, waiting_as(key, score, entry)) == 1
    return not has_waited and key or nil
end
