//! Scripts that are written at random from all natives of the sandbox, with large arguments.

use concord_core::Rng;

/// Expressions of strings: `s` is one that was made before, `n` a number up to some thousands.
const STRINGS: [&str; 22] = [
    "('x'):rep(n * 500)",
    "('ab'):rep(n) .. n",
    "('x'):rep(n) .. s",
    "s .. s",
    "s:upper()",
    "s:lower()",
    "s:reverse()",
    "s:sub(n)",
    "s:gsub('x', 'yz')",
    "s:gsub('.', {x = 'z'})",
    "s:gsub('%w', function(c) return c .. c end, n)",
    "string.format('%s-%q', s:sub(1, n), s)",
    "string.char(65 + n % 26):rep(n)",
    "table.concat(t, ',', 1, math.min(#t, n))",
    "cjson.encode(t)",
    "cjson.encode({a = s:sub(1, n), b = {n, {n}}})",
    "cmsgpack.pack(t)",
    "struct.pack('>I4s', n, s:sub(1, n))",
    "redis.sha1hex(s)",
    "tostring(n):rep(n)",
    "(' '):rep(n * 300) .. n",
    "(redis.call('GET', 'k') or 'x')",
];

/// Statements: `t` is a table, too.
const STATEMENTS: [&str; 44] = [
    "s = STRING",
    "s = STRING",
    "s = STRING",
    "t[#t + 1] = n",
    "t[#t + 1] = STRING",
    "t[n] = s:sub(1, 20)",
    "t['k' .. n] = n",
    "t['k' .. n] = nil",
    "for i = 1, n do t[i] = i end",
    "for i = 1, n do t[#t + 1] = i * 0.5 end",
    "for i = 1, n * 10 do t['f' .. i] = i end",
    "for k in pairs(t) do t[k] = nil end",
    "for k, v in pairs(t) do x = v end",
    "for i = 1, n do next(t) end",
    "table.insert(t, 1, n)",
    "table.remove(t, 1)",
    "pcall(table.sort, t)",
    "pcall(table.sort, t, function(a, b) return tostring(a) < tostring(b) end)",
    "x = tonumber(s)",
    "x = tonumber(s, 16)",
    "x = s < STRING",
    "x = s == STRING",
    "pcall(function() x = s + 1 end)",
    "x = s:find('yy', 1, true)",
    "x = s:find(s:sub(n), 1, true)",
    "x = s:find('x-y', n)",
    "x = s:match('(x*)y')",
    "for w in s:gmatch('%a+') do x = w end",
    "pcall(cjson.decode, s)",
    "pcall(cjson.decode, cjson.encode(t))",
    "pcall(cmsgpack.unpack, s)",
    "pcall(cmsgpack.unpack, cmsgpack.pack(t))",
    "pcall(struct.unpack, 's', s .. '\\0')",
    "x = bit.bxor(n, 7)",
    "pcall(bit.tobit, s)",
    "pcall(loadstring, 'return ' .. s)",
    "x = s:byte(n)",
    "pcall(unpack, t)",
    "redis.call('SET', 'k', s)",
    "redis.call('APPEND', 'k', s:sub(1, n))",
    "redis.call('RPUSH', 'l', n, s:sub(1, 50))",
    "x = redis.call('LRANGE', 'l', 0, -1)",
    "redis.call('DEL', 'l')",
    "redis.pcall('HSET', 'h' .. n, 'f', s:sub(1, n))",
];

/// A script of up to 11 statements, each executed up to `2^rounds` times.
pub fn script(rng: &mut Rng, rounds: u64) -> String {
    let mut text = String::from("local s, t, n, x = 'x', {}, 7, nil ");
    let statements = rng.between(1, 12);
    for _ in 0..statements {
        let number = 1_u64 << rng.below(13);
        let one = STATEMENTS[rng.below(STATEMENTS.len() as u64) as usize];
        let string = STRINGS[rng.below(STRINGS.len() as u64) as usize];
        let one = one.replace("STRING", string);
        let times = if rng.chance(1, 2) { 1 } else { 1_u64 << rng.below(rounds + 1) };
        text += &format!("n = {number} for round = 1, {times} do pcall(function() {one} end) end ");
    }
    text + "return {#s, #t, x and 1 or 0}"
}
