#!lua flags=no-writes
-- Count what is on a queue, and find what may start and was sent, or has failed last, before all others.
--
-- KEYS  1 ready  2 delayed  3 messages  4 once waiting  5 leases  6 dead  7 attempts  8 paused
-- ARGV  1 namespace  2 queue
-- Returns {ready, delayed, waiting for a key, running, dead, retries among the ready, retries among the delayed,
--         1 where these two are exact, ms since the oldest of the ready was sent, or failed last, or -1, who has paused it}.
-- Complexity: O(SAMPLE log N).
local SAMPLE = 500 -- of the jobs that have failed before, as many are looked at

local now = now_ms()
local ready, delayed = redis.call("ZCARD", KEYS[1]), redis.call("ZCARD", KEYS[2])
local failed = redis.call("HLEN", KEYS[7])
local retries_ready, retries_delayed = 0, 0
if failed > 0 then
    local some = redis.call("HRANDFIELD", KEYS[7], SAMPLE, "WITHVALUES")
    for i = 1, #some, 2 do
        -- The last line says whether the job is in a later attempt: that of a worker's death counts none.
        local line = string.match(some[i + 1], "([^\n]*)$")
        local attempt = tonumber(string.match(line, '^{"attempt":(%d+)') or 0)
        if attempt > 1 or (attempt == 1 and not string.find(line, '"error":{"type": ?"crashed"')) then
            if redis.call("ZSCORE", KEYS[2], some[i]) then
                retries_delayed = retries_delayed + 1
            elseif redis.call("ZSCORE", KEYS[1], some[i]) then
                retries_ready = retries_ready + 1
            end
        end
    end
    local factor = failed / (#some / 2)
    retries_ready = math.min(math.floor(retries_ready * factor + 0.5), ready)
    retries_delayed = math.min(math.floor(retries_delayed * factor + 0.5), delayed)
end
-- Within a priority, the first has been sent first.
local oldest = -1
for priority = 0, ready > 0 and 9 or -1 do
    local least, most = text(priority * 562949953421312), "(" .. text((priority + 1) * 562949953421312)
    local first = redis.call("ZRANGE", KEYS[1], least, most, "BYSCORE", "LIMIT", 0, 1)[1]
    local stored = first and redis.call("HGET", KEYS[3], first)
    local created, attempt = header_of(stored or "")
    if created then
        local since = tonumber(created)
        if attempt ~= "1" then
            for ended in string.gmatch(redis.call("HGET", KEYS[7], first) or "", '"ended_at":(%d+)') do
                since = math.max(since, tonumber(ended))
            end
        end
        oldest = math.max(oldest, now - since, 0)
    end
end
return {
    ready, delayed, redis.call("ZCARD", KEYS[4]), redis.call("HLEN", KEYS[5]), redis.call("ZCARD", KEYS[6]),
    retries_ready, retries_delayed, failed <= SAMPLE and 1 or 0, text(oldest), redis.call("GET", KEYS[8]) or "",
}
