//! Commands that store into another key or restore one, and the times to live of these keys.

use super::*;

#[test]
fn a_search_stores_into_another_key_which_is_a_new_one() {
    let mut p = Pair::new();
    p.write(&["GEOADD", "from", "13.361389", "38.115556", "a", "15.087269", "37.502669", "b"]);
    let search = |to: &str, word: &str| {
        let args = ["GEORADIUS", "from", "15", "37", "200", "km", word, to];
        CommandBuf::new().encode(0, args.iter().map(|arg| arg.as_bytes())).to_vec()
    };
    for word in ["STORE", "storedist"] {
        p.write(&["SET", "to", "v", "EX", "10"]);
        p.write(&["EXPIRE", "from", "20"]);
        assert_eq!(p.write_encoded(search("to", word), &[word]), ":2\r\n");
        assert_eq!(p.head.read(&["TTL", "to"]), ":-1\r\n");
        assert_eq!(p.head.read(&["ZCARD", "to"]), ":2\r\n");
        assert_eq!(p.head.read(&["TTL", "from"]), ":20\r\n");
        p.write(&["PERSIST", "from"]);
        assert_eq!(p.head.engine.next_expiry_ms(), None);
    }
    // In place of its source.
    p.write(&["EXPIRE", "from", "20"]);
    assert_eq!(p.write(&["GEORADIUSBYMEMBER", "from", "a", "1", "m", "STORE", "from"]), ":1\r\n");
    assert_eq!(p.head.engine.next_expiry_ms(), None);
    p.write(&["EXPIRE", "from", "20"]);
    assert!(
        p.write(&["GEORADIUSBYMEMBER", "from", "none", "1", "m", "STORE", "from"])
            .contains("decode")
    );
    assert_eq!(p.head.read(&["TTL", "from"]), ":20\r\n");
}

#[test]
fn a_restored_key_has_its_time_to_live() {
    let mut p = Pair::new();
    p.write(&["RPUSH", "from", "a", "b"]);
    let dump = p.head.run(Class::Read, &encode(&["DUMP", "from"])).reply;
    let payload = concord_engine::resp::bulk_payload(&dump).unwrap().to_vec();
    let restore = |p: &mut Pair, ttl: &str, options: &[&str]| {
        let mut args: Vec<&[u8]> = vec![b"RESTORE", b"to", ttl.as_bytes(), &payload];
        args.extend(options.iter().map(|option| option.as_bytes()));
        let command = CommandBuf::new().encode(1, args.iter().copied()).to_vec();
        p.write_encoded(command, options)
    };
    assert_eq!(restore(&mut p, "5000", &[]), "+OK\r\n");
    assert_eq!(p.head.read(&["PTTL", "to"]), ":5000\r\n");
    assert!(restore(&mut p, "7000", &[]).starts_with("-BUSYKEY"));
    assert_eq!(p.head.read(&["PTTL", "to"]), ":5000\r\n");
    assert!(restore(&mut p, "1", &["ABSTTL"]).starts_with("-BUSYKEY"));
    assert!(restore(&mut p, "x", &["REPLACE"]).contains("not an integer"));
    assert!(restore(&mut p, "-1", &["REPLACE"]).contains("Invalid TTL"));
    assert_eq!(p.head.read(&["PTTL", "to"]), ":5000\r\n");
    let at = (NOW_MS + 9000).to_string();
    assert_eq!(restore(&mut p, &at, &["REPLACE", "absttl", "FREQ", "3"]), "+OK\r\n");
    assert_eq!(p.head.read(&["PTTL", "to"]), ":9000\r\n");
    // One that is over already.
    assert_eq!(restore(&mut p, "77", &["ABSTTL", "REPLACE"]), "+OK\r\n");
    assert_eq!(p.head.read(&["EXISTS", "to"]), ":0\r\n");
    assert_eq!(p.head.engine.next_expiry_ms(), None);
    assert_eq!(restore(&mut p, "0", &[]), "+OK\r\n");
    assert_eq!(p.head.read(&["LRANGE", "to", "0", "-1"]), "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
}

/// A read that one replica alone executes.
#[test]
fn a_count_of_a_hyperloglog_changes_nothing() {
    let mut p = Pair::new();
    p.write(&["PFADD", "h", "a", "b", "c"]);
    let bytes = p.head.read(&["GET", "h"]);
    assert_eq!(p.head.read(&["PFCOUNT", "h"]), ":3\r\n");
    assert_eq!(p.head.read(&["PFCOUNT", "none"]), ":0\r\n");
    assert!(p.head.read(&["PFCOUNT"]).starts_with("-ERR wrong number"));
    assert_eq!(p.head.read(&["GET", "h"]), bytes);
    p.assert_equal(&["PFCOUNT"]);
}
