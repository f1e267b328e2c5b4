-- What a script finds around it: Redis 7.0's globals, none of which may be changed, and a few
-- functions of Lua's that must do the same at every replica. Called with the natives (Rust), once for
-- each interpreter; answers what scripts see, what runs one, what loads a library, and what says whether nothing is left of those
-- that ran.
local native, globals = ...
local error, ipairs, rawget, select, tonumber, type, unpack = error, ipairs, native.rawget, select, tonumber, type, unpack
local raw_next, raw_pairs, raw_pcall, raw_xpcall = native.any_next, pairs, native.pcall, native.xpcall
local raw_rawset, raw_setmetatable, raw_tostring = native.rawset, setmetatable, tostring
local position, is_over = native.position, native.is_over
local STOPPED = native.stopped

-- Errors begin with the place in the script, as those of C functions do.
local function fail(message) error(position() .. message, 0) end
-- Tables that may be read alone: a script sees an empty one in front of each. Those of a library are forgotten with it.
local behind = raw_setmetatable({}, {__mode = 'k'})
-- Those of them that all scripts see.
local common = {}
local function read_only_error() fail('Attempt to modify a readonly table') end
-- In the place of the metatable of each.
local hidden = {}
local locked = raw_setmetatable({}, {__newindex = read_only_error, __metatable = hidden})
behind[locked], behind[hidden] = locked, hidden
common[locked], common[hidden] = true, true
local function read_only(real, missing, is_own)
  if missing then raw_setmetatable(real, {__index = missing}) end
  local front = raw_setmetatable({}, {__index = real, __newindex = read_only_error, __metatable = locked})
  behind[front] = real
  if not is_own then common[front] = true end
  return front
end

local function expect_table(t, name)
  if type(t) ~= 'table' then
    local got = t == nil and 'no value' or type(t)
    fail("bad argument #1 to '" .. name .. "' (table expected, got " .. got .. ')')
  end
end

-- The order of keys that are objects hangs on their addresses, which differ between replicas.
local ordered = {string = true, number = true, boolean = true}
ordered['nil'] = true
local function next_in_order(t, key)
  local k, v = raw_next(t, key)
  if not ordered[type(k)] then fail('a table whose keys are tables or functions has no order') end
  return k, v
end
globals.next = function(t, key)
  expect_table(t, 'next')
  return next_in_order(behind[t] or t, key)
end
local function check_order(t)
  for k in raw_next, t do
    if not ordered[type(k)] then fail('a table whose keys are tables or functions has no order') end
  end
end
-- What a loop gets is for a script, too: neither a table that may be read alone nor a `next` that goes through any keys.
local next_of_loops = native.next
globals.pairs = function(t)
  expect_table(t, 'pairs')
  local real = behind[t]
  if real then return function(_, key) return raw_next(real, key) end, t, nil end
  check_order(t)
  return next_of_loops, t, nil
end
table.foreach = function(t, f)
  expect_table(t, 'foreach')
  check_order(t)
  for k, v in next_in_order, t do
    local result = f(k, v)
    if result ~= nil then return result end
  end
end

-- Objects are numbered in the order in which they are shown, in the place of their addresses.
local shown, shown_count = {}, 0
local objects = {table = true, ['function'] = true, thread = true, userdata = true}
globals.tostring = function(...)
  local value = ...
  local kind = type(value)
  if not objects[kind] or value == native.null then return raw_tostring(...) end
  local meta = getmetatable(value)
  if type(meta) == 'table' and rawget(meta, '__tostring') then return raw_tostring(value) end
  if not shown[value] then
    shown_count = shown_count + 1
    shown[value] = string.format('%s: 0x%012x', kind, shown_count)
  end
  return shown[value]
end

globals.rawget = function(t, k)
  return rawget(behind[t] or t, k)
end
globals.rawset = function(t, k, v)
  if behind[t] then error('Attempt to modify a readonly table', 0) end
  return raw_rawset(t, k, v)
end
globals.setmetatable = function(t, meta)
  if behind[t] then error('Attempt to modify a readonly table', 0) end
  return raw_setmetatable(t, meta)
end

-- What natives raise is no value of Lua's: a script sees their text, or a table that has it.
local function plain(err)
  if type(err) ~= 'userdata' then return err end
  local text, is_table = native.text_of(err)
  if is_table then return {err = text, ignore_error_stats_update = true} end
  return text or err
end
-- A script that has run for too long catches no error any more.
local function returned(ok, ...)
  if is_over() then error(STOPPED, 0) end
  if ok == false then return ok, plain((...)) end
  return ok, ...
end
local function went(...)
  if is_over() then error(STOPPED, 0) end
  return ...
end
-- As in Redis, pcall gives the text of an error that is a table.
local function caught(ok, ...)
  if is_over() then error(STOPPED, 0) end
  if ok then return ok, ... end
  local err = plain((...))
  if type(err) == 'table' and type(rawget(err, 'err')) == 'string' then err = rawget(err, 'err') end
  return false, err
end
globals.pcall = function(...)
  if select('#', ...) == 0 then return false, 'attempt to call a boolean value' end
  return caught(raw_pcall(...))
end
globals.xpcall = function(f, handler)
  return returned(raw_xpcall(f, function(err)
    if is_over() then return STOPPED end
    return handler(plain(err))
  end))
end
local resume, wrap = coroutine.resume, coroutine.wrap
coroutine.resume = function(...) return returned(resume(...)) end
coroutine.wrap = function(f)
  local go = wrap(f)
  return function(...) return went(go(...)) end
end

-- Text alone: bytecode could reach behind the interpreter.
globals.loadstring = function(text, name)
  if type(text) ~= 'string' and type(text) ~= 'number' then
    fail("bad argument #1 to 'loadstring' (string expected, got " .. type(text) .. ')')
  end
  text = raw_tostring(text)
  return native.load(text, name and raw_tostring(name) or text)
end
globals.load = function(f, name)
  local parts = {}
  while true do
    local part = f()
    if part == nil or part == '' then break end
    parts[#parts + 1] = part
  end
  return native.load(table.concat(parts), name and raw_tostring(name) or '=(load)')
end

-- Natives get all their arguments at once, and Rust has room for 8,000 values that are no numbers (bounded.rs).
-- Lua gives them all at once, so that many are paid for before.
local raw_unpack, UNPACKED_MAX, UNPACKED_FREE, UNPACKED_OF_ONE = unpack, 7000, 100, 4
globals.unpack = function(t, first, last)
  if type(t) ~= 'table' then return raw_unpack(t, first, last) end
  local from, to = tonumber(first or 1), tonumber(last or #t)
  if from and to and to - from > UNPACKED_MAX and to - from < 8000 then
    local count = 0
    for i = from, to do if type(rawget(t, i)) ~= 'number' then count = count + 1 end end
    if count > UNPACKED_MAX then fail('too many results to unpack') end
  end
  if from and to and to - from > UNPACKED_FREE and to - from < 8000 then native.charge(math.floor((to - from) / UNPACKED_OF_ONE)) end
  return raw_unpack(t, first, last)
end
math.random, math.randomseed = native.random, native.randomseed
-- What the collector has done so far is another thing at each replica, and a script could stop it.
globals.collectgarbage = function() return 0 end
globals.gcinfo = function() return 0 end
-- Lua's own may take for ever within one instruction.
for _, name in raw_pairs({'find', 'match', 'gsub', 'rep', 'upper', 'lower', 'reverse'}) do string[name] = native[name] end
local gmatch, gmatch_next = native.gmatch, native.gmatch_next
string.gmatch = function(...)
  local text, pattern = gmatch(...)
  local at = 0
  local function went_on(to, ...)
    at = to
    return ...
  end
  return function() return went_on(gmatch_next(text, pattern, at)) end
end
string.gfind = string.gmatch
-- So may these, one call after the other: the elements that they move or compare count.
local charge, SORTED_MAX = native.charge, 20000
for _, name in raw_pairs({'insert', 'remove', 'sort', 'concat', 'maxn', 'foreachi'}) do
  local f = table[name]
  table[name] = function(t, ...)
    if name == 'maxn' and type(t) == 'table' then charge(native.slots(t)) end
    if type(t) == 'table' and (name ~= 'insert' or select('#', ...) > 1) and (name ~= 'remove' or select('#', ...) > 0) then
      charge(name == 'sort' and #t * 20 or #t)
      -- Lua compares them within one call: so many are compared by a function that may be paused.
      if name == 'sort' and #t > SORTED_MAX and (...) == nil then return f(t, native.less) end
    end
    return f(t, ...)
  end
end

-- The libraries are made when they are asked for.
local libraries = {cjson = true, cmsgpack = true, bit = true, struct = true}
local function missing(_, name)
  if libraries[name] then
    local own = native.library(name)
    if name == 'cjson' then own.new = native.another_cjson end
    local front = read_only(own)
    raw_rawset(globals, name, front)
    return front
  end
  fail("Script attempted to access nonexistent global variable '" .. raw_tostring(name) .. "'")
end
for _, name in raw_pairs({'string', 'table', 'math', 'coroutine'}) do
  globals[name] = read_only(globals[name])
end
globals.redis = read_only(native.redis)
-- Strings find their functions there, and nobody behind it.
local of_strings = getmetatable('')
of_strings.__index = globals.string
behind[of_strings] = of_strings
for _, name in raw_pairs({'dofile', 'loadfile', 'print', 'newproxy', 'getfenv', 'setfenv', 'module', 'require'}) do
  raw_rawset(globals, name, nil)
end
globals._G = read_only(globals, missing)

local function handler(err)
  local source, line = native.where()
  err = plain(err)
  if type(err) == 'table' then
    err = rawget(err, 'err')
    if type(err) ~= 'string' then err = 'ERR unknown error' end
  else
    err = 'ERR ' .. raw_tostring(err)
  end
  return {err, source, line}
end
-- A library of functions: while it is loaded it sees a table `redis` of its own and nothing else, its functions
-- see what scripts see. Answers what it registered, its environment, and what is called when it is loaded.
local known_flags = {['no-writes'] = true, ['allow-oom'] = true, ['allow-stale'] = true, ['no-cluster'] = true,
  ['allow-cross-slot-keys'] = true}
local function refuse(text) error({err = 'ERR ' .. text}, 0) end
local function is_text(value) return type(value) == 'string' or type(value) == 'number' end
local function flags_of(list)
  if type(list) ~= 'table' then
    refuse('flags argument to redis.register_function must be a table representing function flags')
  end
  local flags = {}
  for _, flag in ipairs(list) do
    if type(flag) ~= 'string' or not known_flags[string.lower(flag)] then refuse('unknown flag given') end
    flags[#flags + 1] = string.lower(flag)
  end
  return flags
end
local function named(arguments)
  if type(arguments) ~= 'table' then
    refuse('calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).')
  end
  local own = {flags = {}}
  for key, value in raw_next, arguments do
    if not is_text(key) then refuse('named argument key given to redis.register_function is not a string') end
    key = string.lower(raw_tostring(key))
    if key == 'function_name' or key == 'description' then
      if not is_text(value) then refuse(key .. ' argument given to redis.register_function must be a string') end
      own[key] = raw_tostring(value)
    elseif key == 'callback' then
      if type(value) ~= 'function' then refuse('callback argument given to redis.register_function must be a function') end
      own.callback = value
    elseif key == 'flags' then
      own.flags = flags_of(value)
    else
      refuse('unknown argument given to redis.register_function')
    end
  end
  if not own.function_name then refuse('redis.register_function must get a function name argument') end
  if not own.callback then refuse('redis.register_function must get a callback argument') end
  return own
end
local function library()
  local registered, by_name, is_loaded = {}, {}, false
  local function register(...)
    if is_loaded then refuse('redis.register_function can only be called on FUNCTION LOAD command') end
    local first, callback = ...
    local count, own = select('#', ...), nil
    if count < 1 or count > 2 then refuse('wrong number of arguments to redis.register_function') end
    if count == 1 then
      own = named(first)
    else
      if not is_text(first) then refuse('first argument to redis.register_function must be a string') end
      if type(callback) ~= 'function' then refuse('second argument to redis.register_function must be a function') end
      own = {function_name = raw_tostring(first), callback = callback, flags = {}}
    end
    if not string.find(own.function_name, '^[%w_]+$') then
      refuse('Library names can only contain letters, numbers, or underscores(_) and must be at least one character long')
    end
    local lower = string.lower(own.function_name)
    if by_name[lower] then refuse('Function already exists in the library') end
    by_name[lower] = own
    registered[#registered + 1] = own
  end
  local function absent(_, name)
    fail("Script attempted to access nonexistent global variable '" .. raw_tostring(name) .. "'")
  end
  local own_redis = {register_function = register}
  for _, name in raw_pairs({'log', 'LOG_DEBUG', 'LOG_VERBOSE', 'LOG_NOTICE', 'LOG_WARNING', 'REDIS_VERSION', 'REDIS_VERSION_NUM'}) do
    own_redis[name] = native.redis[name]
  end
  local seen = raw_setmetatable({redis = read_only(own_redis, absent, true)}, {__index = absent})
  local environment = raw_setmetatable({}, {
    __index = function(_, name) return seen[name] end,
    __newindex = read_only_error,
    __metatable = locked,
  })
  return registered, environment, function()
    is_loaded, seen = true, globals._G
  end
end
-- Whether what all scripts share is as it was: the tables in front of others are empty, and that of strings has what it
-- had. A script could leave something there with `table.insert`, which asks no metatable.
local function is_pristine()
  shown, shown_count = {}, 0
  for front in raw_next, common do
    if raw_next(front) ~= nil then return false end
  end
  local key, value = raw_next(of_strings)
  return key == '__index' and value == globals.string and raw_next(of_strings, key) == nil
end
return globals._G, function(main, ...)
  if select('#', ...) == 0 then return raw_xpcall(main, handler) end
  local arguments = {...}
  return raw_xpcall(function() return main(unpack(arguments)) end, handler)
end, library, is_pristine
