-- Runs in front of a pop whose key is watched that this touches if the reply would be longer than ARGV[1] bytes; the
-- other arguments are the pop's own. A pop of most of a key is short enough if all of the key takes so little memory; else it
-- reads in parts and stops when the length is known. A number may take less memory than its text: 20 bytes for each element
-- (a score is a second one), beside the 16 that count for it. A wrong pop is the server's to refuse.
-- Whole-line comments only.
local most, bytes, args = tonumber(ARGV[1]), 0, {}
for i = 2, #ARGV do args[i - 1] = ARGV[i] end
local name, part = string.upper(args[1]), 1000
local function ask(...)
local reply = redis.pcall(...)
if type(reply) == 'table' and reply.err then return nil end
return reply
end
local function look(count, read)
local from = 0
while from < count and bytes <= most do
local upto = math.min(from + part, count) - 1
local found = read(from, upto)
if not found or #found == 0 then return end
for _, text in ipairs(found) do bytes = bytes + #text + 16 end
from = upto + 1
end
end
local function short(key, count, length, texts)
if not length or 2 * count < length then return false end
local used = ask('MEMORY', 'USAGE', key, 'SAMPLES', '0')
return used and used + 36 * texts * length <= most
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
local count = tonumber(args[3]) or 1
if name == 'LPOP' or name == 'RPOP' then list(args[2], count, name == 'LPOP')
elseif name == 'ZPOPMIN' or name == 'ZPOPMAX' then sorted(args[2], count, name == 'ZPOPMIN')
elseif name == 'LMPOP' then several('LLEN', function(key, most_popped, side) list(key, most_popped, side == 'LEFT') end)
elseif name == 'ZMPOP' then several('ZCARD', function(key, most_popped, side) sorted(key, most_popped, side == 'MIN') end)
elseif name == 'SPOP' and (ask('SCARD', args[2]) or count + 1) <= count and not short(args[2], count, ask('SCARD', args[2]), 1) then
local cursor = '0'
repeat
local found = ask('SSCAN', args[2], cursor, 'COUNT', part)
if not found then break end
cursor = found[1]
for _, text in ipairs(found[2]) do bytes = bytes + #text + 16 end
until cursor == '0' or bytes > most
end
if bytes > most then
redis.call('SELECT', '1')
redis.call('SET', 'concord:guard', '1')
redis.call('SELECT', '0')
end
return 1
