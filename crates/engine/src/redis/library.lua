-- Executed for FCALL behind the prologue, which made `redis` and `loadstring`; the function's name is the last ARGV, and
-- CODE stands for the library's code. The library is loaded anew, with a table `redis` of its own: what it registers
-- was found out when it came (functions.rs), so that nothing is checked here. Then its functions have that of scripts.
local real, name, found, is_loaded, be = redis, table.remove(ARGV), nil, false, nil
local absent = function(_, key) error("Script attempted to access nonexistent global variable '" .. tostring(key) .. "'", 2) end
local own = {log = real.log, LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3, REDIS_VERSION = real.REDIS_VERSION, REDIS_VERSION_NUM = real.REDIS_VERSION_NUM}
own.register_function = function(first, callback)
if is_loaded then error({err = 'ERR redis.register_function can only be called on FUNCTION LOAD command'}) end
if type(first) == 'table' then
local given = first
for key, value in pairs(given) do key = string.lower(tostring(key)) if key == 'function_name' then first = value elseif key == 'callback' then callback = value end end
end
if tostring(first) == name then found = callback end
end
local front = setmetatable({}, {__index = setmetatable(own, {__index = absent}), __newindex = function() error('Attempt to modify a readonly table', 2) end, __metatable = false})
local load_library, wrong = loadstring("local redis, KEYS, ARGV redis = (...)(function(own) redis = own end) " .. CODE, '@user_function')
if not load_library then return {err = 'ERR ' .. wrong} end
load_library(function(set) be = set return front end)
is_loaded = true
if not found then return {err = 'ERR Function not found'} end
be(real)
return found(KEYS, ARGV)
