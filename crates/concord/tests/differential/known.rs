//! Differences that are there for a reason, which docs/reference/commands.md gives.

use crate::generator::Words;

/// With every score of -0 as 0.
fn positive_zero(reply: &str) -> String {
    reply.replace("$2\r\n-0\r\n", "$1\r\n0\r\n").replace(",-0\r\n", ",0\r\n")
}

/// The reason, if it is a known one.
pub fn known(form: &str, words: &Words, ours: &[u8], theirs: &[u8]) -> Option<&'static str> {
    let is_error = |reply: &str| reply.starts_with('-');
    let same_length = ours.len() == theirs.len();
    let (ours, theirs) = (String::from_utf8_lossy(ours), String::from_utf8_lossy(theirs));
    let both = |part: &str| ours.contains(part) && theirs.contains(part);
    let top = form.split(' ').next().unwrap_or_default();
    if is_error(&ours) && is_error(&theirs) {
        if top.starts_with("xread") && ours.contains("timeout is not an integer") {
            return Some("where COUNT and BLOCK are wrong, another error");
        }
        if top == "bitfield" && ours.contains("bit offset") && theirs.contains("bitfield type") {
            return Some("where a type and an offset above 64 MiB are wrong, another error");
        }
        if ours.contains("numkeys should be") {
            return Some("where numkeys is wrong, another error");
        }
        if (top.starts_with("eval") || top.starts_with("fcall"))
            && (both(" script: ") || both("Error compiling"))
        {
            return Some("an error names the script by another hash, and another line");
        }
        if ours.replace('\0', "") == theirs.replace('\0', "") {
            return Some("a byte 0 in a name that is quoted");
        }
    }
    if form.ends_with(" help") && !is_error(&ours) && !is_error(&theirs) {
        return Some("in other words");
    }
    let loose = ["acl", "client", "command", "script", "config"].contains(&top);
    if loose && is_error(&theirs) && theirs.contains("compiling") {
        return Some("a script is compiled when it is run");
    }
    let of_form = ["wrong number of arg", "syntax error", "only support"];
    if loose && of_form.iter().any(|part| theirs.contains(part)) {
        return Some("wrong arguments are not always refused, or in other words");
    }
    if both("HYLL") && same_length {
        return Some(
            "PFCOUNT leaves a HyperLogLog's bytes as they are; a redis-server stores the count in them",
        );
    }
    let any_counted = words.iter().any(|key| key.starts_with(b"p"));
    let is_counted = words.get(1).is_some_and(|key| key.starts_with(b"p"));
    let reads_bytes =
        ["bitcount", "bitpos", "getbit", "bitfield", "bitfield_ro", "getrange", "substr"];
    if is_counted && reads_bytes.contains(&form) || form == "lcs" && any_counted {
        return Some(
            "PFCOUNT leaves a HyperLogLog's bytes as they are; a redis-server stores the count in them",
        );
    }
    let spaced = words.iter().any(|w| w.starts_with(b" "));
    match form {
        // SORT of a sorted set turns it into a skip list, at the server that sorts.
        "dump" if !is_error(&ours) && !is_error(&theirs) => {
            Some("the order of a set's members, clocks in a stream, the encoding after a SORT")
        }
        "script exists" => Some("wrong arguments are not always refused, or in other words"),
        "evalsha" | "evalsha_ro" if theirs.starts_with("-NOSCRIPT") => {
            Some("the number of keys is looked at before the script")
        }
        "object encoding" if !is_error(&ours) && !is_error(&theirs) => {
            Some("the encoding that Redis would choose; SORT changes it at the server that sorts")
        }
        "sort" | "sort_ro"
            if same_length && words.iter().any(|w| w.eq_ignore_ascii_case(b"by")) =>
        {
            Some("equal weights in any order, and sets")
        }
        "object refcount" if !is_error(&ours) && !is_error(&theirs) => {
            Some("Redis shares small numbers")
        }
        "xinfo stream" | "xinfo consumers" if both("idle") || both("seen-time") => {
            Some("the clock of the replica that answers")
        }
        "lpos" if words.iter().any(|w| w == b"-9223372036854775808") => {
            Some("RANK of the smallest integer, where redis-server 7.0 overflows")
        }
        "xpending"
            if ours.replace("$-1\r\n", "*-1\r\n") == theirs.replace("$-1\r\n", "*-1\r\n") =>
        {
            Some("a null where Redis has a null array")
        }
        "client getname" => Some("a HELLO that fails changes nothing"),
        "hscan" | "zscan" | "sscan" | "scan" if ours.contains("invalid cursor") => {
            Some("a cursor is digits only")
        }
        _ if spaced && ours.contains("not a float") => Some("no space before a number"),
        _ if positive_zero(&ours) == positive_zero(&theirs) => {
            Some("a score of -0 stays -0; Redis makes it 0 in small sets")
        }
        _ => None,
    }
}
