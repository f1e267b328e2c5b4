-- Runs in front of a pop or a transaction: touches a key that is watched if the replies would be longer than ARGV[1] bytes
-- together. The other arguments are the commands that are looked at, each with the number of its words in front. First it is looked
-- at how much memory the keys take of which most is answered: a number may take less than its text, 20 bytes for each element (a
-- score is a second one), beside the 16 that count for it. If that is too much, or little of a key is answered, all is read in parts
-- until the length is known: this alone refuses, so that all replicas do the same. A wrong command is the server's to refuse.
-- Whole-line comments only.
local most, bytes, args, name, part, is_bounding, is_unknown = tonumber(ARGV[1]), 0, nil, nil, 1000, true, false
local function ask(...)
local reply = redis.pcall(...)
if type(reply) == 'table' and reply.err then return nil end
return reply
end
-- In parts of about 256 KiB, by what the elements before were like: the first has 16 of them.
local function look(count, read, first)
if is_bounding then is_unknown = true return end
local from, at_once = first or 0, 16
while from < count and bytes <= most do
local upto, before = math.min(from + at_once, count) - 1, bytes
local found = read(from, upto)
if not found or #found == 0 then return end
for _, text in ipairs(found) do bytes = bytes + #text + 16 end
at_once = math.max(1, math.min(part, math.floor(262144 * #found / (bytes - before))))
from = upto + 1
end
end
-- Whether the memory that the key takes says enough.
local function short(key, count, length, texts)
if not is_bounding or not length or 2 * count < length then return false end
local used = ask('MEMORY', 'USAGE', key, 'SAMPLES', '0')
if used then bytes = bytes + used + 36 * texts * length end
return used
end
local function list(key, count, left)
if short(key, count, ask('LLEN', key), 1) then return end
if left then return look(count, function(from, upto) return ask('LRANGE', key, from, upto) end) end
look(count, function(from, upto) return ask('LRANGE', key, -1 - upto, -1 - from) end)
end
local function sorted(key, count, least)
if short(key, count, ask('ZCARD', key), 2) then return end
local command = least and 'ZRANGE' or 'ZREVRANGE'
look(count, function(from, upto) return ask(command, key, from, upto, 'WITHSCORES') end)
end
local function several(length, pop)
local keys, count = tonumber(args[2]) or 0, 1
if keys < 1 or keys > #args - 3 then return end
if string.upper(args[keys + 4] or '') == 'COUNT' then count = tonumber(args[keys + 5]) or 0 end
for i = 3, keys + 2 do
local found = ask(length, args[i])
if not found then return end
if found > 0 then return pop(args[i], math.min(count, found), string.upper(args[keys + 3])) end
end
end
-- The places of a range, from 0; nil if there are none.
local function places(first, last, length)
first, last = tonumber(first), tonumber(last)
if not first or not last or not length then return nil end
if first < 0 then first = math.max(first + length, 0) end
if last < 0 then last = last + length end
last = math.min(last, length - 1)
if first > last then return nil end
return first, last
end
local function range(key, from, to)
local length = ask('LLEN', key)
local first, last = places(from, to, length)
if not first or short(key, last - first + 1, length, 1) then return end
look(last + 1, function(at, upto) return ask('LRANGE', key, at, upto) end, first)
end
local function value(length) bytes = bytes + (length or 0) + 16 end
-- All of what a read answers, numbers and the like included.
local function count_all(reply)
if type(reply) ~= 'table' then return value(type(reply) == 'string' and #reply) end
bytes = bytes + 16
for i = 1, #reply do count_all(reply[i]) end
end
local function read_all() if is_bounding then is_unknown = true else count_all(ask(unpack(args))) end end
local sizes = {HGETALL = {'HLEN', 2}, HKEYS = {'HLEN', 2}, HVALS = {'HLEN', 2}, SMEMBERS = {'SCARD', 1}}
local function look_at()
local size = sizes[name]
if size then
local length = ask(size[1], args[2])
if length and short(args[2], length, length, size[2]) then return end
return read_all()
end
if name == 'GET' or name == 'GETDEL' or name == 'GETSET' or name == 'GETEX' then return value(ask('STRLEN', args[2])) end
if name == 'GETRANGE' or name == 'SUBSTR' then
local first, last = places(args[3], args[4], ask('STRLEN', args[2]))
return value(first and last - first + 1)
end
if name == 'MGET' then for i = 2, #args do value(ask('STRLEN', args[i])) end return end
if name == 'HGET' then return value(ask('HSTRLEN', args[2], args[3])) end
if name == 'HMGET' then for i = 3, #args do value(ask('HSTRLEN', args[2], args[i])) end return end
if name == 'LRANGE' then return range(args[2], args[3], args[4]) end
local count = tonumber(args[3]) or 1
if name == 'LPOP' or name == 'RPOP' then list(args[2], count, name == 'LPOP')
elseif name == 'ZPOPMIN' or name == 'ZPOPMAX' then sorted(args[2], count, name == 'ZPOPMIN')
elseif name == 'LMPOP' then several('LLEN', function(key, most_popped, side) list(key, most_popped, side == 'LEFT') end)
elseif name == 'ZMPOP' then several('ZCARD', function(key, most_popped, side) sorted(key, most_popped, side == 'MIN') end)
elseif name == 'SPOP' and (ask('SCARD', args[2]) or count + 1) <= count and not short(args[2], count, ask('SCARD', args[2]), 1) then
if is_bounding then is_unknown = true return end
local cursor = '0'
repeat
local found = ask('SSCAN', args[2], cursor, 'COUNT', part)
if not found then break end
cursor = found[1]
for _, text in ipairs(found[2]) do bytes = bytes + #text + 16 end
until cursor == '0' or bytes > most
elseif string.find(' SUNION SINTER SDIFF ZRANGE ZREVRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE ZRANGEBYLEX ZREVRANGEBYLEX ZUNION ZINTER ZDIFF XRANGE XREVRANGE ', ' ' .. name .. ' ', 1, true) then read_all() end
end
local function look_at_all()
local at = 2
while at <= #ARGV and bytes <= most do
local words = tonumber(ARGV[at])
args = {unpack(ARGV, at + 1, at + words)}
name, at = string.upper(args[1]), at + words + 1
look_at()
end
end
look_at_all()
if is_unknown or bytes > most then
is_bounding, bytes = false, 0
look_at_all()
end
if bytes > most then
redis.call('SELECT', '1')
redis.call('SET', 'concord:guard', '1')
redis.call('SELECT', '0')
end
return 1
