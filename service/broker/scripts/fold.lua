#!lua flags=allow-oom
-- Where the database takes no events: fold the oldest ones of the stream into one record for each job, and say whether
-- sends are to be refused.
--
-- KEYS  1 events  2 folded  3 finals  4 full
-- ARGV  1 namespace  2 queue  3 bytes from which on events are folded  4 bytes from which on sends are refused
--       5 ms for which a refusal stands, unless this is called again
-- Returns {how many entries of the stream were folded, entries that are left, bytes of all that is not stored, 1 where sends
--         are refused}. A record is `LAST_ID\n`, then events as they were: `ID KIND AT WORKER LENGTH\nVALUE`, WORKER - for
--         none. Of a job's present life it keeps the send, the first start, the last start, the last change of its priority, and
--         the newest event.
-- Complexity: O(n) for n events in up to STEP entries, of which the last one that is begun is finished.
local STEP = 200
local EVENTS = 1000

local function bytes_of(key)
    return redis.call("MEMORY", "USAGE", key, "SAMPLES", "20") or 0
end

local used = bytes_of(KEYS[1]) + bytes_of(KEYS[2]) + bytes_of(KEYS[3])

local function parts_of(record)
    local parts, at = {}, string.find(record, "\n", 1, true) + 1
    while at <= #record do
        local id, kind, when, worker, length, from = string.match(record, "^(%S+) (%S+) (%S+) (%S+) (%d+)\n()", at)
        parts[#parts + 1] = { id = id, kind = kind, text = string.sub(record, at, from + length - 1),
            value = string.sub(record, from, from + length - 1) }
        at = from + length
    end
    return parts
end

local function is_over(part)
    local state = part.kind == "settled" and string.match(part.value, '"state": ?"(%a+)"')
    return state == "succeeded" or state == "cancelled"
end

-- The parts of a job with one more.
local function with(parts, part)
    local last = parts[#parts]
    if part.kind == "replayed" or not last then
        return { part }
    elseif part.kind == "deleted" then
        parts[#parts + 1] = part
        return parts
    elseif is_over(last) then
        return parts -- it is never left
    end
    local kept, first_start, last_start, moved = {}, nil, nil, nil
    for i, each in ipairs(parts) do
        if each.kind == "started" then
            first_start = first_start or each
            last_start = each
        elseif i == 1 then
            kept[1] = each
        elseif string.find(each.value, '"priority"', 1, true) then
            moved = each
        end
    end
    if part.kind == "started" then
        last_start = nil
    end
    kept[#kept + 1] = first_start
    if last_start and last_start ~= first_start then
        kept[#kept + 1] = last_start
    end
    kept[#kept + 1] = moved
    kept[#kept + 1] = part
    return kept
end

local entries = {}
if used >= tonumber(ARGV[3]) then
    entries = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", STEP)
end
local folded, names, ids, events = {}, {}, {}, 0
for _, entry in ipairs(entries) do
    if events >= EVENTS then
        break
    end
    local id, fields = entry[1], entry[2]
    ids[#ids + 1] = id
    local head = {}
    for i = 1, #fields, 2 do
        local name, value = fields[i], fields[i + 1]
        if name == "kind" or name == "at" or name == "worker" then
            head[name] = value
        elseif head.kind ~= "progress" and head.kind ~= "log" and head.kind and head.at then
            events = events + 1
            if not folded[name] then
                local known = redis.call("HGET", KEYS[2], name)
                folded[name] = known and parts_of(known) or {}
                names[#names + 1] = name
            end
            local worker = head.worker and string.match(head.worker, "^%S+$") or "-"
            local text = table.concat({ id, head.kind, head.at, worker, #value }, " ") .. "\n" .. value
            folded[name] = with(folded[name], { id = id, kind = head.kind, text = text, value = value })
        end
    end
end
for _, name in ipairs(names) do
    local parts = folded[name]
    local texts = { parts[#parts].id .. "\n" }
    for i, part in ipairs(parts) do
        texts[i + 1] = part.text
    end
    redis.call("HSET", KEYS[2], name, table.concat(texts))
end
call_many("XDEL", KEYS[1], ids)
local left = redis.call("XLEN", KEYS[1])
if #ids > 0 then
    used = bytes_of(KEYS[1]) + bytes_of(KEYS[2]) + bytes_of(KEYS[3])
end
local full = used >= tonumber(ARGV[4]) and left == 0
if full then
    redis.call("SET", KEYS[4], text(used), "PX", ARGV[5])
elseif used < ARGV[4] * 0.9 then
    redis.call("DEL", KEYS[4])
end
return { #ids, left, text(used), redis.call("EXISTS", KEYS[4]) }
