-- Shared by the scripts that know of cancelled jobs; stands after common.lua.
--
-- A job that waits is taken out at once. Of one that is held, the lease is marked: it becomes
-- `TOKEN STARTED_MS WORKER[ begun] cancelled[\tKEY]`, and the hash `cancels` has for its entry the error, JSON with type,
-- message and traceback, that says who has cancelled it and why. However a marked delivery ends, the job is cancelled.

local function is_cancelled(lease)
    -- The plain search first: it is all that most leases need.
    return string.find(lease, " cancelled", 1, true) ~= nil and string.find(lease, "^[^\t]* cancelled") ~= nil
end

-- The options of a message, where it may have one of these names; else, or where it can't be read, none.
local function options_with(stored, ...)
    for _, name in ipairs({ ... }) do
        if string.find(stored, '"' .. name .. '"', 1, true) then
            local is_read, message = pcall(cjson.decode, body_of(stored))
            local options = is_read and type(message) == "table" and message.options
            return type(options) == "table" and options or {}
        end
    end
    return {}
end

local function text_or_none(value)
    return type(value) == "string" and value or nil
end

-- The final event of an entry that is cancelled: of one that is held, with its lease.
local function cancelled_event(stored, lease, error, now)
    local created, attempt, _, actor, score, _, key = header_of(stored)
    -- Where there is no lease, HGET gives false, which would be written as one.
    local started = lease and string.match(lease, "^%d+ (%d+)") or nil
    local options = options_with(stored, "tenant", "parent_id")
    return cjson.encode({
        state = "cancelled",
        type = actor or "unreadable",
        attempt = text((tonumber(attempt) or 1) - (lease and 0 or 1)),
        created_at = created or text(now),
        started_at = started,
        tenant = text_or_none(options.tenant),
        parent_id = text_or_none(options.parent_id),
        priority = score and text(math.floor(score / 562949953421312)),
        key = key,
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
    local unique = text_or_none(options_with(stored, "unique_key").unique_key)
    if unique and string.match(redis.call("HGET", keys.unique, unique) or "", "^%S+") == entry then
        redis.call("HDEL", keys.unique, unique)
    end
    local has_waited = key and redis.call("ZREM", keys.once_waiting, waiting_as(key, score, entry)) == 1
    return not has_waited and key or nil
end
