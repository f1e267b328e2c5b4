//! The commands of the store, and what each does.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::bucket::{self, ENTRY_BYTES, bulk, error, integer, number};
use crate::access::Function;

/// A parsed command.
#[derive(Debug)]
pub(super) enum Request {
    /// Answer at once with this reply.
    Reply(Vec<u8>),
    /// Answer at once, and close the connection.
    Close,
    /// Authenticate with a password.
    Auth(Vec<u8>),
    /// Greet, possibly with a password.
    Hello(Option<Vec<u8>>),
    /// Access the memory.
    Run(Steps),
    /// Show the state of a key.
    Explain(Vec<u8>),
    /// Show the state of a block.
    ExplainBlock(u16, u64),
    /// Set all lost blocks to zeroes.
    Renew,
    /// Show the state of this node.
    Info,
}

/// A command on the memory: the same access for each key.
#[derive(Debug)]
pub(super) struct Steps {
    /// The keys of the command.
    pub keys: Vec<Vec<u8>>,
    /// The function that is applied.
    pub function: Function,
    /// The arguments after the key.
    pub rest: Vec<Vec<u8>>,
    /// Whether the reply is the sum of all replies.
    pub is_sum: bool,
}

/// The names of the commands, each with the minimum and maximum number of its arguments.
const COMMANDS: [(&str, usize, usize); 19] = [
    ("GET", 1, 1),
    ("SET", 2, 3),
    ("DEL", 1, usize::MAX),
    ("EXISTS", 1, usize::MAX),
    ("INCR", 1, 1),
    ("DECR", 1, 1),
    ("INCRBY", 2, 2),
    ("DECRBY", 2, 2),
    ("CAS", 3, 3),
    ("PING", 0, 1),
    ("ECHO", 1, 1),
    ("QUIT", 0, 0),
    ("SELECT", 1, 1),
    ("AUTH", 1, 2),
    ("HELLO", 0, usize::MAX),
    ("CLIENT", 1, usize::MAX),
    ("COMMAND", 0, usize::MAX),
    ("INFO", 0, usize::MAX),
    ("CONCORD", 1, 3),
];

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

fn single(key: &[u8], function: Function, rest: &[&[u8]]) -> Request {
    let rest = rest.iter().map(|part| part.to_vec()).collect();
    Request::Run(Steps { keys: alloc::vec![key.to_vec()], function, rest, is_sum: false })
}

fn several(keys: &[&[u8]], function: Function) -> Request {
    let keys = keys.iter().map(|key| key.to_vec()).collect();
    Request::Run(Steps { keys, function, rest: Vec::new(), is_sum: true })
}

fn wrong(text: &str) -> Request {
    Request::Reply(error(text))
}

/// A word of a client, shortened to be shown.
fn shown(word: &[u8]) -> String {
    let word: Vec<u8> = word.iter().take(32).copied().filter(|b| !b.is_ascii_control()).collect();
    String::from_utf8_lossy(&word).into_owned()
}

/// An error if key and value can never fit a block of that length.
fn check_room(key: &[u8], value: &[u8], block_bytes: usize) -> Option<Request> {
    let (wanted, most) = (key.len() + value.len(), block_bytes - ENTRY_BYTES);
    (wanted > most).then(|| {
        wrong(&format!(
            "ERR key and value have {wanted} bytes together, and a block of this memory takes {most}"
        ))
    })
}

fn add(key: &[u8], add: Option<i64>, block_bytes: usize) -> Request {
    let Some(add) = add else { return wrong(NOT_AN_INTEGER) };
    let refused = check_room(key, b"", block_bytes);
    refused.unwrap_or_else(|| single(key, bucket::ADD, &[&add.to_le_bytes()]))
}

/// Parses a client's command; `args` has at least one word.
pub(super) fn parse(args: &[&[u8]], block_bytes: usize) -> Request {
    let (name, args) = (args[0].to_ascii_uppercase(), &args[1..]);
    let known = COMMANDS.iter().find(|(word, ..)| word.as_bytes() == name);
    let Some((word, fewest, most)) = known else {
        return wrong(&format!("ERR unknown command '{}' for a shared memory", shown(&name)));
    };
    if args.len() < *fewest || args.len() > *most {
        let name = word.to_ascii_lowercase();
        return wrong(&format!("ERR wrong number of arguments for '{name}' command"));
    }
    match (*word, args) {
        ("GET", [key]) => single(key, bucket::GET, &[]),
        ("SET", [key, value]) => set(key, value, b"", block_bytes),
        ("SET", [key, value, condition]) => set(key, value, condition, block_bytes),
        ("DEL", keys) => several(keys, bucket::DEL),
        ("EXISTS", keys) => several(keys, bucket::EXISTS),
        ("INCR", [key]) => add(key, Some(1), block_bytes),
        ("DECR", [key]) => add(key, Some(-1), block_bytes),
        ("INCRBY", [key, by]) => add(key, number(by), block_bytes),
        ("DECRBY", [key, by]) => add(key, number(by).and_then(i64::checked_neg), block_bytes),
        ("CAS", [key, old, new]) => check_room(key, new, block_bytes)
            .unwrap_or_else(|| single(key, bucket::CAS, &[old, new])),
        _ => of_connection(word, args),
    }
}

fn set(key: &[u8], value: &[u8], condition: &[u8], block_bytes: usize) -> Request {
    let condition = condition.to_ascii_uppercase();
    if ![&b""[..], b"NX", b"XX"].contains(&&condition[..]) {
        return wrong("ERR SET of a shared memory takes a key, a value, and NX or XX");
    }
    let refused = check_room(key, value, block_bytes);
    refused.unwrap_or_else(|| single(key, bucket::SET, &[value, &condition]))
}

/// Commands that concern no key.
fn of_connection(word: &str, args: &[&[u8]]) -> Request {
    match (word, args) {
        ("PING", []) => Request::Reply(b"+PONG\r\n".to_vec()),
        ("PING" | "ECHO", [text]) => Request::Reply(bulk(text)),
        ("QUIT", _) => Request::Close,
        ("SELECT", [b"0"]) => Request::Reply(bucket::OK.to_vec()),
        ("SELECT", _) => {
            wrong("ERR DB index is out of range: a shared memory has database 0 alone")
        }
        ("AUTH", [.., password]) => Request::Auth(password.to_vec()),
        ("HELLO", [] | [b"2"]) => Request::Hello(None),
        ("HELLO", [b"2", auth, _, password, ..]) if auth.eq_ignore_ascii_case(b"AUTH") => {
            Request::Hello(Some(password.to_vec()))
        }
        ("HELLO", _) => wrong("NOPROTO unsupported protocol version"),
        ("CLIENT", [what, ..]) => {
            let what = what.to_ascii_uppercase();
            match &what[..] {
                b"SETINFO" | b"SETNAME" | b"NO-EVICT" | b"NO-TOUCH" => {
                    Request::Reply(bucket::OK.to_vec())
                }
                b"GETNAME" => Request::Reply(bucket::NIL.to_vec()),
                _ => wrong(&format!("ERR unknown subcommand '{}' of CLIENT", shown(&what))),
            }
        }
        ("COMMAND", [b"COUNT" | b"count"]) => Request::Reply(integer(COMMANDS.len() as i64)),
        ("COMMAND", _) => Request::Reply(b"*0\r\n".to_vec()),
        ("INFO", _) => Request::Info,
        ("CONCORD", args) => of_concord(args),
        _ => wrong("ERR wrong number of arguments"),
    }
}

/// Commands of `concord memory`.
fn of_concord(args: &[&[u8]]) -> Request {
    match args {
        [what, key] if what.eq_ignore_ascii_case(b"EXPLAIN") => Request::Explain(key.to_vec()),
        [what, range, block] if what.eq_ignore_ascii_case(b"EXPLAIN") => {
            let range = number(range).and_then(|range| u16::try_from(range).ok());
            let block = number(block).and_then(|block| u64::try_from(block).ok());
            match range.zip(block) {
                Some((range, block)) => Request::ExplainBlock(range, block),
                None => wrong(NOT_AN_INTEGER),
            }
        }
        [what] if what.eq_ignore_ascii_case(b"RENEW") => Request::Renew,
        _ => wrong("ERR CONCORD takes EXPLAIN key, EXPLAIN range block, or RENEW"),
    }
}
