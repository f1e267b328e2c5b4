-- Runs in front of every script, joined to one line; see script.rs. `now` and `due` (ms since the
-- Unix epoch, as strings; due is empty if the key has no time to live) and `full` (empty unless
-- commands that need memory are to be refused) come as the last three ARGV.
-- Whole-line comments only. It is executed anew for each EVAL: names are looked up in strings, as
-- building tables would cost more than most scripts.
return (function(now, due, full)
now = tonumber(now)
due = tonumber(due)
local server, own = redis, KEYS[1]
local function listed(names, name) return string.find(names, ' ' .. name .. ' ', 1, true) end
local unequal = ' SPOP SRANDMEMBER HRANDFIELD ZRANDMEMBER RANDOMKEY KEYS SCAN SSCAN HSCAN ZSCAN XREADGROUP XCLAIM XAUTOCLAIM OBJECT LASTSAVE INFO MEMORY SORT SORT_RO SUNION SINTER SDIFF ACL CONFIG CLIENT LATENCY MODULE LOLWUT PUBSUB SLOWLOG FUNCTION SCRIPT CLUSTER '
local foreign = ' SELECT FLUSHALL FLUSHDB SWAPDB MOVE COPY MIGRATE RENAME RENAMENX DBSIZE '
local expiring = ' GETEX RESTORE HEXPIRE HPEXPIRE HEXPIREAT HPEXPIREAT HSETEX HGETEX MSETEX '
local timed = ' TTL PTTL EXPIRETIME PEXPIRETIME PERSIST EXPIRE PEXPIRE EXPIREAT PEXPIREAT SETEX PSETEX '
local greedy = ' SET SETNX SETEX PSETEX GETSET APPEND SETRANGE SETBIT BITFIELD BITOP INCR INCRBY INCRBYFLOAT DECR DECRBY MSET MSETNX LPUSH RPUSH LPUSHX RPUSHX LINSERT LSET LMOVE RPOPLPUSH SADD SDIFFSTORE SINTERSTORE SUNIONSTORE ZADD ZINCRBY ZDIFFSTORE ZINTERSTORE ZUNIONSTORE ZRANGESTORE HSET HMSET HSETNX HINCRBY HINCRBYFLOAT PFADD PFMERGE GEOADD GEOSEARCHSTORE XADD '
local function refused(name, why) return {err = "ERR '" .. string.lower(name) .. "' is not supported in scripts here: " .. why} end
local function is_error(reply) return type(reply) == 'table' and reply.err end
local function exists() return server.call('EXISTS', own) == 1 end
-- Sets the key's deadline; one that has passed deletes the key, as in Redis.
local function set_due(at) if at <= now then due = nil server.call('DEL', own) else due = at end end
-- The deadline that `amount` means, by the name of the command or option; nil if it is no integer.
local function absolute(name, amount)
amount = tonumber(amount)
if not amount or amount ~= math.floor(amount) then return nil end
if not listed(' PX PXAT PEXPIRE PEXPIREAT PSETEX ', name) then amount = amount * 1000 end
if not string.find(name, 'AT$') then amount = amount + now end
return amount
end
local function remaining(name)
if not exists() then return -2 end
if not due then return -1 end
local left = due
if listed(' TTL PTTL ', name) then left = math.max(due - now, 0) end
if listed(' TTL EXPIRETIME ', name) then left = math.floor((left + 500) / 1000) end
return left
end
-- PERSIST on the server is a write that changes nothing, as it knows no times to live; but it fails
-- in EVAL_RO.
local function expire(run, name, amount, condition, more)
local at = amount and absolute(name, amount)
if amount and not at then return {err = 'ERR value is not an integer or out of range'} end
condition = condition and string.upper(condition)
if more or (condition and not listed(' NX XX GT LT ', condition)) then return {err = 'ERR Unsupported option ' .. tostring(more or condition)} end
local reply = run('PERSIST', own)
if is_error(reply) then return reply end
if not exists() then return 0 end
if name == 'PERSIST' then local had = due due = nil return had and 1 or 0 end
if (condition == 'NX' and due) or (condition == 'XX' and not due) or (condition == 'GT' and (not due or at <= due)) or (condition == 'LT' and due and at >= due) then return 0 end
set_due(at)
return 1
end
local function setex(run, name, amount, value, more)
if more then return run(name) end
local at = absolute(name, amount)
if not at then return {err = 'ERR value is not an integer or out of range'} end
if tonumber(amount) <= 0 then return {err = "ERR invalid expire time in '" .. string.lower(name) .. "' command"} end
local reply = run('SET', own, value)
if not is_error(reply) then due = at end
return reply
end
local function set(run, value, ...)
local options, kept, at, keep, get, i = {...}, {}, nil, false, false, 1
while i <= #options do
local option = string.upper(options[i])
if listed(' EX PX EXAT PXAT ', option) then
local amount = options[i + 1]
if at or keep or not amount then return {err = 'ERR syntax error'} end
at = absolute(option, amount)
if not at then return {err = 'ERR value is not an integer or out of range'} end
if tonumber(amount) <= 0 then return {err = "ERR invalid expire time in 'set' command"} end
i = i + 1
elseif option == 'KEEPTTL' then if at or keep then return {err = 'ERR syntax error'} end keep = true
else get = get or option == 'GET' kept[#kept + 1] = options[i] end
i = i + 1
end
if get and #kept > 1 then return refused('SET', 'GET together with NX or XX') end
local reply = run('SET', own, value, unpack(kept))
if is_error(reply) or (not reply and not get) then return reply end
if at then set_due(at) elseif not keep then due = nil end
return reply
end
-- Hash tables are read in sorted order: each server seeds its own.
local function hgetall(run, ...)
local reply, fields, flat = run('HGETALL', ...), {}, {}
if is_error(reply) then return reply end
for i = 1, #reply, 2 do fields[#fields + 1] = {reply[i], reply[i + 1]} end
table.sort(fields, function(a, b) return a[1] < b[1] end)
for _, field in ipairs(fields) do flat[#flat + 1] = field[1] flat[#flat + 1] = field[2] end
return flat
end
local function xadd(run, args)
local i = 2
while args[i] do
local option = string.upper(args[i])
if listed(' MAXLEN MINID ', option) then i = i + 2 if args[i - 1] == '~' or args[i - 1] == '=' then i = i + 1 end
elseif option == 'LIMIT' then i = i + 2
elseif listed(' NOMKSTREAM KEEPREF DELREF ACKED ', option) then i = i + 1
else break end
end
if args[i] and (args[i] == '*' or string.find(args[i], '-*', 1, true)) then return refused('XADD', 'with an id that the server draws') end
return run('XADD', unpack(args))
end
local function execute(run, name, args)
local key, count = args[1], #args
if listed(timed, name) then
local wanted = listed(' SETEX PSETEX ', name) and 3 or (listed(' EXPIRE PEXPIRE EXPIREAT PEXPIREAT ', name) and 2 or 1)
if count < wanted or (wanted == 1 and count > 1) then return run(name) end
if key ~= own then return refused(name, 'a time to live of another key than KEYS[1]') end
if wanted == 3 then return setex(run, name, args[2], args[3], args[4]) end
if wanted == 2 or name == 'PERSIST' then return expire(run, name, args[2], args[3], args[4]) end
return remaining(name)
end
if name == 'SET' and key == own and count > 1 then return set(run, unpack(args, 2)) end
if name == 'SET' and count > 2 then return refused(name, 'options for another key than KEYS[1]') end
if name == 'TIME' then return {string.format('%d', math.floor(now / 1000)), string.format('%d', now % 1000 * 1000)} end
if listed(' SMEMBERS HKEYS HVALS ', name) then local reply = run(name, unpack(args)) if not is_error(reply) then table.sort(reply) end return reply end
if name == 'HGETALL' then return hgetall(run, unpack(args)) end
if name == 'XADD' then return xadd(run, args) end
return run(name, unpack(args))
end
-- Whether the call touches another key than the script's own. Most commands have their key first; where
-- the keys are hard to find, the server says where.
local function is_foreign(name, args)
if listed(' PING ECHO TIME ', name) then return false end
local first, last, step = 1, 1, 1
if listed(' DEL UNLINK EXISTS TOUCH MGET PFCOUNT PFMERGE SINTERSTORE SUNIONSTORE SDIFFSTORE ', name) then last = #args
elseif listed(' MSET MSETNX ', name) then last, step = #args, 2
elseif listed(' RPOPLPUSH SMOVE LCS LMOVE ZRANGESTORE GEOSEARCHSTORE ', name) then last = 2
elseif name == 'BITOP' then first, last = 2, #args
elseif listed(' XINFO XGROUP ', name) then first, last = 2, 2
elseif listed(' LMPOP ZMPOP XREAD GEORADIUS GEORADIUSBYMEMBER ZINTER ZUNION ZDIFF ZINTERSTORE ZUNIONSTORE ZDIFFSTORE ZINTERCARD SINTERCARD ', name) then
local keys = server.pcall('COMMAND', 'GETKEYS', name, unpack(args))
if is_error(keys) then return false end
for _, key in ipairs(keys) do if key ~= own then return true end end
return false
end
for i = first, math.min(last, #args), step do if args[i] ~= own then return true end end
return false
end
local function dispatch(run, ...)
local name = ...
if type(name) ~= 'string' then return run(...) end
local upper, args = string.upper(name), {select(2, ...)}
if listed(unequal, upper) then return refused(name, 'replicas would differ') end
if listed(foreign, upper) then return refused(name, 'scripts have one key') end
if listed(' PUBLISH SPUBLISH ', upper) then return refused(name, 'publish/subscribe') end
if listed(expiring, upper) then return refused(name, 'times to live are set by EXPIRE, SETEX and SET') end
if full ~= '' and listed(greedy, upper) then return {err = "OOM command not allowed when used memory > 'maxmemory'."} end
for i = 1, #args do
if type(args[i]) == 'number' then args[i] = string.format('%.17g', args[i]) elseif type(args[i]) ~= 'string' then return run(...) end
end
if is_foreign(upper, args) then return {err = 'ERR Script attempted to access a non local key in a cluster node'} end
local reply = execute(run, upper, args)
if due and not is_error(reply) and not listed(timed, upper) then
if listed(' GETSET MSET BITOP ', upper) and args[1] == own then due = nil elseif not exists() then due = nil end
end
return reply
end
local function call(...)
local reply = dispatch(server.pcall, ...)
if is_error(reply) then error(reply) end
return reply
end
local function try(...) return dispatch(server.pcall, ...) end
local redis = setmetatable({call = call, pcall = try, setresp = false}, {__index = server})
local function answer(...) return {due and string.format('%.0f', due) or '', (...)} end
return (function(main) return answer(main()) end)(function(...)
