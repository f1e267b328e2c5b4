-- Within the prologue, in front of a script whose user may not do everything (rights.rs): each command of the script is looked
-- at, with its keys as the script names them, before it is executed. Whole-line comments only. The rules are the last ARGV:
-- a line of commands that have subcommands, one of what commands do to their keys, and four for each set of rules.
local rules, sets = {}, {}
for line in string.gmatch(table.remove(ARGV), '([^\n]*)\n') do rules[#rules + 1] = line end
local containers, accesses = rules[1], rules[2]
for i = 3, #rules, 4 do sets[#sets + 1] = {has = string.sub(rules[i], 1, 1) == '+', names = rules[i], first = rules[i + 1], keys = rules[i + 2], channels = rules[i + 3]} end
-- As glob.rs has it, up to its order of cases. The position behind what stands for a byte; nil if nothing does.
local function class_at(pattern, at, byte)
local negated, found = string.byte(pattern, at) == 94, false
if negated then at = at + 1 end
while at <= #pattern do
local first, second, third = string.byte(pattern, at, at + 2)
if first == 92 and second then found = found or second == byte at = at + 2
elseif first == 93 then at = at + 1 break
elseif second == 45 and third then found = found or (byte >= math.min(first, third) and byte <= math.max(first, third)) at = at + 3
else found = found or first == byte at = at + 1 end
end
if found ~= negated then return at end
return nil
end
local function one(pattern, at, byte)
local first, second = string.byte(pattern, at, at + 1)
if not first then return nil end
if first == 63 then return at + 1 end
if first == 91 then return class_at(pattern, at + 1, byte) end
if first == 92 and second then return second == byte and at + 2 or nil end
return first == byte and at + 1 or nil
end
local function matches(pattern, text)
local p, t, star, taken = 1, 1, nil, nil
while t <= #text do
if string.byte(pattern, p) == 42 then p = p + 1 star, taken = p, t
else
local behind = one(pattern, p, string.byte(text, t))
if behind then p, t = behind, t + 1
elseif star then taken = taken + 1 p, t = star, taken
else return false end
end
end
return string.find(pattern, '^%**$', p) ~= nil
end
local function id_of(name, args)
local id = string.lower(name)
if listed(containers, id) and type(args[1]) == 'string' and string.find(args[1], '^[%w_%-]+$') then return id .. '|' .. string.lower(args[1]) end
return id
end
local function access_of(id, ordinal, args)
if id == 'set' then
for i = 3, #args do if string.upper(args[i]) == 'GET' then return 'b' end end
return 'w'
end
local at = string.find(accesses, ' ' .. id .. '=', 1, true)
if not at then return 'r' end
at = at + #id + (ordinal == 1 and 2 or 3)
return string.sub(accesses, at, at)
end
-- Servers before 7.0 name the destination of these last.
local function named(upper, args)
if listed(' ZINTERSTORE ZUNIONSTORE ZDIFFSTORE ', upper) then
local count, keys = whole(args[2]), {args[1]}
if not count or count < 1 or count > #args - 2 then return {} end
for i = 3, 2 + count do keys[#keys + 1] = args[i] end
return keys
end
local found = server.pcall('COMMAND', 'GETKEYS', upper, unpack(args))
if is_error(found) then return {} end
return found
end
local function may_key(own, key, asked)
if own.keys == '*' then return true end
for word in string.gmatch(own.keys, '[^ ]+') do
local access = string.sub(word, 1, 1)
if (access == 'b' or asked == 'n' or access == asked) and matches(string.sub(word, 2), key) then return true end
end
return false
end
local function may_channel(own, channel)
if own.channels == '*' then return true end
for word in string.gmatch(own.channels, '[^ ]+') do if matches(string.sub(word, 2), channel) then return true end end
return false
end
local function may_command(own, id, args)
if (listed(own.names, id) ~= nil) == own.has then return true end
local arg = args[1]
return arg and not string.find(arg, ' ', 1, true) and listed(own.first, id .. '|' .. string.lower(arg))
end
-- What is denied: 1 the command, 2 a key, 3 the channel; nil if nothing is. By the set of rules that comes nearest.
local function denied(upper, args)
local id, keys, nearest = id_of(upper, args), named(upper, args), 1
for _, own in ipairs(sets) do
local level = may_command(own, id, args) and 0 or 1
if level == 0 then for ordinal, key in ipairs(keys) do if not may_key(own, key, access_of(id, ordinal, args)) then level = 2 break end end end
if level == 0 and listed(' PUBLISH SPUBLISH ', upper) and args[1] and not may_channel(own, args[1]) then level = 3 end
if level == 0 then return nil end
nearest = math.max(nearest, level)
end
return nearest
end
-- The option by which a SORT looks at keys that it does not name, if not all keys are allowed.
local function unnamed(upper, args)
if not listed(' SORT SORT_RO ', upper) then return nil end
local option
for i = 2, #args - 1 do
local word = string.upper(args[i])
if listed(' BY GET ', word) and string.find(args[i + 1], '*', 1, true) and option ~= 'BY' then option = word end
end
for _, own in ipairs(sets) do if own.keys == '*' and may_command(own, id_of(upper, args), args) then return nil end end
return option
end
local function info_of(upper, args)
local info = server.pcall('COMMAND', 'INFO', id_of(upper, args))
return not is_error(info) and info[1]
end
local words = {'run this command or subcommand', 'access at least one of the keys mentioned in the command arguments', 'publish to the channel mentioned in the command'}
-- The error for what is denied; what is wrong with a command is said first.
local function refusal(upper, args, level)
local info = info_of(upper, args)
if not info then return fail('ERR Unknown Redis command called from script') end
local wanted, given = info[2], #args + 1
if given ~= wanted and (wanted > 0 or given < -wanted) then return fail('ERR Wrong number of args calling Redis command from script') end
for _, mark in ipairs(info[3]) do if mark == 'noscript' or type(mark) == 'table' and mark.ok == 'noscript' then return fail('ERR This Redis command is not allowed from script') end end
return fail("ERR The user executing the script can't " .. words[level])
end
-- The arguments as texts; nil if one cannot be one, which the server says.
local function texts_of(...)
local all = {...}
for i = 1, select('#', ...) do
local value = all[i]
if type(value) == 'number' then value = string.format('%.17g', value) end
if type(value) ~= 'string' then return nil end
all[i] = value
end
return all
end
-- What `dispatch` calls by itself is not looked at. Every error between the beginning of that and its end is caught, also that
-- of a stack which is full: so it begins within what is called.
local unchecked, is_inside = dispatch, false
local function inside(run, name, args)
is_inside = true
return unchecked(run, name, unpack(args))
end
dispatch = function(run, ...)
if is_inside then return unchecked(run, ...) end
local args = texts_of(...)
if not args or #args == 0 then return run(...) end
local name = table.remove(args, 1)
if not string.find(name, '^[%w_.%-]+$') then return fail('ERR Unknown Redis command called from script') end
local upper = string.upper(name)
local level = denied(upper, args)
if level then return refusal(upper, args, level) end
local option = unnamed(upper, args)
if option then return fail('ERR ' .. option .. ' option of SORT denied due to insufficient ACL permissions.') end
local went, reply = pcall(inside, run, name, args)
is_inside = false
if not went then error(reply, 0) end
return reply
end
own_redis.acl_check_cmd = function(...)
if select('#', ...) == 0 then error(fail('ERR Please specify at least one argument for this redis lib call')) end
local args = texts_of(...)
if not args then error(fail('ERR Lua redis lib command arguments must be strings or integers')) end
local name = table.remove(args, 1)
local upper = string.upper(name)
if not string.find(name, '^[%w_.%-]+$') or not info_of(upper, args) then error(fail('ERR Invalid command passed to redis.acl_check_cmd()')) end
return denied(upper, args) == nil
end
