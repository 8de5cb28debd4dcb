#!lua flags=allow-oom
-- Note what a worker process is and does, or that it is gone.
--
-- KEYS  1 workers
-- ARGV  1 namespace  2 queue, of no meaning here  3 worker  4 JSON, or nothing where it ends
--       5 ms after which who has said nothing is gone; those go in this call: or 0
-- Returns the server's time in ms.
-- Complexity: O(1), and O(n) for n workers where ARGV[5] is given.
local now = now_ms()
if ARGV[4] == "" then
    redis.call("HDEL", KEYS[1], ARGV[3])
else
    redis.call("HSET", KEYS[1], ARGV[3], text(now) .. " " .. ARGV[4])
    redis.call("EXPIRE", KEYS[1], 86400)
end
if ARGV[5] ~= "0" then
    local all = redis.call("HGETALL", KEYS[1])
    for i = 1, #all, 2 do
        if now - tonumber(string.match(all[i + 1], "^%d+") or 0) > tonumber(ARGV[5]) then
            redis.call("HDEL", KEYS[1], all[i])
        end
    end
end
return text(now)
