//! Whether two replies say the same, and whether one is a refusal.

use concord_engine::resp;

use crate::generator::Words;

/// How the replies of a form are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Byte for byte.
    Exact,
    /// Redis leaves the order open.
    AnyOrder,
    /// Cursors mean nothing to another server; a scan that is whole at both has the same elements.
    Cursor,
    /// Drawn at random: as many items, of the same kind.
    Drawn,
    /// Counted from two readings of the clock.
    Clocks,
    /// About the server itself, for this reason; only errors are compared.
    Own(&'static str),
}

/// How the replies of this form are compared.
pub fn how(form: &str) -> How {
    match form {
        "keys" | "smembers" | "sinter" | "sunion" | "sdiff" | "acl cat" => How::AnyOrder,
        "scan" | "sscan" | "hscan" | "zscan" => How::Cursor,
        "spop" | "srandmember" | "hrandfield" | "zrandmember" | "randomkey" => How::Drawn,
        "ttl" | "pttl" | "expiretime" | "pexpiretime" | "object idletime" => How::Clocks,
        "time" | "lastsave" => How::Own("another clock"),
        "acl genpass" => How::Own("drawn at random"),
        "acl log" => How::Own("Concord's own clients"),
        "wait" => How::Own("as many replicas as have the writes"),
        "lolwut" => How::Own("Concord's own words"),
        "hello" | "client id" | "client info" | "client list" => How::Own("another connection"),
        "info" => How::Own("Concord's own numbers"),
        "slowlog get" | "slowlog len" | "latency latest" | "latency history" | "latency reset" => {
            How::Own("Concord's own times")
        }
        "memory usage" => How::Own("each engine counts by itself"),
        "memory malloc-stats" => How::Own("another allocator"),
        "config get" => How::Own("Concord's own settings"),
        "command" | "command count" | "command docs" | "command info" | "command list" => {
            How::Own("Concord's own table: no tips, key specifications")
        }
        _ => How::Exact,
    }
}

/// Why a command is refused that the engine does not have.
pub const NOT_THERE: &str = "this engine does not have it";

const NO_KEY_OR_NOT_BUILT: &str = "not built";

fn is_keyed(form: &str) -> bool {
    !["lolwut", "fcall", "fcall_ro", "function"].contains(&form.split(' ').next().unwrap_or(form))
}

/// What only our refusals say.
const OURS: &[&str] = &[
    "Concord",
    "' is not supported: ",
    "is not supported here",
    "fields are not",
    "is supported with",
];

/// Slack of what is counted from two clock readings, in the unit of the reply.
fn slack(form: &str) -> i64 {
    if form.starts_with('p') { 20_000 } else { 20 }
}

/// Whether the replies agree.
pub fn agree(form: &str, words: &Words, ours: &[u8], theirs: &[u8]) -> bool {
    if ours == theirs {
        return true;
    }
    let is_error = |reply: &[u8]| reply.starts_with(b"-");
    if is_error(ours) || is_error(theirs) {
        return false;
    }
    match how(form) {
        How::Exact if words.iter().any(|w| w == b"*") && form == "xadd" => ours[0] == theirs[0],
        How::Exact => false,
        How::AnyOrder => sorted_lines(ours) == sorted_lines(theirs),
        How::Cursor => {
            let cursor =
                |reply: &[u8]| resp::value_length(&reply[4..]).map(|n| reply[4..][..n].to_vec());
            let whole = |reply| cursor(reply).as_deref() == Some(b"$1\r\n0\r\n");
            let from_0 = words.get(if form == "scan" { 1 } else { 2 }).is_some_and(|w| w == b"0");
            let compared = from_0 && whole(ours) && whole(theirs);
            !compared || sorted_lines(ours) == sorted_lines(theirs)
        }
        How::Drawn => shape(ours) == shape(theirs),
        How::Clocks => match (integer(ours), integer(theirs)) {
            (Some(a), Some(b)) => (a < 0) == (b < 0) && a.abs_diff(b) as i64 <= slack(form),
            _ => false,
        },
        How::Own(_) => true,
    }
}

fn integer(reply: &[u8]) -> Option<i64> {
    resp::number(reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
}

fn sorted_lines(reply: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = reply.split(|&b| b == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// The kind, and the number of elements of an aggregate.
fn shape(reply: &[u8]) -> &[u8] {
    let nothing = reply.starts_with(b"$-1") || reply.starts_with(b"*-1");
    match reply[0] {
        b'*' | b'~' | b'%' => &reply[..resp::line_length(reply).unwrap()],
        _ if nothing => reply,
        _ => &reply[..1],
    }
}

/// Why the rack refused, if it did: in few words, the same for all commands refused so.
pub fn refusal(form: &str, words: &Words, reply: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(reply.strip_prefix(b"-")?);
    let (text, whole) = (text.trim_end(), text.clone());
    let short = [
        ("blocking commands", "it blocks"),
        ("publish/subscribe", "publish/subscribe"),
        ("administration by", "administration of a server"),
        ("cluster support disabled", "there is no Redis cluster"),
        ("supports transactions on one key", "transactions have one key"),
        ("supports scripts on one key", "scripts have one key"),
        ("replicates by itself", "Concord replicates by itself"),
        ("does not move keys", "keys stay in the rack"),
        ("does not swap databases", "keys stay in their database"),
        ("this form of 'client", "this form"),
        ("this form of 'latency", "this form"),
        ("does not support modules", "there are no modules"),
        (
            "it concerns several keys",
            "a form whose keys cannot be told, which Redis calls a syntax error",
        ),
        ("CROSSKEY", "several keys that differ"),
        ("consumer groups store", "consumer groups store the server's clock"),
        ("Concord is configured", "configuration is a file's and flags'"),
        ("does not support the command", NO_KEY_OR_NOT_BUILT),
    ];
    // A transaction with such a command is refused as a whole.
    let too_long = ["ERR string exceeds maximum", "ERR bit offset"];
    if form == "exec" && too_long.iter().any(|words| text.starts_with(words)) {
        return Some("a string above 64 MiB".into());
    }
    if let Some((_, why)) = short.iter().find(|(part, _)| text.contains(part)) {
        let no_key = is_keyed(form);
        return Some(match *why {
            NO_KEY_OR_NOT_BUILT if no_key => "a form without a key".to_string(),
            why => why.to_string(),
        });
    }
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let told_apart = form.split(' ').next() == Some(&*name);
    if told_apart && text.to_lowercase().starts_with(&format!("err unknown command '{name}'")) {
        return Some(NOT_THERE.into());
    }
    let sub = words.get(1).map(|w| String::from_utf8_lossy(w).to_lowercase());
    if text.contains("unknown subcommand") && form.split_once(' ').map(|f| f.1) == sub.as_deref() {
        return Some("not built".into());
    }
    let text = text.replace(&format!("'{name}' is not supported: "), "");
    let text = text.trim_start_matches("ERR ").to_string();
    OURS.iter().any(|part| whole.contains(part)).then_some(text)
}

/// Whether one of the replies inside of an EXEC is a refusal: then half of it was executed.
pub fn is_refused_inside(reply: &[u8]) -> bool {
    let text = String::from_utf8_lossy(reply);
    OURS.iter().any(|part| text.contains(part))
}
