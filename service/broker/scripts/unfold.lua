#!lua flags=allow-oom
-- Drop folded records that are in the database.
--
-- KEYS  1 folded
-- ARGV  1 namespace  2 queue  3... entry, the id of the last event that its record had, ...
-- Returns nothing of use. A record that has grown since stays.
-- Complexity: O(n) for n entries, n <= 1000.
for i = 3, #ARGV, 2 do
    local record = redis.call("HGET", KEYS[1], ARGV[i])
    if record and string.match(record, "^[^\n]*") == ARGV[i + 1] then
        redis.call("HDEL", KEYS[1], ARGV[i])
    end
end
return 0
