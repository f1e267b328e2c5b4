//! Which keys a script touches, as far as its text says so. A script may compute its keys (Redis 7
//! allows it), so that one of which this is not plain concerns all keys.
//!
//! An answer that is wrong does no harm: the engine lets a script that is sent for one key touch no
//! other, and one that is sent for all keys may touch any.

use alloc::vec::Vec;

use concord_engine::table::Flags;
use concord_engine::{Class, CommandSpec, CommandTable};

/// A piece of Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a [u8]),
    /// A quoted string.
    Text(&'a [u8]),
    Number(&'a [u8]),
    Other(u8),
}

/// Names by which a script could reach `redis.call` or run text as code, unseen.
const OPAQUE: [&[u8]; 4] = [b"_G", b"load", b"loadstring", b"setmetatable"];
/// Commands that concern no key.
const KEYLESS: [&[u8]; 5] = [b"TIME", b"PING", b"ECHO", b"PUBLISH", b"SPUBLISH"];

/// Whether every command that the script calls concerns `KEYS[1]` alone, by its text.
pub(crate) fn touches_first_key_alone(script: &[u8], table: &CommandTable) -> bool {
    let Some(tokens) = tokens(script) else { return false };
    let names = names_of_first_key(&tokens);
    tokens.iter().enumerate().all(|(at, token)| match token {
        Token::Name(name) if OPAQUE.contains(name) => false,
        Token::Name(b"redis") => is_plain(&tokens[at + 1..], &names, table),
        _ => true,
    })
}

/// Whether a script may call a command that reads: unless its text names all that it calls, and
/// none does.
pub(crate) fn may_read(script: &[u8], table: &CommandTable) -> bool {
    let Some(tokens) = tokens(script) else { return true };
    tokens.iter().enumerate().any(|(at, token)| match token {
        Token::Name(name) if OPAQUE.contains(name) => true,
        Token::Name(b"redis") => match &tokens[at + 1..] {
            [Token::Other(b'.'), Token::Name(b"call" | b"pcall"), rest @ ..] => match rest {
                [Token::Other(b'('), Token::Text(command), Token::Other(b',' | b')'), ..] => {
                    table.class_of(command) == Some(Class::Read)
                }
                _ => true,
            },
            [Token::Other(b'.'), Token::Name(_), ..] => false,
            _ => true,
        },
        _ => false,
    })
}

/// Whether the tokens after `redis` are a function without keys, or a call on the first key.
fn is_plain(behind: &[Token<'_>], names: &[&[u8]], table: &CommandTable) -> bool {
    let [Token::Other(b'.'), Token::Name(function), rest @ ..] = behind else { return false };
    if !matches!(*function, b"call" | b"pcall") {
        return true;
    }
    let [Token::Other(b'('), Token::Text(command), rest @ ..] = rest else { return false };
    if KEYLESS.iter().any(|name| name.eq_ignore_ascii_case(command)) {
        return true;
    }
    let [Token::Other(b','), rest @ ..] = rest else { return false };
    let behind_key = match rest {
        [
            Token::Name(b"KEYS"),
            Token::Other(b'['),
            Token::Number(b"1"),
            Token::Other(b']'),
            rest @ ..,
        ] => rest,
        [Token::Name(name), rest @ ..] if names.contains(name) => rest,
        _ => return false,
    };
    let is_last = behind_key.first() == Some(&Token::Other(b')'));
    let has_one = |spec: &CommandSpec| {
        spec.first_key == 1 && spec.last_key == 1 && !spec.flags.has(Flags::MOVABLEKEYS)
    };
    // Its other key is that of another database.
    if command.eq_ignore_ascii_case(b"MOVE") {
        return false;
    }
    let is_one = table.find(command).is_some_and(|spec| has_one(spec) || is_last);
    is_one && (is_last || behind_key.first() == Some(&Token::Other(b',')))
}

/// Names that are `KEYS[1]` wherever they stand: `local name = KEYS[1]`, and nothing else is ever
/// assigned to them. None in a script that has functions, whose arguments could have the same name.
fn names_of_first_key<'a>(tokens: &[Token<'a>]) -> Vec<&'a [u8]> {
    if tokens.contains(&Token::Name(b"function")) || tokens.contains(&Token::Name(b"for")) {
        return Vec::new();
    }
    let is_first = |window: &[Token<'a>]| match window {
        [
            Token::Name(b"local"),
            Token::Name(name),
            Token::Other(b'='),
            Token::Name(b"KEYS"),
            Token::Other(b'['),
            Token::Number(b"1"),
            Token::Other(b']'),
        ] => Some(*name),
        _ => None,
    };
    let mut names: Vec<&[u8]> = tokens.windows(7).filter_map(is_first).collect();
    names.retain(|name| {
        let named = tokens.windows(2).filter(|pair| pair[0] == Token::Name(name));
        let set = named.filter(|pair| matches!(pair[1], Token::Other(b'=' | b',')));
        let declared = tokens
            .windows(2)
            .filter(|pair| pair[0] == Token::Name(b"local") && pair[1] == Token::Name(name));
        // An argument of a call is followed by a comma too: it is in parentheses.
        declared.count() == 1 && set.filter(|pair| pair[1] == Token::Other(b'=')).count() == 1
    });
    let in_lists = |name: &[u8]| {
        tokens.windows(3).any(|three| {
            matches!(three[0], Token::Name(b"local") | Token::Other(b','))
                && three[1] == Token::Name(name)
                && three[2] == Token::Other(b'=')
                && three[0] == Token::Other(b',')
        })
    };
    names.retain(|name| !in_lists(name) && !starts_list(tokens, name));
    names
}

/// Whether a statement begins with `name, ...`: a list that is assigned to.
fn starts_list(tokens: &[Token<'_>], name: &[u8]) -> bool {
    let mut depth = 0_usize;
    for pair in tokens.windows(2) {
        match pair[0] {
            Token::Other(b'(' | b'{' | b'[') => depth += 1,
            Token::Other(b')' | b'}' | b']') => depth = depth.saturating_sub(1),
            Token::Name(own) if own == name && depth == 0 && pair[1] == Token::Other(b',') => {
                return true;
            }
            _ => {}
        }
    }
    false
}

/// The pieces of a script without its comments; `None` where that is not plain: long brackets, and
/// what has no end.
fn tokens(script: &[u8]) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    if script.starts_with(b"#!") {
        at = script.iter().position(|byte| *byte == b'\n')?;
    }
    while let Some(&byte) = script.get(at) {
        let rest = &script[at..];
        let run = |is: fn(&u8) -> bool| rest.iter().take_while(|byte| is(byte)).count();
        let length = match byte {
            _ if byte.is_ascii_whitespace() => 1,
            b'-' if rest.starts_with(b"--") => {
                if rest.starts_with(b"--[") {
                    return None;
                }
                // Lua ends a comment at either.
                run(|byte| !matches!(*byte, b'\n' | b'\r'))
            }
            b'[' if matches!(rest.get(1), Some(b'[' | b'=')) => return None,
            b'"' | b'\'' => {
                let end = rest[1..].iter().position(|own| *own == byte)?;
                let text = &rest[1..=end];
                // An escape could hide the end, or spell another name.
                if text.contains(&b'\\') {
                    return None;
                }
                tokens.push(Token::Text(text));
                end + 2
            }
            b'0'..=b'9' => {
                let length = run(|byte| byte.is_ascii_alphanumeric() || *byte == b'.');
                tokens.push(Token::Number(&rest[..length]));
                length
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                let length = run(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
                tokens.push(Token::Name(&rest[..length]));
                length
            }
            b'=' if rest.starts_with(b"==") => 2,
            b'~' | b'<' | b'>' if rest.get(1) == Some(&b'=') => 2,
            other => {
                tokens.push(Token::Other(other));
                1
            }
        };
        at += length;
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_local(script: &str) -> bool {
        touches_first_key_alone(script.as_bytes(), &CommandTable::memory())
    }

    #[test]
    fn scripts_that_name_their_one_key_are_of_that_key() {
        for script in [
            "return 1",
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) end",
            "local key = KEYS[1] local n = redis.call('INCR', key) -- count\n\
             if n == 1 then redis.call('PEXPIRE', key, ARGV[1]) end return {n, redis.call('PTTL', key)}",
            "local t = redis.call('TIME') return redis.pcall('ZADD', KEYS[1], t[1], t[2])",
            "#!lua flags=no-writes\nreturn redis.sha1hex(redis.call('GET', KEYS[1]))",
        ] {
            assert!(is_local(script), "{script}");
        }
    }

    #[test]
    fn a_script_may_read_unless_its_text_names_writes_alone() {
        for (script, reads) in [
            ("return redis.call('set', KEYS[1], 1)", false),
            ("return redis.sha1hex('x') .. redis.pcall(\"incr\", KEYS[1])", false),
            ("redis.call('ping')", false),
            ("return redis.call('get', KEYS[1])", true),
            ("redis.call('set', KEYS[1], 1) return redis.call('strlen', KEYS[1])", true),
            ("return redis.call(ARGV[1], KEYS[1])", true),
            ("return redis.call('g' .. 'et', KEYS[1])", true),
            ("local call = redis.call return call('get', KEYS[1])", true),
            ("local r = redis return r.call('get', KEYS[1])", true),
            ("return loadstring(ARGV[1])()", true),
            ("-- \r return redis.call('get', KEYS[1])", true),
        ] {
            assert_eq!(may_read(script.as_bytes(), &CommandTable::memory()), reads, "{script}");
        }
    }

    #[test]
    fn scripts_that_may_touch_another_key_are_of_all_keys() {
        for script in [
            "return redis.call('GET', KEYS[2])",
            "return redis.call('GET', KEYS[1] .. ':x')",
            "return redis.call('GET', 'k')",
            "return redis.call('DEL', KEYS[1], KEYS[2])",
            "return redis.call('RENAME', KEYS[1], 'x')",
            "return redis.call('DBSIZE')",
            "return redis.call('MOVE', KEYS[1], 1)",
            "return redis.call(ARGV[1], KEYS[1])",
            "local call = redis.call return call('GET', KEYS[1])",
            "local r = redis return r.call('GET', 'x')",
            "return redis['call']('GET', 'x')",
            "return loadstring(ARGV[1])()",
            "return _G['red' .. 'is'].call('GET', 'x')",
            "local key = KEYS[1] key = 'x' return redis.call('GET', key)",
            "local key = KEYS[1] local a a, key = 1, 'x' return redis.call('GET', key)",
            "local key = KEYS[1] key, a = 'x', 1 return redis.call('GET', key)",
            "local key = KEYS[1] local function f(key) return redis.call('GET', key) end return f('x')",
            "local key = KEYS[1] for i, key in ipairs(ARGV) do redis.call('DEL', key) end",
            "local key = KEYS[1] do local key = 'x' redis.call('DEL', key) end",
            "--[[ x ]] return redis.call('GET', KEYS[1])",
            "return redis.call('G\\69T', KEYS[1])",
            "return redis.call 'GET'",
            "-- \r return redis.call('GET', 'x')",
        ] {
            assert!(!is_local(script), "{script}");
        }
    }
}
