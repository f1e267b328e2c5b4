-- Within the prologue, in front of a script that may write: keeps what its commands change, so that all of it can be taken back
-- if the reply is longer than a reply may be, which is known only when everything was done. Whole-line comments only. A key of few
-- elements is copied, into the database beside the data, before it is changed for the first time; of a larger one each change is
-- reversed by itself. Whether that can be done hangs on the data alone, so that all replicas do the same.
if not reads and not plain then
undoing = function()
local most, in_lua, few, many_elements = 67108864, 65536, 128, 10000
local steps, copies, looked, large, reverse = {}, 0, {}, {}, nil
local function add(...) steps[#steps + 1] = {...} end
local function copy(key)
copies = copies + 1
local name = 'concord:kept:' .. copies
if server.pcall('COPY', key, name, 'DB', '1', 'REPLACE') ~= 1 then is_lost = true end
add(false, key, name)
end
-- A large key is about to be changed by a command that is not reversed.
local function whole(key)
local kind = large[key]
if not kind then return end
large[key] = nil
if kind == 'string' then return add('SET', key, server.call('GET', key)) end
local count = server.call('EXISTS', key) > 0 and server.call(lengths[kind], key)
if not count then add('DEL', key) elseif count > many_elements then is_lost = true else copy(key) end
end
local function keep(key)
if looked[key] then return end
looked[key] = true
local kind = server.call('TYPE', key).ok
if kind == 'none' then return add('DEL', key) end
if kind == 'string' then
local value = server.call('GETRANGE', key, 0, in_lua)
if #value <= in_lua then add('SET', key, value) else large[key] = kind end
return
end
local length = lengths[kind] and server.call(lengths[kind], key)
if not length then is_lost = true elseif length <= few then copy(key) else large[key] = kind end
end
-- By the type of its first key, what is called with the reply when a command was executed; false: it is not reversed.
local function reversing()
local function add_all(command, key, all)
for i = 1, #all, 1000 do add(command, key, unpack(all, i, math.min(i + 999, #all))) end
end
local function tail(args, from, step)
local all = {}
for i = from, #args, step or 1 do all[#all + 1] = args[i] end
return all
end
return {
list = function(name, key, args)
if name == 'RPUSH' or name == 'RPUSHX' then return function() add('LTRIM', key, 0, -#args) end end
if name == 'LPUSH' or name == 'LPUSHX' then return function() add('LTRIM', key, #args - 1, -1) end end
if name == 'LPOP' or name == 'RPOP' then
return function(reply)
local popped, back = type(reply) == 'table' and reply or {reply or nil}, {}
for i = #popped, 1, -1 do back[#back + 1] = popped[i] end
local pushes = name == 'LPOP' and 'LPUSH' or 'RPUSH'
-- The last step is the first that is taken.
for i = #back, 1, -1000 do add(pushes, key, unpack(back, math.max(i - 999, 1), i)) end
end
end
if name == 'RPOPLPUSH' or name == 'LMOVE' then
local from, to = string.upper(args[3] or 'RIGHT'), string.upper(args[4] or 'LEFT')
return function(reply)
if not reply then return end
add(from == 'LEFT' and 'LPUSH' or 'RPUSH', key, reply)
add(to == 'LEFT' and 'LPOP' or 'RPOP', args[2])
end
end
if name == 'LSET' then
local old = server.pcall('LINDEX', key, args[2])
return function() add('LSET', key, args[2], old) end
end
return false
end,
set = function(name, key, args)
if name ~= 'SADD' and name ~= 'SREM' then return false end
local members = tail(args, 2)
local is_there, changed = server.pcall('SMISMEMBER', key, unpack(members)), {}
for i, member in ipairs(members) do if is_there[i] == (name == 'SREM' and 1 or 0) then changed[#changed + 1] = member end end
return function() add_all(name == 'SADD' and 'SREM' or 'SADD', key, changed) end
end,
hash = function(name, key, args)
local fields
if name == 'HSET' or name == 'HMSET' then fields = tail(args, 2, 2)
elseif name == 'HDEL' then fields = tail(args, 2)
elseif name == 'HSETNX' or name == 'HINCRBY' or name == 'HINCRBYFLOAT' then fields = {args[2]}
else return false end
local old, gone, back = server.pcall('HMGET', key, unpack(fields)), {}, {}
for i, field in ipairs(fields) do if old[i] then back[#back + 1] = field back[#back + 1] = old[i] else gone[#gone + 1] = field end end
return function() add_all('HDEL', key, gone) add_all('HSET', key, back) end
end,
zset = function(name, key, args)
if name == 'ZPOPMIN' or name == 'ZPOPMAX' then
return function(reply)
local back = {}
for i = 1, #reply, 2 do back[#back + 1] = reply[i + 1] back[#back + 1] = reply[i] end
add_all('ZADD', key, back)
end
end
if name == 'ZREMRANGEBYSCORE' or name == 'ZREMRANGEBYRANK' then
local found = server.pcall(name == 'ZREMRANGEBYRANK' and 'ZRANGE' or 'ZRANGEBYSCORE', key, args[2], args[3], 'WITHSCORES')
local back = {}
for i = 1, #found, 2 do back[#back + 1] = found[i + 1] back[#back + 1] = found[i] end
return function() add_all('ZADD', key, back) end
end
local members
if name == 'ZADD' then
local i = 2
while args[i] and listed(' NX XX GT LT CH INCR ', string.upper(args[i])) do i = i + 1 end
members = tail(args, i + 1, 2)
elseif name == 'ZINCRBY' then members = {args[3]}
elseif name == 'ZREM' then members = tail(args, 2)
else return false end
local old, gone, back = server.pcall('ZMSCORE', key, unpack(members)), {}, {}
for i, member in ipairs(members) do if old[i] then back[#back + 1] = old[i] back[#back + 1] = member else gone[#gone + 1] = member end end
return function() add_all('ZREM', key, gone) add_all('ZADD', key, back) end
end,
string = function(name, key, args)
if name ~= 'APPEND' and name ~= 'SETRANGE' and name ~= 'SETBIT' or name ~= 'APPEND' and #args ~= 3 then return false end
local length, at, old = server.call('STRLEN', key), tonumber(args[2]), nil
if name == 'SETRANGE' then old = server.pcall('GETRANGE', key, args[2], string.format('%.0f', (at or 0) + #args[3] - 1))
elseif name == 'SETBIT' then old = server.pcall('GETBIT', key, args[2]) end
return function()
add(true, key, length)
if old and old ~= '' then add(name, key, args[2], old) end
end
end,
stream = function() return false end,
}
end
-- What executes the command in the place of `run`.
local function begin(run, keys)
for _, key in ipairs(keys) do keep(key) end
if not next(large) then return run end
return function(command, ...)
local args, after, first = {...}, false, ...
if listed(harmless, command) then return run(command, ...) end
local kind = large[first]
if not kind and listed(' RPOPLPUSH LMOVE ', command) and large[keys[2]] == 'list' then kind = 'list' end
reverse = kind and (reverse or reversing())
if kind then after = reverse[kind](command, first, args) end
if not after then for _, key in ipairs(keys) do whole(key) end end
local reply = run(command, ...)
if after and not is_error(reply) then after(reply) end
return reply
end
end
local function length_of(value)
local kind = type(value)
if kind == 'string' then return #value + #string.format('%d', #value) + 5 end
if kind == 'number' then return math.abs(value) < 1e18 and #string.format('%d', value) + 3 or 23 end
if kind ~= 'table' then return 5 end
local text = rawget(value, 'err') or rawget(value, 'ok')
if text then return type(text) == 'string' and #text + 3 or 30 end
if rawget(value, 'double') then return 30 end
local both, bytes, count = rawget(value, 'map') or rawget(value, 'set'), 0, 0
if type(both) == 'table' then
for key, own in next, both do
bytes, count = bytes + length_of(key) + (rawget(value, 'map') and length_of(own) or 0), count + 1
end
return bytes + #string.format('%d', count * 2) + 3
end
while rawget(value, count + 1) ~= nil do
count = count + 1
bytes = bytes + length_of(rawget(value, count))
end
return bytes + #string.format('%d', count) + 3
end
local function take_back()
-- Of what the script told stays what is of the keys that it touched, for those who copy.
local function untell()
if told_count == 0 then return end
server.call('SELECT', '1')
local told = server.call('LRANGE', 'concord:told', -3 * told_count, -1)
server.call('LTRIM', 'concord:told', 0, -3 * told_count - 1)
for i = 1, #told, 3 do if listed(' early key all ', told[i]) then server.call('RPUSH', 'concord:told', told[i], told[i + 1], told[i + 2]) end end
for key, at in next, dues_before or {} do
if not own then if at then server.call('HSET', 'concord:deadlines', key, string.format('%.0f', at)) else server.call('HDEL', 'concord:deadlines', key) end end
end
server.call('SELECT', '0')
end
for i = #steps, 1, -1 do
local step = steps[i]
if step[1] == true then server.call('SET', step[2], step[3] > 0 and server.call('GETRANGE', step[2], 0, step[3] - 1) or '')
elseif step[1] then server.pcall(unpack(step))
else
server.call('SELECT', '1')
server.call('COPY', step[3], step[2], 'DB', '0', 'REPLACE')
server.call('SELECT', '0')
end
end
untell()
note('undone', '')
end
local function finish(went, value)
if went and not is_lost and length_of(value) > most then
take_back()
value = {err = "ERR the reply would be longer than 64 MiB (Concord's limit): nothing was changed"}
end
if copies > 0 then
server.call('SELECT', '1')
for i = 1, copies do server.call('UNLINK', 'concord:kept:' .. i) end
server.call('SELECT', '0')
end
return value
end
return {whole = function(key) keep(key) whole(key) end, begin = begin, finish = finish}
end
end
