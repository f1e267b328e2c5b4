return redis.error_reply('My Err')
----
return redis.error_reply('Foo')
----
return redis.error_reply('-Foo bar')
----
return {err='x y'}
----
return {err='xy'}
----
return redis.error_reply()
----
return redis.status_reply('My St')
----
foo=1
----
_G.foo=1
----
rawset(_G,'foo',1)
----
setmetatable(_G,{})
----
string.foo=1
----
string.rep=1
----
KEYS=1
----
redis.call=1
----
return redis.call()
----
return redis.call({})
----
return redis.call('get')
----
return redis.call('nosuch','a')
----
return redis.pcall('nosuch','a')
----
return redis.call('multi')
----
return redis.call('eval','return 1',0)
----
redis.call('set','x','abc') return redis.call('incr','x')
----
local e=redis.pcall('incr','x') local t={} for k,v in pairs(e) do t[#t+1]=k..'='..tostring(v) end return t
----
local ok,e=pcall(redis.call,'incr','x') local t={} for k,v in pairs(e) do t[#t+1]=k..'='..tostring(v) end return t
----
return redis.pcall('incr','x')
----
error('boom')
----
error({err='My boom'})
----
error()
----
error('boom',0)
----
local function f()
error('boom') end
f()
----
return 1 +
----
return nosuch
----
local x = nil; return x.y
----
string.rep()
----
return {1,2,nil,4}
----
return 3.99
----
return -3.99
----
return 1e300
----
return 0/0
----
return true
----
return false
----
return
----
return {ok='fine'}
----
return {double=3.5}
----
return {map={a=1}}
----
return {big_number='123'}
----
return {1,{2,{3}},'x',false,true}
----
return function() end
----
return redis.replicate_commands()
----
return redis.sha1hex('')
----
return redis.sha1hex()
----
return redis.setresp(4)
----
return redis.setresp(3)
----
redis.setresp(3) return redis.call('hgetall','nokey')
----
redis.log(1,'a')
----
redis.log(1)
----
redis.log('x','a')
----
return redis.acl_check_cmd('get','a')
----
return redis.REDIS_VERSION..' '..redis.REDIS_VERSION_NUM..' '..redis.REPL_ALL..redis.REPL_AOF..redis.REPL_SLAVE..redis.REPL_NONE..' '..redis.LOG_DEBUG..redis.LOG_WARNING
----
math.randomseed(42) return {tostring(math.random()),tostring(math.random(10)),tostring(math.random(5,7))}
----
return {tostring(1e15),tostring(123456789012345678),tostring(0.1),tostring(2^53), tostring(-0.0), tostring(1/0)}
----
redis.call('set','n',12345678901234567) redis.call('append','n',' ' ) redis.call('append','n',0.1) redis.call('append','n',1e20) return redis.call('get','n')
----
return redis.call('set','a','b')
----
#!lua flags=no-writes
return redis.call('set','a','b')
----
#!lua flags=bad
return 1
----
#!js
return 1
----
#!lua name=a
return 1
----
#!lua
return nosuch
----
return redis.call('ping')
----
return redis.call('client','id')
----
return redis.call('subscribe','x')
----
return redis.call('blpop','nolist',1)
----
return redis.call('wait',0,0)
----
return redis.call('get','a','b')
----
return redis.call('object','badsub','b')
----
return loadstring('return 1+1')()
----
return loadstring(string.dump(function() return 1 end))()
----
return tostring(loadstring('x +'))
----
local a,b=loadstring('x +') return b
----
return {pcall(error)}
----
return {pcall(error,'x')}
----
return #ARGV
----
return ARGV[3]
----
redis.call('set', KEYS[1], 'v') return redis.call('get', KEYS[1])
----
return {KEYS[1], ARGV[1], ARGV[2] + 1, #KEYS, #ARGV}
----
return {redis.call('set', KEYS[1], '1', 'NX'), redis.call('set', KEYS[1], '2', 'XX', 'GET'), redis.call('del', KEYS[1])}
----
redis.call('hset', KEYS[1], 'a', 1, 'b', 2) local r = redis.call('hgetall', KEYS[1]) redis.call('del', KEYS[1]) return r
----
redis.setresp(3) redis.call('hset', KEYS[1], 'a', 1) local r = redis.call('hgetall', KEYS[1]) redis.call('del', KEYS[1]) return r
----
redis.call('zadd', KEYS[1], 1.5, 'x') redis.setresp(3) local r = redis.call('zscore', KEYS[1], 'x') redis.call('del', KEYS[1]) return r
----
redis.setresp(3) return {redis.call('get', KEYS[1]) == nil, true, false}
----
redis.setresp(3) return true
----
redis.setresp(3) return false
----
redis.setresp(3) redis.call('sadd', KEYS[1], 'm') local r = redis.call('smembers', KEYS[1]) redis.call('del', KEYS[1]) return r
----
return {set={m=true}}
----
return {verbatim_string={format='txt', string='hello'}}
----
return cjson.encode({1, 2, {a = 1}, 'x/y"\\\n\1\127é', true, false, cjson.null, 1.5, 1e20, 0.1, 12345678901234567})
----
return cjson.encode({})
----
return cjson.encode({[1] = 1, [2] = 2, [4] = 4})
----
return cjson.encode({[1] = 1, [100] = 2})
----
return cjson.encode(function() end)
----
return cjson.encode({[true] = 1})
----
return cjson.encode(0/0)
----
return cjson.encode(1/0)
----
local t = {} for i = 1, 2000 do t = {t} end return cjson.encode(t)
----
local t = cjson.decode('{"a": [1, 2.5, -3e2, "x\\u00e9\\ud83d\\ude00\\n"], "b": {"c": null, "d": true, "e": false}}') return {t.a[1], t.a[2] * 10, t.a[3], t.a[4], t.b.c == cjson.null, t.b.d, t.b.e == false}
----
return cjson.decode('')
----
return cjson.decode('[1')
----
return cjson.decode('[1 2]')
----
return cjson.decode('{1:2}')
----
return cjson.decode('{"a" 2}')
----
return cjson.decode('{"a":2')
----
return cjson.decode('nul')
----
return cjson.decode('"abc')
----
return cjson.decode('"\\x"')
----
return cjson.decode('"\\u12"')
----
return cjson.decode('1 2')
----
return cjson.decode('[-]')
----
return cjson.decode('{"a":1,}')
----
return cjson.decode(nil)
----
return cjson.decode()
----
return tostring(cjson.decode('[0x10, 1e400, nan, -inf, 01]')[1])
----
return cjson.decode(string.rep('[', 1001))
----
return cjson.encode({a = 1, b = {1, 2}, ['c d'] = 'e'})
----
return cjson.encode({user = 'x', id = 7, tags = {'a', 'b'}, nested = {deep = {deeper = true}}, name = 'n', at = 1.25})
----
return {cjson.encode_max_depth(), cjson.encode_sparse_array(), cjson.encode_number_precision()}
----
return cmsgpack.pack({1, 2, 'three', 4.5, -1, -200, -70000, 300, 70000, 5000000000, true, false, nil})
----
return cmsgpack.pack({a = 1, b = {2, 3}}, 'x', 7)
----
return {cmsgpack.unpack(cmsgpack.pack({1, 'a', 3}, 'b', -5))}
----
return cmsgpack.unpack('')
----
return cmsgpack.unpack('\219\255\255')
----
return cmsgpack.unpack('\193')
----
return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3))}
----
return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 2, 1)}
----
return cmsgpack.pack()
----
local t = {1} for i = 1, 20 do t = {t} end return cmsgpack.pack(t)
----
return cmsgpack.pack(string.rep('x', 40), string.rep('y', 300), 0.5, 0.1, {})
----
return {bit.tobit(0xffffffff), bit.band(0xff, 0x0f), bit.bor(1, 2, 4), bit.bxor(5, 1), bit.bnot(0), bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-16, 2), bit.rol(0x12345678, 12), bit.ror(0x12345678, 12), bit.bswap(0x12345678)}
----
return {bit.tohex(255), bit.tohex(255, 2), bit.tohex(-1, -4), bit.tohex(0xdeadbeef, 16)}
----
return bit.band()
----
return bit.band('x')
----
return {struct.unpack('>I2hbBl', struct.pack('>I2hbBl', 513, -2, -3, 200, -123456789))}
----
return {struct.unpack('<fdsc3x', struct.pack('<fdsc3x', 1.5, 2.25, 'str', 'abcd'))}
----
return {struct.size('!8bl'), struct.size('>I3h'), struct.pack('!4bi', 1, 2)}
----
return struct.size('s')
----
return struct.pack('q', 1)
----
return struct.unpack('I4', 'ab')
----
return struct.pack('I4', 'x')
----
return {struct.unpack('bc0', struct.pack('bc0', 3, 'abc'))}
----
local t = {} for k, v in pairs({a = 1, b = 2, c = 3, d = 4, 5, 6}) do t[#t + 1] = tostring(k) .. v end return t
----
local t = {} for k in pairs(string) do t[#t + 1] = k end table.sort(t) return t
----
local t = {} for k in pairs(math) do t[#t + 1] = k end table.sort(t) return t
----
local t = {} for k in pairs(redis) do t[#t + 1] = k end table.sort(t) return t
----
local t = {} for k in pairs(coroutine) do t[#t + 1] = k end table.sort(t) return t
----
return {next({}), next({7}), next({a = 1})}
----
return {string.format('%5.2f|%d|%s|%q', 3.14159, 42, 'x', 'a"b'), ('x'):rep(3), #'abc', string.byte('A'), string.char(66)}
----
return {string.find('hello world', 'o w'), string.match('key=value', '(%w+)=(%w+)'), (string.gsub('abc', '%w', '%0%0'))}
----
local r = {} for w in string.gmatch('one two', '%a+') do r[#r + 1] = w end return r
----
return {table.concat({1, 2, 3}, ','), unpack({1, 2, 3})}
----
local co = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return {co(1), co(10)}
----
local ok, e = pcall(function() error({code = 7}) end) return {tostring(ok), e.code}
----
local ok, e = pcall(function() error('x', 0) end) return e
----
local ok, e = pcall(function() error('x') end) return e
----
local ok, e = pcall(redis.call, 'incr', 'a', 'b') return e
----
return select('#', pcall(function() return 1, nil, nil end))
----
return tostring(xpcall(function() error('x') end, function(e) return 'handled' end))
----
local e = redis.pcall('lpush', KEYS[1]) return e.err
----
redis.call('lpush', KEYS[1], 'a') local e = redis.pcall('get', KEYS[1]) redis.call('del', KEYS[1]) return e
----
redis.call('lpush', KEYS[1], 'a') local ok, e = pcall(redis.call, 'get', KEYS[1]) redis.call('del', KEYS[1]) return {tostring(ok), e}
----
redis.call('set', KEYS[1], 'x') redis.call('incr', KEYS[1])
----
local v = redis.call('get', KEYS[1]) redis.call('del', KEYS[1]) return v
----
redis.call('set', KEYS[1], 10) redis.call('expire', KEYS[1], 100) local t = redis.call('ttl', KEYS[1]) redis.call('del', KEYS[1]) return {t, redis.call('ttl', KEYS[1])}
----
return redis.call('set', KEYS[1], 'v', 'EX', 'x')
----
return redis.call('set', KEYS[1], 'v', 'BAD')
----
if redis.call('setnx', KEYS[1], 'token') == 1 then redis.call('pexpire', KEYS[1], 10000) return 1 end return 0
----
if redis.call('get', KEYS[1]) == 'token' then return redis.call('del', KEYS[1]) else return 0 end
----
return redis.call('echo', 'x')
----
return redis.call('ping')
----
return redis.call('ping', 'a', 'b')
----
return #redis.call('time')
----
return redis.status_reply(1)
----
return {ok = 7}
----
return {err = 'two\r\nlines'}
----
return redis.error_reply('-CODE the text')
----
return {1, 2, {err = 'inner'}, {ok = 'fine'}, 3}
----
return math.floor(3.7) .. ' ' .. math.max(1, 5, 3) .. ' ' .. math.huge
----
local x = 5 local function f() return x + nil end return f()
----
local t = setmetatable({}, {__index = function(_, k) return k .. '!' end}) return t.foo
----
error({err = 'CODE custom text'})
----
error(setmetatable({}, {__tostring = function() return 'shown' end}).x)
----
return load(function() return nil end)
----
local n = 0 local f = load(function() n = n + 1 if n == 1 then return 'return 40' elseif n == 2 then return ' + 2' end end) return f()
----
return tonumber('0x10') + tonumber('7', 8)
----
return type(redis.sha1hex(5)) .. redis.sha1hex(5)
----
local a = {} a[1] = 1 a[3] = 3 return a
----
return {table.getn({1, 2}), table.maxn({1, 2, [10] = 3})}
----
return tostring(nil) .. tostring(true) .. tostring(12)
----
return redis.call('SET', KEYS[1])
----
string.upper = nil
----
redis.nosuch()
----
return KEYS[5]
----
return _G.nosuch
----
rawset(string, 'x', 1)
----
return rawget(_G, 'redis') == redis
----
for i = 1, 3 do redis.call('rpush', KEYS[1], i) end local r = redis.call('lrange', KEYS[1], 0, -1) redis.call('del', KEYS[1]) return r
----
return string.rep('ab', 3)
----
return string.rep('ab', -1)
----
return #tostring({}) > 7
----
local t = {5, 2, 8} table.sort(t, function(a, b) return a > b end) return t
----
return pcall(1)
----
return {pcall()}
----
return loadstring(5)
----
goto x
----
return -0
----
return 9007199254740993
----
return redis.call('zadd', KEYS[1], 'NX', 3.3, 'm') + redis.call('zrem', KEYS[1], 'm')
----
return redis.call('incrbyfloat', KEYS[1], 1.1) .. redis.call('getdel', KEYS[1])
----
return {string.find('hello world', 'l+'), string.find('a.b', '.', 1, true), string.find('abc', 'b', -2), string.find('abc', 'z'), string.find('abc', '')}
----
return {string.find('key = value', '^(%w+)%s*=%s*(%w+)$')}
----
return {string.match('2024-01-15', '(%d+)-(%d+)-(%d+)'), string.match('  trim  ', '^%s*(.-)%s*$'), string.match('abc', '()b()')}
----
return {string.match('f(a(b)c)d', '%b()'), string.match('THE (quick) fox', '%f[%a]%a+', 5), string.match('[[x]]', '%[%[(.*)%]%]')}
----
return {string.gsub('hello world', 'o', '0'), string.gsub('hello', '', '-'), string.gsub('abc', '%w', '%0%0', 2), string.gsub('x y', '(%w) (%w)', '%2 %1')}
----
return {string.gsub('$name is $age', '%$(%w+)', {name = 'bob', age = 7}), string.gsub('abc', '.', function(c) if c == 'b' then return 'B' end end)}
----
return {string.gsub('abc', '^a', 'x'), string.gsub('aaa', '^a', 'x'), string.gsub('a,b,,c', ',', ';', 0)}
----
local r = {} for k, v in string.gmatch('a=1, b=2', '(%w+)=(%w+)') do r[#r + 1] = k .. v end return r
----
local r = {} for w in ('one;two;;four'):gmatch('([^;]*)') do r[#r + 1] = '[' .. w .. ']' end return r
----
return string.find('abc', '[a')
----
return string.find('abc', '%')
----
return string.find('abc', '(a')
----
return string.find('abc', 'a)')
----
return string.find('abc', '%1')
----
return string.gsub('abc', '(a)', '%2')
----
return string.gsub('abc', 'a', true)
----
return string.gsub('abc', 'a')
----
return string.gsub('abc', '.', function() return {} end)
----
return string.find()
----
return string.find('a')
----
return string.rep('x')
----
return ('x'):rep('3')
----
return {string.find('a\0b', '%z'), #string.rep('ab\0', 3), string.match('x^y', 'x^y'), string.find('a-b', '-', 1, true)}
----
return {string.match('abcABC019_ \t', '[%a_]+'), string.match('x-y', '[a-z]-[-y]'), string.match(']', '[]]'), string.match('a]', '[^]]'), string.match('%d', '%%d')}
----
return {string.match('aXb', '%u'), string.match('aXb', '%U+'), string.match('a1 !', '%p'), string.match('0x1F', '%x+', 3), string.match('\1x', '%c')}
----
local t = {1, 2, 3} table.insert(t, 4) table.insert(t, 1, 0) return {table.remove(t), table.remove(t, 1), table.concat(t, '-'), table.remove({}), table.concat({1, 2, 3}, ',', 2, 3)}
----
local t = {3, 1, 2} table.sort(t) local s = 0 table.foreachi(t, function(i, v) s = s + i * v end) return {t[1], t[2], t[3], s}
