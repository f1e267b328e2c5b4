-- DBSIZE, RANDOMKEY or FLUSHDB of one database, where the server holds keys of several (databases.rs). ARGV: the name
-- in capitals, the marker, the letter of the database, a seed, the options.
local name, marker, letter, seed, option = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), string.upper(ARGV[5] or 'SYNC')
local function is_own(key)
  local own = string.sub(key, 1, 4) == marker and string.match(key, '^[a-p]', 5) or 'a'
  return own == letter
end
local function own_keys()
  if letter ~= 'a' then return redis.call('KEYS', marker .. letter .. '*') end
  local own = {}
  for _, key in ipairs(redis.call('KEYS', '*')) do if is_own(key) then own[#own + 1] = key end end
  return own
end
if name == 'DBSIZE' then
  if letter ~= 'a' then return #own_keys() end
  return redis.call('DBSIZE') - #redis.call('KEYS', marker .. '[b-p]*')
end
if name == 'RANDOMKEY' then
  for _ = 1, 32 do
    local key = redis.call('RANDOMKEY')
    if not key or is_own(key) then return key end
  end
  local own = own_keys()
  return own[seed % math.max(#own, 1) + 1] or false
end
if ARGV[6] or (option ~= 'SYNC' and option ~= 'ASYNC') then return redis.error_reply('ERR syntax error') end
local own = own_keys()
for i = 1, #own, 1000 do redis.call('UNLINK', unpack(own, i, math.min(i + 999, #own))) end
return redis.status_reply('OK')
