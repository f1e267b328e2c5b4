-- Runs in front of every script, joined to one line; see script.rs, which says what the last five ARGV
-- are. Whole-line comments only. It is executed anew for each EVAL: names are looked up in strings, as
-- building tables would cost more than most scripts. What it returns hides the server's globals of these names
-- from the script, which stands behind it.
-- `only` is the only key that the script may touch, nil if it may touch any; `own` is the same where its
-- deadline came along, and all others are looked up. `dues` are the deadlines
-- (ms since the Unix epoch) of keys that were looked at, `seen` says of which.
local redis, loadstring, load, setmetatable, tostring, collectgarbage, gcinfo, _G, concord_guard = (function(now, due, full, flags, seed)
now, seed = tonumber(now), tonumber(seed)
local server, own, dues, seen = redis, nil, {}, {}
-- What takes back what the script does (undo.lua), unless it only reads; how often it told something, which deadlines there were
-- before it changed them, and whether something cannot be taken back.
local undoing, undo, told_count, dues_before, is_lost = nil, nil, 0, nil, false
-- Commands that leave what the server has as it is.
local harmless = ' EXPIRE PEXPIRE EXPIREAT PEXPIREAT PERSIST GET MGET STRLEN GETRANGE SUBSTR GETBIT BITCOUNT BITPOS BITFIELD_RO EXISTS TYPE TTL PTTL EXPIRETIME PEXPIRETIME TOUCH DUMP LRANGE LLEN LINDEX LPOS SMEMBERS SCARD SISMEMBER SMISMEMBER SRANDMEMBER SINTER SUNION SDIFF SINTERCARD SSCAN HGET HMGET HGETALL HKEYS HVALS HLEN HEXISTS HSTRLEN HSCAN HRANDFIELD ZRANGE ZREVRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE ZRANGEBYLEX ZREVRANGEBYLEX ZSCORE ZMSCORE ZCARD ZCOUNT ZLEXCOUNT ZRANK ZREVRANK ZSCAN ZRANDMEMBER ZINTER ZUNION ZDIFF ZINTERCARD XLEN XRANGE XREVRANGE XREAD XINFO XPENDING GEOPOS GEODIST GEOHASH GEOSEARCH GEORADIUS_RO GEORADIUSBYMEMBER_RO SORT_RO LCS '
local letters = string.match(flags, '^[^#]*')
local function flag(letter) return string.find(letters, letter, 1, true) end
local reads, copied, timed_keys, plain = flag('r'), flag('c'), flag('d'), flag('p')
local only = flag('k') and KEYS[1]
if flag('o') then own = KEYS[1] seen[own] = true dues[own] = tonumber(due) end
-- The database, and how its keys are stored (databases.rs): the script itself has them without the marker. A command that
-- stands in the arguments has them as they are stored. `many`: there may be keys of other databases.
local database, marker = tonumber(string.match(flags, '#(%d+)') or 0), '\255\254db'
local letter, many = string.char(97 + database), flag('m') or database > 0
local prefix = marker .. letter
local function stored(key) if database > 0 or string.sub(key, 1, 4) == marker then return prefix .. key end return key end
local function own_name(key) if string.sub(key, 1, 4) == marker then return string.sub(key, 6) end return key end
local function is_own(key) return (string.sub(key, 1, 4) == marker and string.match(key, '^[a-p]', 5) or 'a') == letter end
if not plain then for i, key in ipairs(KEYS) do KEYS[i] = own_name(key) end end
local function listed(names, name) return string.find(names, ' ' .. name .. ' ', 1, true) end
local unequal = ' OBJECT LASTSAVE INFO MEMORY ACL CONFIG CLIENT LATENCY MODULE LOLWUT PUBSUB SLOWLOG FUNCTION SCRIPT '
local foreign = ' SWAPDB MOVE MIGRATE '
local expiring = ' HEXPIRE HPEXPIRE HEXPIREAT HPEXPIREAT HSETEX HGETEX MSETEX '
local timed = ' TTL PTTL EXPIRETIME PEXPIRETIME PERSIST EXPIRE PEXPIRE EXPIREAT PEXPIREAT SETEX PSETEX '
local greedy = ' SET SETNX SETEX PSETEX GETSET APPEND SETRANGE SETBIT BITFIELD BITOP INCR INCRBY INCRBYFLOAT DECR DECRBY MSET MSETNX LPUSH RPUSH LPUSHX RPUSHX LINSERT LSET LMOVE RPOPLPUSH SADD SDIFFSTORE SINTERSTORE SUNIONSTORE ZADD ZINCRBY ZDIFFSTORE ZINTERSTORE ZUNIONSTORE ZRANGESTORE HSET HMSET HSETNX HINCRBY HINCRBYFLOAT PFADD PFMERGE GEOADD GEOSEARCHSTORE XADD COPY RESTORE SORT '
local function fail(text) return {err = text} end
local function refused(name, why) return fail("ERR '" .. string.lower(name) .. "' is not supported in scripts here: " .. why) end
local function is_error(reply) return type(reply) == 'table' and reply.err end
local function exists(key) return server.call('EXISTS', key) == 1 end
-- What happens to a key that the server does not tell, or tells as something else (heard.rs).
local heard = flag('e')
local function note(name, key) if heard then server.call('PUBLISH', 'concord:note', name .. ' ' .. key) end end
-- An integer as Redis reads one: no space, no plus, no zeros in front, 64 bits.
local function whole(amount)
amount = tostring(amount or '')
local minus, digits = string.match(amount, '^(%-?)(%d+)$')
if not digits or (string.sub(digits, 1, 1) == '0' and amount ~= '0') then return nil end
if #digits > 19 or (#digits == 19 and digits > (minus == '' and '9223372036854775807' or '9223372036854775808')) then return nil end
return tonumber(amount)
end
-- The database of what the replica keeps beside the data.
local function beside(...)
server.call('SELECT', '1')
local reply = server.call(...)
server.call('SELECT', '0')
return reply
end
-- What the replica is to hear when the script has ended, also by an error.
local function tell(...)
told_count = told_count + 1
return beside('RPUSH', 'concord:told', ...)
end
local function note_due(key, at)
told_count = told_count + 1
dues_before = dues_before or {}
if dues_before[key] == nil then dues_before[key] = dues[key] or false end
dues[key] = at
local text = at and string.format('%.0f', at) or ''
server.call('SELECT', '1')
if not own then if at then server.call('HSET', 'concord:deadlines', key, text) else server.call('HDEL', 'concord:deadlines', key) end end
server.call('RPUSH', 'concord:told', 'due', key, text)
server.call('SELECT', '0')
end
-- Sets a key's deadline; one that has passed deletes the key, as in Redis.
local function set_due(key, at)
if at > now then note('expire', key) return note_due(key, at) end
if undoing then undo = undo or undoing() undo.whole(key) end
server.call('DEL', key)
if dues[key] then note_due(key, nil) end
end
-- The first time that a key is touched: if it is due it goes, but for those that only read.
local function look_at(key)
if seen[key] then return end
seen[key] = true
if copied and not reads and key ~= only then
if beside('SADD', 'concord:early', key) == 1 then tell('early', key, server.call('DUMP', key) or '') else tell('key', key, '') end
end
if not timed_keys then return end
local at = tonumber(beside('HGET', 'concord:deadlines', key))
if not at then return end
if at > now or reads then dues[key] = at return end
if undoing then undo = undo or undoing() undo.whole(key) dues[key] = at end
note('expired', key)
server.call('DEL', key)
note_due(key, nil)
end
-- The deadline that `amount` means, by the name of the command or option; nil if it is no integer.
local function absolute(name, amount)
amount = whole(amount)
if not amount then return nil end
if not listed(' PX PXAT PEXPIRE PEXPIREAT PSETEX ', name) then amount = amount * 1000 end
if not string.find(name, 'AT$') then amount = amount + now end
return amount
end
local function remaining(name, key)
if not exists(key) then return -2 end
local due = dues[key]
if not due then return -1 end
local left = due
if listed(' TTL PTTL ', name) then left = math.max(due - now, 0) end
if listed(' TTL EXPIRETIME ', name) then left = math.floor((left + 500) / 1000) end
return left
end
-- PERSIST on the server is a write that changes nothing, as it knows no times to live; but it fails
-- in EVAL_RO.
local function expire(run, name, key, amount, condition, more)
local at = amount and absolute(name, amount)
if amount and not at then return fail('ERR value is not an integer or out of range') end
condition = condition and string.upper(condition)
if more or (condition and not listed(' NX XX GT LT ', condition)) then return fail('ERR Unsupported option ' .. tostring(more or condition)) end
local reply, due = run('PERSIST', key), dues[key]
if is_error(reply) then return reply end
if not exists(key) then return 0 end
if name == 'PERSIST' then if due then note('persist', key) note_due(key, nil) end return due and 1 or 0 end
if (condition == 'NX' and due) or (condition == 'XX' and not due) or (condition == 'GT' and (not due or at <= due)) or (condition == 'LT' and due and at >= due) then return 0 end
set_due(key, at)
return 1
end
local function setex(run, name, key, amount, value, more)
if more then return run(name) end
local at = absolute(name, amount)
if not at then return fail('ERR value is not an integer or out of range') end
if tonumber(amount) <= 0 then return fail("ERR invalid expire time in '" .. string.lower(name) .. "' command") end
local reply = run('SET', key, value)
if not is_error(reply) then note('expire', key) note_due(key, at) end
return reply
end
local function set(run, key, value, ...)
local options, kept, at, keep, get, only, i = {...}, {}, nil, false, false, nil, 1
while i <= #options do
local option = string.upper(options[i])
if listed(' EX PX EXAT PXAT ', option) then
local amount = options[i + 1]
if at or keep or not amount then return fail('ERR syntax error') end
at = absolute(option, amount)
if not at then return fail('ERR value is not an integer or out of range') end
if tonumber(amount) <= 0 then return fail("ERR invalid expire time in 'set' command") end
i = i + 1
elseif option == 'KEEPTTL' then if at or keep then return fail('ERR syntax error') end keep = true
else
get = get or option == 'GET'
if listed(' NX XX ', option) then only = option end
kept[#kept + 1] = options[i]
end
i = i + 1
end
local was = get and only and exists(key)
local reply = run('SET', key, value, unpack(kept))
if is_error(reply) or (not reply and not get) then return reply end
if get and only and was ~= (only == 'XX') then return reply end
if at then set_due(key, at) elseif not keep and dues[key] then note_due(key, nil) end
return reply
end
local function getex(run, key, option, amount, more)
option = option and string.upper(option)
local at
if option == 'PERSIST' and not amount then at = false
elseif option and amount and not more and listed(' EX PX EXAT PXAT ', option) then
at = absolute(option, amount)
if not at then return fail('ERR value is not an integer or out of range') end
if tonumber(amount) <= 0 then return fail("ERR invalid expire time in 'getex' command") end
elseif option then return fail('ERR syntax error') end
local may = run('PERSIST', key)
if is_error(may) then return may end
local reply = run('GET', key)
if reply and not is_error(reply) then if at then set_due(key, at) elseif at == false and dues[key] then note('persist', key) note_due(key, nil) end end
return reply
end
-- What a server draws at random is drawn here, from members in sorted order: a hash table's is another
-- at each server, which seeds its own.
local function draw(count) seed = seed * 16807 % 2147483647 return seed % count + 1 end
local function sorted(reply) if not is_error(reply) then table.sort(reply) end return reply end
-- `count` of `all`, each once; with a negative count as many, any of them several times.
local function some(all, count)
local chosen = {}
if count < 0 then for i = 1, #all > 0 and -count or 0 do chosen[i] = all[draw(#all)] end return chosen end
for i = 1, math.min(count, #all) do
local at = i - 1 + draw(#all - i + 1)
all[i], all[at] = all[at], all[i]
chosen[i] = all[i]
end
return chosen
end
local function pairs_of(reply, first)
local fields = {}
for i = 1, #reply, 2 do fields[#fields + 1] = {reply[i], reply[i + 1]} end
if first then table.sort(fields, function(a, b) return a[1] < b[1] end) end
return fields
end
local function flat(fields)
local all = {}
for _, field in ipairs(fields) do all[#all + 1] = field[1] all[#all + 1] = field[2] end
return all
end
local function hgetall(run, ...) local reply = run('HGETALL', ...) if is_error(reply) then return reply end return flat(pairs_of(reply, true)) end
local function spop(run, key, count, more)
if more then return run('SPOP', key, count, more) end
if count and (not whole(count) or tonumber(count) < 0) then return fail('ERR value is out of range, must be positive') end
local may = run('SREM', key, '')
if is_error(may) then return may end
if may == 1 then run('SADD', key, '') end
local size = run('SCARD', key)
if not is_error(size) and size > 100000 then return refused('SPOP', 'the set has more than 100000 members') end
local all = sorted(run('SMEMBERS', key))
if is_error(all) then return all end
local chosen = some(all, count and tonumber(count) or 1)
if #chosen > 0 then note('spop', key) end
for i = 1, #chosen, 1000 do run('SREM', key, unpack(chosen, i, math.min(i + 999, #chosen))) end
if count then return chosen end
return chosen[1] or false
end
local function at_random(run, name, key, count, option, more)
if more or (option and (name == 'SRANDMEMBER' or string.upper(option) ~= (name == 'HRANDFIELD' and 'WITHVALUES' or 'WITHSCORES'))) then return fail('ERR syntax error') end
if count and not whole(count) then return fail('ERR value is not an integer or out of range') end
local all
if name == 'SRANDMEMBER' then all = sorted(run('SMEMBERS', key))
elseif name == 'HRANDFIELD' then all = run('HGETALL', key) if not is_error(all) then all = pairs_of(all, true) end
else all = run('ZRANGE', key, 0, -1, 'WITHSCORES') if not is_error(all) then all = pairs_of(all, false) end end
if is_error(all) then return all end
local chosen = some(all, count and tonumber(count) or 1)
if option then return flat(chosen) end
if name ~= 'SRANDMEMBER' then for i, field in ipairs(chosen) do chosen[i] = field[1] end end
if count then return chosen end
return chosen[1] or false
end
-- All at once: a cursor of one server means nothing to another.
local function scan(run, name, args)
local first = name == 'SCAN' and 1 or 2
if not args[first] then return run(name, unpack(args)) end
if args[first] ~= '0' then return {'0', {}} end
local i = first + 1
while args[i] do if string.upper(args[i]) == 'COUNT' and args[i + 1] and whole(args[i + 1]) and tonumber(args[i + 1]) > 0 then table.remove(args, i) table.remove(args, i) else i = i + 2 end end
args[#args + 1] = 'COUNT'
args[#args + 1] = '1000000000'
local reply = run(name, unpack(args))
if is_error(reply) then return reply end
if listed(' HSCAN ZSCAN ', name) then reply[2] = flat(pairs_of(reply[2], true)) else table.sort(reply[2]) end
return reply
end
-- An id that the server would draw is drawn from the time of the record.
local function xadd(run, args)
local i = 2
while args[i] do
local option = string.upper(args[i])
if listed(' MAXLEN MINID ', option) then i = i + 2 if args[i - 1] == '~' or args[i - 1] == '=' then i = i + 1 end
elseif option == 'LIMIT' then i = i + 2
elseif listed(' NOMKSTREAM KEEPREF DELREF ACKED ', option) then i = i + 1
else break end
end
if args[i] == '*' then
local ms, info = now, server.pcall('XINFO', 'STREAM', args[1])
if not is_error(info) then
for at = 1, #info, 2 do if info[at] == 'last-generated-id' then ms = math.max(ms, tonumber(string.match(info[at + 1], '^%d+'))) end end
end
args[i] = string.format('%.0f-*', ms)
end
return run('XADD', unpack(args))
end
-- Consumer groups: the server stores when an entry was delivered by its own clock, and takes no time that is to
-- come. Deliveries are claimed again, with the time of the record, less `past` ms so that it is never to come, in
-- steps of `step` ms: what is read back as the time that has passed by the server's clock is exact again.
local past, step = 100000000000, 32
local function stamp(at) return string.format('%.0f', math.ceil((at - past) / step) * step) end
local function server_ms() local time = server.call('TIME') return time[1] * 1000 + math.floor(time[2] / 1000) end
-- Entries that were delivered, up to 500 of them: id, consumer, ms since then, count of deliveries.
local function delivered(...)
while true do
local before, found = server_ms(), server.pcall('XPENDING', ...)
if is_error(found) then return found end
if server_ms() - before < step / 2 - 1 then
for _, entry in ipairs(found) do
local at = math.floor((before - entry[3] + step / 2) / step) * step + past
entry[3] = math.max(now - at, 0)
end
return found
end
end
end
local function claim(run, key, group, consumer, ids, at, ...)
for i = 1, #ids, 1000 do
local args = {key, group, consumer, '0', unpack(ids, i, math.min(i + 999, #ids))}
for _, option in ipairs({'TIME', stamp(at), ...}) do args[#args + 1] = option end
local reply = run('XCLAIM', unpack(args))
if is_error(reply) or #ids <= 1000 then return reply end
end
end
local function xreadgroup(run, args)
local group, consumer, at, no_ack = nil, nil, 1, false
while args[at] and string.upper(args[at]) ~= 'STREAMS' do
local option = string.upper(args[at])
if option == 'GROUP' then group, consumer, at = args[at + 1], args[at + 2], at + 3
elseif option == 'BLOCK' and args[at + 1] and not whole(args[at + 1]) then return fail('ERR timeout is not an integer or out of range')
elseif option == 'COUNT' or option == 'BLOCK' then at = at + 2
else no_ack = no_ack or option == 'NOACK' at = at + 1 end
end
if flag('3') then server.setresp(3) end
local reply = run('XREADGROUP', unpack(args))
server.setresp(2)
if type(reply) ~= 'table' or is_error(reply) then return reply end
local count = (#args - at) / 2
local of = {}
for i = 1, count do of[args[at + i]] = args[at + count + i] end
local function stamped(key, entries)
if no_ack and of[key] == '>' then return end
local ids = {}
for _, entry in ipairs(entries) do if entry[2] then ids[#ids + 1] = entry[1] end end
if of[key] == '>' then claim(run, key, group, consumer, ids, now, 'RETRYCOUNT', '1', 'JUSTID') else claim(run, key, group, consumer, ids, now, 'JUSTID') end
end
if reply.map then for key, entries in pairs(reply.map) do stamped(key, entries) end
else for _, stream in ipairs(reply) do stamped(stream[1], stream[2]) end end
return reply
end
local function xclaim(run, args)
local key, group, consumer, least = args[1], args[2], args[3], whole(args[4])
if #args < 5 or not least then return run('XCLAIM', unpack(args)) end
local ids, options, at, i = {}, {}, now, 5
while args[i] and string.find(args[i], '^%d+%-?%d*$') do
local id = args[i]
local found = least > 0 and delivered(key, group, id, id, '1') or {}
if is_error(found) then return found end
if not found[1] or found[1][3] >= least then ids[#ids + 1] = id end
i = i + 1
end
if i == 5 then return run('XCLAIM', unpack(args)) end
while args[i] do
local option = string.upper(args[i])
local amount = args[i + 1] and whole(args[i + 1])
if option == 'TIME' and amount then at = math.min(amount, now) i = i + 2
elseif option == 'IDLE' and amount then at = now - amount i = i + 2
elseif listed(' RETRYCOUNT LASTID ', option) then options[#options + 1] = option options[#options + 1] = args[i + 1] i = i + 2
else options[#options + 1] = args[i] i = i + 1 end
end
if #ids == 0 then ids[1] = '0-0' for n = #options, 1, -1 do if string.upper(options[n]) == 'FORCE' then table.remove(options, n) end end end
if #ids > 1000 then return refused('XCLAIM', 'more than 1000 ids') end
return claim(run, key, group, consumer, ids, at, unpack(options))
end
local function xautoclaim(run, args)
local key, group, consumer, least, start = args[1], args[2], args[3], whole(args[4]), args[5]
local count, just, i = 100, false, 6
while args[i] do
local option = string.upper(args[i])
if option == 'JUSTID' then just = true i = i + 1
elseif option == 'COUNT' and whole(args[i + 1] or '') and tonumber(args[i + 1]) > 0 and (#args[i + 1] < 18 or #args[i + 1] == 18 and args[i + 1] <= '576460752303423487') then count = tonumber(args[i + 1]) i = i + 2
else return run('XAUTOCLAIM', unpack(args)) end
end
if not start or not least then return run('XAUTOCLAIM', unpack(args)) end
-- An id that is none is told of first, as by the server.
if not (string.find(start, '^%(?%d+$') or string.find(start, '^%(?%d+%-%d+$') or start == '-' or start == '+') then return run('XAUTOCLAIM', unpack(args)) end
-- Claims nothing, and fails where it would.
local may = run('XCLAIM', key, group, consumer, '0', '0-0')
if is_error(may) then return may end
local ids, gone, attempts, next_id = {}, {}, count * 10, '0-0'
local from = start
while attempts > 0 and count > 0 and next_id == '0-0' do
local found = delivered(key, group, from, '+', '500')
if is_error(found) then return found end
for _, entry in ipairs(found) do
if attempts == 0 or count == 0 then next_id = entry[1] break end
attempts = attempts - 1
if entry[3] >= least then
if #run('XRANGE', key, entry[1], entry[1]) == 0 then run('XACK', key, group, entry[1]) gone[#gone + 1] = entry[1]
else ids[#ids + 1] = entry[1] end
count = count - 1
end
end
if #found < 500 then break end
if next_id == '0-0' then from = '(' .. found[#found][1] if attempts == 0 or count == 0 then local more = delivered(key, group, from, '+', '1') if more[1] then next_id = more[1][1] end end end
end
local claimed = {}
for i = 1, #ids, 1000 do
local some_ids = {unpack(ids, i, math.min(i + 999, #ids))}
local reply
if just then reply = claim(run, key, group, consumer, some_ids, now, 'JUSTID') else reply = claim(run, key, group, consumer, some_ids, now) end
for _, entry in ipairs(reply) do claimed[#claimed + 1] = entry end
end
return {next_id, claimed, gone}
end
local function xpending(run, args)
if #args < 5 then return run('XPENDING', unpack(args)) end
local key, group, least, at = args[1], args[2], 0, 3
if string.upper(args[3]) == 'IDLE' then least, at = whole(args[4]), 5 end
local start, stop, count, consumer = args[at], args[at + 1], args[at + 2] and whole(args[at + 2]), args[at + 3]
if not least or not start or not stop or not count or count < 0 or args[at + 4] then return run('XPENDING', unpack(args)) end
local all = {}
while true do
local found
if consumer then found = delivered(key, group, start, stop, '500', consumer) else found = delivered(key, group, start, stop, '500') end
if is_error(found) then return found end
for _, entry in ipairs(found) do if #all < count and entry[3] >= least then all[#all + 1] = entry end end
if #found < 500 or #all >= count then return all end
start = '(' .. found[500][1]
end
end
-- A command that waits, beside a script in MULTI: it does not. What it is then, its arguments, and an error.
local function at_once(name, args)
local is_first = listed(' BLMPOP BZMPOP ', name)
if #args == 0 or not (is_first or listed(' BLPOP BRPOP BLMOVE BRPOPLPUSH BZPOPMIN BZPOPMAX ', name)) then return name, args end
local timeout = tonumber(table.remove(args, is_first and 1 or #args))
if not timeout then return name, args, 'ERR timeout is not a float or out of range' end
if timeout < 0 then return name, args, 'ERR timeout is negative' end
if not listed(' BLPOP BRPOP BZPOPMIN BZPOPMAX ', name) then name = string.sub(name, 2) end
return name, args
end
-- BLPOP and its kin at once.
local function pop_first(run, name, keys)
for _, key in ipairs(keys) do
local reply = run(string.sub(name, 2), key)
if is_error(reply) then return reply end
if type(reply) ~= 'table' then if reply then return {key, reply} end
elseif reply[1] then return {key, reply[1], reply[2]} end
end
return false
end
-- Overwrites or moves: the key that is written is a new one.
local function replaced(name, args)
if listed(' GETSET SINTERSTORE SUNIONSTORE SDIFFSTORE ZINTERSTORE ZUNIONSTORE ZDIFFSTORE ZRANGESTORE GEOSEARCHSTORE RESTORE ', name) then return {args[1]} end
if name == 'BITOP' then return {args[2]} end
if name == 'MSET' then local all = {} for i = 1, #args, 2 do all[#all + 1] = args[i] end return all end
if name == 'SORT' then for i = 2, #args - 1 do if string.upper(args[i]) == 'STORE' then return {args[i + 1]} end end end
if listed(' GEORADIUS GEORADIUSBYMEMBER ', name) then for i = 5, #args - 1 do if listed(' STORE STOREDIST ', string.upper(args[i])) then return {args[i + 1]} end end end
return {}
end
-- The keys of the database, as they are stored.
local function own_keys()
if database > 0 then return server.call('KEYS', prefix .. '*') end
local all, own_ones = server.call('KEYS', '*'), {}
for _, key in ipairs(all) do if is_own(key) then own_ones[#own_ones + 1] = key end end
return own_ones
end
local function size_of_database()
if database > 0 then return #own_keys() end
return server.call('DBSIZE') - #server.call('KEYS', marker .. '[b-p]*')
end
local function settle(name, args, keys, reply)
if name == 'RENAME' or (reply == 1 and listed(' RENAMENX COPY ', name)) then
local due = dues[args[1]]
if name ~= 'COPY' and args[1] ~= args[2] and due then note_due(args[1], nil) end
if args[1] ~= args[2] and due ~= dues[args[2]] then note_due(args[2], due) end
return
end
for _, key in ipairs(replaced(name, args)) do if dues[key] then note_due(key, nil) end end
for _, key in ipairs(keys) do if dues[key] and not exists(key) then note_due(key, nil) end end
end
local function flush(run, name, args)
is_lost = true
if name == 'FLUSHDB' and many then
if #args > 1 or (args[1] and not listed(' SYNC ASYNC ', string.upper(args[1]))) then return fail('ERR syntax error') end
if reads then return fail('ERR Write commands are not allowed from read-only scripts.') end
local all = own_keys()
note('flush', '')
for i = 1, #all, 1000 do
run('UNLINK', unpack(all, i, math.min(i + 999, #all)))
beside('HDEL', 'concord:deadlines', unpack(all, i, math.min(i + 999, #all)))
end
for _, key in ipairs(all) do dues[key] = nil end
note('flushed', '')
tell('flush', tostring(database), '')
return {ok = 'OK'}
end
local reply = run('FLUSHDB', unpack(args))
if is_error(reply) then return reply end
dues, timed_keys = {}, false
beside('DEL', 'concord:deadlines')
tell('flush', '', '')
return reply
end
-- PUBLISHED_VALUE_BYTES_MAX and PUBLISHED_BYTES_MAX (script.rs of the memory engine).
local published = 0
local function publish(name, args)
if #args ~= 2 then return fail('ERR Wrong number of args calling Redis command from script') end
if reads then return fail('ERR Write commands are not allowed from read-only scripts.') end
if #args[1] > 1048576 or #args[2] > 1048576 then return fail("ERR value is larger than 1 MiB (Concord's limit)") end
if published + #args[1] + #args[2] > 4194304 then return fail("ERR a script publishes more than 4 MiB (Concord's limit)") end
published = published + #args[1] + #args[2]
tell(string.lower(name), args[1], args[2])
return 0
end
local function execute(run, name, args)
local key, count = args[1], #args
-- A string that is longer than any reply could be read by nobody (STRING_BYTES_MAX).
for i = 1, count do if type(args[i]) == 'string' and #args[i] > 67108800 then return {err = "ERR string exceeds maximum allowed size (Concord's limit is 64 MiB)"} end end
if listed(timed, name) then
local wanted = listed(' SETEX PSETEX ', name) and 3 or (listed(' EXPIRE PEXPIRE EXPIREAT PEXPIREAT ', name) and 2 or 1)
if count < wanted or (wanted == 1 and count > 1) then return run(name) end
if wanted == 3 then return setex(run, name, key, args[2], args[3], args[4]) end
if wanted == 2 or name == 'PERSIST' then return expire(run, name, key, args[2], args[3], args[4]) end
return remaining(name, key)
end
if name == 'SET' and count > 1 then return set(run, unpack(args)) end
if name == 'GETEX' and count > 0 then return getex(run, unpack(args)) end
if name == 'TIME' then return {string.format('%d', math.floor(now / 1000)), string.format('%d', now % 1000 * 1000)} end
if name == 'SELECT' then if key == tostring(database) and count == 1 then return {ok = 'OK'} end return fail('ERR a script stays in the database of its client (Concord does not support another one in SELECT)') end
if listed(' PUBLISH SPUBLISH ', name) then return publish(name, args) end
if listed(' FLUSHALL FLUSHDB ', name) then return flush(run, name, args) end
if name == 'RESTORE' and count > 2 and args[2] ~= '0' then return refused(name, 'with a time to live, use EXPIRE afterwards') end
if name == 'COPY' and count > 2 then for i = 3, count do if string.upper(args[i]) == 'DB' then return refused(name, 'a script stays in the database of its client') end end end
if name == 'DBSIZE' and count == 0 and many then return size_of_database() end
if listed(' SMEMBERS HKEYS HVALS SUNION SINTER SDIFF KEYS ', name) then return sorted(run(name, unpack(args))) end
if name == 'HGETALL' then return hgetall(run, unpack(args)) end
if name == 'SPOP' and count > 0 then return spop(run, unpack(args)) end
if listed(' SRANDMEMBER HRANDFIELD ZRANDMEMBER ', name) and count > 0 then return at_random(run, name, unpack(args)) end
if name == 'RANDOMKEY' and count == 0 then return some(sorted(own_keys()), 1)[1] or false end
if listed(' SCAN SSCAN HSCAN ZSCAN ', name) then return scan(run, name, args) end
if name == 'XADD' then return xadd(run, args) end
if name == 'XREADGROUP' then return xreadgroup(run, args) end
if name == 'XCLAIM' then return xclaim(run, args) end
if name == 'XAUTOCLAIM' then return xautoclaim(run, args) end
if name == 'XPENDING' then return xpending(run, args) end
if plain and listed(' BLPOP BRPOP BZPOPMIN BZPOPMAX ', name) then return pop_first(run, name, args) end
return run(name, unpack(args))
end
-- Commands without keys, and where the keys of others stand whose places are always the same.
local keyless = ' PING ECHO TIME SELECT PUBLISH SPUBLISH FLUSHALL FLUSHDB DBSIZE KEYS SCAN RANDOMKEY COMMAND WAIT '
local function span(name, args)
if listed(' DEL UNLINK EXISTS TOUCH MGET PFCOUNT PFMERGE SINTER SUNION SDIFF SINTERSTORE SUNIONSTORE SDIFFSTORE ', name) or plain and listed(' BLPOP BRPOP BZPOPMIN BZPOPMAX ', name) then return 1, #args, 1 end
if listed(' MSET MSETNX ', name) then return 1, #args, 2 end
if listed(' RPOPLPUSH SMOVE LCS LMOVE RENAME RENAMENX COPY ZRANGESTORE GEOSEARCHSTORE ', name) then return 1, 2, 1 end
if name == 'BITOP' then return 2, #args, 1 end
if listed(' XINFO XGROUP ', name) then return 2, 2, 1 end
return 1, 1, 1
end
-- Puts the keys and patterns of a call as they are stored in the place of its own.
local function localize(name, args)
local function put(first, last, step) for i = first, math.min(last, #args), step or 1 do args[i] = stored(args[i]) end end
local function counted(at) local count = whole(args[at]) if count and count > 0 and at + count <= #args then put(at + 1, at + count) end end
if name == 'KEYS' then return put(1, 1) end
if name == 'SCAN' then
for i = 2, #args - 1, 2 do if string.upper(args[i]) == 'MATCH' then put(i + 1, i + 1) end end
if database > 0 and args[1] then table.insert(args, 2, 'MATCH') table.insert(args, 3, prefix .. '*') end
return
end
if listed(keyless, name) then return end
if listed(' LMPOP ZMPOP SINTERCARD ZINTERCARD ZINTER ZUNION ZDIFF ', name) then return counted(1) end
if listed(' BLMPOP BZMPOP ', name) then return counted(2) end
if listed(' ZINTERSTORE ZUNIONSTORE ZDIFFSTORE ', name) then put(1, 1) return counted(2) end
if listed(' XREAD XREADGROUP ', name) then
local i = 1
while args[i] and string.upper(args[i]) ~= 'STREAMS' do
local option = string.upper(args[i])
i = i + (option == 'GROUP' and 3 or listed(' COUNT BLOCK ', option) and 2 or 1)
end
return put(i + 1, i + math.ceil((#args - i) / 2))
end
if listed(' SORT SORT_RO ', name) then
put(1, 1)
local i = 2
while args[i] do
local option = string.upper(args[i])
if option == 'LIMIT' then i = i + 2
elseif listed(' BY GET STORE ', option) then
i = i + 1
if args[i] and (option == 'STORE' or string.find(args[i], '*', 1, true)) then put(i, i) end
end
i = i + 1
end
return
end
if listed(' GEORADIUS GEORADIUSBYMEMBER ', name) then
put(1, 1)
for i = 5, #args - 1 do if listed(' STORE STOREDIST ', string.upper(args[i])) then put(i + 1, i + 1) end end
return
end
return put(span(name, args))
end
-- The reply with the names that the script has for keys.
local function shown(name, reply)
if is_error(reply) then
-- The byte behind a prefix is the key's own: the key may begin like a prefix.
if string.find(reply.err, prefix, 1, true) then reply.err = string.gsub(reply.err, prefix .. '(.?)', '%1') end
return reply
end
if name == 'RANDOMKEY' and reply then return own_name(reply) end
if type(reply) ~= 'table' then return reply end
if name == 'KEYS' or name == 'SCAN' then
local names, all = {}, name == 'SCAN' and reply[2] or reply
for _, key in ipairs(all) do if is_own(key) then names[#names + 1] = own_name(key) end end
if name == 'KEYS' then return names end
reply[2] = names
elseif listed(' LMPOP ZMPOP BLMPOP BZMPOP ', name) then if type(reply[1]) == 'string' then reply[1] = own_name(reply[1]) end
elseif listed(' XREAD XREADGROUP ', name) then
if reply.map then
local streams = {}
for key, entries in pairs(reply.map) do streams[own_name(key)] = entries end
reply.map = streams
else for _, stream in ipairs(reply) do stream[1] = own_name(stream[1]) end end
end
return reply
end
-- The keys of a call. Most commands have theirs first; where they are hard to find, the server says where.
local function keys_of(name, args)
if listed(keyless, name) then return {} end
local keys = {}
if listed(' LMPOP ZMPOP BLMPOP BZMPOP XREAD XREADGROUP SORT SORT_RO GEORADIUS GEORADIUSBYMEMBER ZINTER ZUNION ZDIFF ZINTERSTORE ZUNIONSTORE ZDIFFSTORE ZINTERCARD SINTERCARD ', name) then
local found = server.pcall('COMMAND', 'GETKEYS', name, unpack(args))
if is_error(found) then return keys end
return found
end
local first, last, step = span(name, args)
for i = first, math.min(last, #args), step do keys[#keys + 1] = args[i] end
return keys
end
local lengths = {string = 'STRLEN', list = 'LLEN', set = 'SCARD', hash = 'HLEN', zset = 'ZCARD', stream = 'XLEN'}
-- (undo.lua stands here.)
local function dispatch(run, ...)
local name = ...
if type(name) ~= 'string' then return run(...) end
local upper, args = string.upper(name), {select(2, ...)}
-- What a key takes of a server's memory is not the same at each: here it goes by how many elements it has.
if upper == 'MEMORY' and #args >= 2 and type(args[1]) == 'string' and string.upper(args[1]) == 'USAGE' then
local kind = dispatch(run, 'TYPE', args[2])
if is_error(kind) then return kind end
local length = lengths[kind.ok]
if not length then return false end
local count = dispatch(run, length, args[2])
if is_error(count) then return count end
return 64 + #tostring(args[2]) + (length == 'STRLEN' and count or 64 * count)
end
if listed(unequal, upper) then return refused(name, 'replicas would differ') end
if listed(foreign, upper) then return refused(name, 'a script stays in the database of its client') end
if listed(expiring, upper) then return refused(name, 'times to live are set by EXPIRE, SETEX and SET') end
if full ~= '' and listed(greedy, upper) then return fail("OOM command not allowed when used memory > 'maxmemory'.") end
local is_local = not plain and database > 0
for i = 1, #args do
if type(args[i]) == 'number' then args[i] = string.format('%.17g', args[i]) elseif type(args[i]) ~= 'string' then return run(...) end
if not plain and string.byte(args[i]) == 255 then is_local = true end
end
if not plain and listed(' XREAD XREADGROUP ', upper) then
for i = 1, #args do
local option = string.upper(args[i])
if option == 'STREAMS' then break end
if option == 'BLOCK' then return fail('ERR ' .. name .. ' command is not allowed with BLOCK option from scripts') end
end
end
if is_local then localize(upper, args) end
if plain then
local wrong
upper, args, wrong = at_once(upper, args)
if wrong then return fail(wrong) end
end
local keys = keys_of(upper, args)
if only then
if #keys == 0 and listed(' FLUSHALL FLUSHDB DBSIZE KEYS SCAN RANDOMKEY ', upper) or listed(' SORT SORT_RO ', upper) and #args > 1 then keys = {false} end
for _, key in ipairs(keys) do if key ~= only then return fail('ERR Script attempted to access a non local key in a cluster node') end end
end
if not own then for _, key in ipairs(keys) do look_at(key) end end
if copied and not reads and not only and (listed(' DBSIZE KEYS SCAN RANDOMKEY ', upper) or listed(' SORT SORT_RO ', upper) and #args > 1) then tell('all', '', '') end
local executes = run
if undoing and not listed(harmless, upper) then undo = undo or undoing() executes = undo.begin(run, keys) end
local reply = execute(executes, upper, args)
if not reads and not is_error(reply) and not listed(timed, upper) and next(dues) then settle(upper, args, keys, reply) end
if is_local or (not plain and listed(' KEYS SCAN RANDOMKEY ', upper)) then return shown(upper, reply) end
return reply
end
local function call(...)
local reply = dispatch(server.pcall, ...)
if is_error(reply) then error(reply) end
return reply
end
local function try(...) return dispatch(server.pcall, ...) end
-- Tables that a script cannot change, and what it gets for their metatables.
local function frozen() error('Attempt to modify a readonly table', 2) end
local metatable = setmetatable({}, {__newindex = frozen, __metatable = false})
local own_redis = setmetatable({call = call, pcall = try, setresp = false}, {__index = server})
-- (acl.lua stands here, if the user who runs the script may not do everything.)
local set_metatable, load_text, load_parts = setmetatable, _G.loadstring, _G.load
local redis, loadstring, load, globals = setmetatable({}, {__index = own_redis, __newindex = frozen, __metatable = metatable})
local function setmetatable(...)
local of = ...
if of == redis or of == globals or of == metatable then error('Attempt to modify a readonly table', 2) end
return set_metatable(...)
end
-- Objects are numbered in the order in which they are shown, in the place of their addresses.
local texts, text_count, real_tostring = {}, 0, tostring
local function shown_as(...)
local value = ...
local kind = type(value)
if not listed(' table function thread ', kind) then return real_tostring(...) end
local meta = kind == 'table' and getmetatable(value)
if type(meta) == 'table' and rawget(meta, '__tostring') then return real_tostring(value) end
if not texts[value] then text_count = text_count + 1 texts[value] = string.format('%s: 0x%012x', kind, text_count) end
return texts[value]
end
-- What the collector has done is another thing at each server.
local function collected() return 0 end
-- A loaded chunk would have the server's globals: it is loaded once more with those of a script as locals. The
-- first time is for the errors, and so that no text closes the function around it.
local function inner(text, name)
local outer, wrong = load_text('local redis, loadstring, load, setmetatable, tostring, collectgarbage, gcinfo, _G = ... return function(...) ' .. text .. '\nend', name)
if not outer then return nil, wrong end
return outer(redis, loadstring, load, setmetatable, shown_as, collected, collected, globals)
end
loadstring = function(text, name)
local may, wrong = load_text(text, name or text)
if not may then return nil, wrong end
return inner(text, name or text)
end
load = function(read, name)
local parts = {}
local may, wrong = load_parts(function() local part = read() parts[#parts + 1] = part return part end, name or '=(load)')
if not may then return nil, wrong end
return inner(table.concat(parts), name or '=(load)')
end
local own_globals = set_metatable({redis = redis, loadstring = loadstring, load = load, setmetatable = setmetatable, tostring = shown_as, collectgarbage = collected, gcinfo = collected}, {__index = _G})
globals = set_metatable({}, {__index = own_globals, __newindex = frozen, __metatable = metatable})
own_globals._G = globals
-- redis-server 7.0 ends by an error that is a table without a text: at the end of a script it gets one.
local function handler(wrong)
if type(wrong) ~= 'table' then return {err = 'ERR ' .. (listed(' function thread userdata ', type(wrong)) and 'unknown error' or tostring(wrong))} end
local found, text = pcall(function() return wrong.err end)
if type(text) == 'number' then text = tostring(text) end
return {err = found and type(text) == 'string' and text or 'ERR unknown error'}
end
-- What a script returns nests 128 deep at most, as with the memory engine: a replica reads no deeper reply.
local function nested(value)
if rawget(value, 'err') or rawget(value, 'ok') or rawget(value, 'double') then return {} end
local both = rawget(value, 'map') or rawget(value, 'set')
if type(both) ~= 'table' then
local all, i = {}, 1
while rawget(value, i) ~= nil do if type(rawget(value, i)) == 'table' then all[#all + 1] = rawget(value, i) end i = i + 1 end
return all
end
local all = {}
for key, own in next, both do
if type(key) == 'table' then all[#all + 1] = key end
if type(own) == 'table' then all[#all + 1] = own end
end
return all
end
local function is_deep(value, depth)
if depth > 128 then return true end
for _, inner in ipairs(nested(value)) do if is_deep(inner, depth + 1) then return true end end
return false
end
local function cut(value, depth)
if type(value) ~= 'table' then return value end
if depth > 128 then return {err = 'ERR reached lua stack limit'} end
local copy = {}
for key, own in next, value do copy[cut(key, depth + 1)] = cut(own, depth + 1) end
return copy
end
local function guard(main)
local went, value = xpcall(main, handler)
if went and type(value) == 'table' and is_deep(value, 1) then value = cut(value, 1) end
if undoing and not undo and (type(value) == 'table' or type(value) == 'string' and #value > 67000000) then undo = undoing() end
if undo then value = undo.finish(went, value) end
if not went then error(value, 0) end
return value
end
return redis, loadstring, load, setmetatable, shown_as, collected, collected, globals, guard
end)(table.remove(ARGV), table.remove(ARGV), table.remove(ARGV), table.remove(ARGV), table.remove(ARGV))
return concord_guard(function(...)
