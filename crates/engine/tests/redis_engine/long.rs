//! Replies that are longer than a reply may be.

use super::*;

const NOT_DONE: &str =
    "-ERR the reply would be longer than 64 MiB (Concord's limit): nothing was changed\r\n";
const DONE: &str = "-ERR executed, but the reply is longer than 64 MiB (Concord's limit)\r\n";

/// Elements of 1 MiB in a list, a sorted set and a set.
fn filled() -> Pair {
    let mut pair = Pair::new();
    for n in 0..66 {
        let element = format!("{n:02}{}", "v".repeat(1 << 20));
        for args in [["RPUSH", "l", &element, ""], ["SADD", "s", &element, ""]] {
            pair.write_both(encode(&args[..3]), &args[..2]);
        }
        let score = n.to_string();
        pair.write_both(encode(&["ZADD", "z", &score, &element]), &["ZADD"]);
    }
    pair
}

/// A pop whose reply would be too long pops nothing, and one whose reply is not does.
#[test]
fn bug_22_111_a_pop_with_too_long_a_reply_pops_nothing() {
    let mut pair = filled();
    for args in [
        &["LPOP", "l", "66"][..],
        &["RPOP", "l", "64"],
        &["ZPOPMIN", "z", "66"],
        &["ZPOPMAX", "z", "64"],
        &["SPOP", "s", "66"],
        &["LMPOP", "1", "l", "LEFT", "COUNT", "66"],
        &["ZMPOP", "1", "z", "MAX", "COUNT", "66"],
    ] {
        let key = usize::from(!args[0].ends_with("MPOP"));
        let command =
            CommandBuf::new().encode(key as u8, args.iter().map(|a| a.as_bytes())).to_vec();
        assert_eq!(pair.write_encoded(command, args), NOT_DONE, "{args:?}");
    }
    assert_eq!(pair.head.read(&["LLEN", "l"]), ":66\r\n");
    for args in [["LPOP", "l", "63"], ["ZPOPMIN", "z", "31"], ["RPOP", "none", "9"]] {
        let reply = pair.write(&args);
        assert!(reply.starts_with('*'), "{args:?}: {}", reply.len());
        assert!(args[1] == "none" || reply.len() > 31 << 20, "{args:?}");
    }
    assert_eq!(pair.head.read(&["LLEN", "l"]), ":3\r\n");
    let wrong = pair.write(&["LPOP", "s", "2"]);
    assert!(wrong.starts_with("-WRONGTYPE"), "{wrong}");
    assert_eq!(pair.write(&["LPOP", "l", "2", "3"]).split(' ').next(), Some("-ERR"));
}

/// Of a reply that is too long nothing is kept, whether it is that of a read or stands in one to a
/// transaction; what comes after it is answered.
#[test]
fn bug_22_112_too_long_a_reply_is_dropped_as_it_comes() {
    let mut r = Replica::new(true);
    let text = "local all = {} for i = 1, 80 do all[i] = string.rep('v', 1048576) end ";
    let many = format!("{text} redis.call('SET', KEYS[1], 'done') return all");
    let one = "redis.call('SET', KEYS[1], 'one') return string.rep('v', 70000000)";
    for (script, left) in [(many.as_str(), "done"), (one, "one")] {
        r.submit(Class::Write, &encode(&["EVAL", script, "1", "k"]));
        r.submit(Class::Write, &encode(&["INCR", "n"]));
        assert_eq!(String::from_utf8_lossy(&r.wait().reply), DONE);
        assert!(r.wait().reply.starts_with(b":"));
        assert_eq!(r.read(&["GET", "k"]), format!("${}\r\n{left}\r\n", left.len()));
    }
    let reads = format!("{text} return all");
    let read = r.read(&["EVAL_RO", &reads, "1", "k"]);
    assert_eq!(read, "-ERR the reply is longer than 64 MiB (Concord's limit)\r\n");
    let below = "return string.rep('v', 67000000)";
    assert_eq!(r.write(&["EVAL", below, "1", "k"]).len(), 67_000_000 + 13);
    assert_eq!(r.read(&["GET", "n"]), "$1\r\n2\r\n");
}
