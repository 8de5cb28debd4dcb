#!lua flags=allow-oom
-- Drop final events that are in the database.
--
-- KEYS  1 finals
-- ARGV  1 namespace  2 queue  3... entry, ms of the event, ...
-- Returns nothing of use. A final event of another time stays: the job was replayed, and has ended once more.
-- Complexity: O(n) for n entries, n <= 1000.
for i = 3, #ARGV, 2 do
    local final = redis.call("HGET", KEYS[1], ARGV[i])
    if final and string.match(final, "^%d+") == ARGV[i + 1] then
        redis.call("HDEL", KEYS[1], ARGV[i])
    end
end
return 0
