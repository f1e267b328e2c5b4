//! Times to live and memory limits of a rack of processes.

use crate::common::*;

/// Long keys, many keys, and one that stays: what is due goes, and nothing else.
#[test]
fn bug_15_2_and_15_3_what_is_due_goes_and_nothing_else() {
    for protocol in ["chain", "vr"] {
        let rack = Rack::start(&format!("expiry-{protocol}"), &["--protocol", protocol]);
        let mut redis = rack.client();
        redis.say("SET stays v EX 1000");
        for n in 0..70 {
            let long = "x".repeat(1_308);
            assert_eq!(redis.say(&format!("SET {long}{n:02} v PX 100")), "+OK");
        }
        for n in 0..3_000 {
            assert_eq!(redis.say(&format!("SET k{n} v PX 300")), "+OK");
        }
        until("all but one have expired", || redis.say("DBSIZE") == ":1");
        assert_eq!(redis.say("GET stays"), "v");
    }
}

/// redis-server itself has no limit: the replica that orders writes decides.
#[test]
fn bug_15_1_the_redis_engine_has_a_limit_of_memory_too() {
    let more = ["--engine", "redis", "--maxmemory", "8mb"];
    let rack = Rack::start("limit-redis", &more);
    let mut redis = rack.client();
    let value = "v".repeat(100_000);
    let full = (0..400).find(|n| redis.say(&format!("SET k{n} {value}")).contains("OOM"));
    let full = full.expect("40 MB fit into 8");
    assert!(redis.say("APPEND k1 x").contains("OOM"));
    // A lock is released, by a script too; what needs memory fails inside of one.
    let said = redis.say("EVAL return(redis.pcall('set',KEYS[1],'x').err) 1 k1");
    assert!(said.contains("OOM"), "{said}");
    assert_eq!(redis.say("EVAL return(redis.call('del',KEYS[1])) 1 k1"), ":1");
    for n in 0..full {
        redis.say(&format!("DEL k{n}"));
    }
    until("there is room again", || redis.say("SET l v") == "+OK");
}

/// Making 512 MiB of zeros, as Redis does for these, took one replica after the other so long that
/// it was believed dead; a rack with Redis' engine lost all of them.
#[test]
fn bug_16_11_write_far_behind_a_strings_end() {
    for (name, more) in [("far-memory", &[][..]), ("far-redis", &["--engine", "redis"])] {
        let rack = Rack::start(name, more);
        let mut redis = rack.client();
        until("the commands are known", || redis.say("SETRANGE k 3 x") == ":4");
        for line in
            ["SETRANGE k 536870911 x", "SETBIT k 4294967295 1", "BITFIELD k SET u8 4294967287 1"]
        {
            let said = redis.say(line);
            assert!(said.starts_with("-ERR"), "{line}: {said}");
        }
        assert_eq!(redis.say("SETRANGE k 67000000 x"), ":67000001");
        assert_eq!(redis.say("STRLEN k"), ":67000001");
        assert_eq!(rack.status()["wrong"], serde_json::json!([]), "{name}");
        assert_eq!(rack.status()["groups"][0]["name"], "store");
        let controller = std::fs::read_to_string(rack.run.join("controller.log")).unwrap();
        assert!(!controller.contains("replica removed"), "{controller}");
    }
}

/// Commands that take a replica long cost nobody his place: one that would take seconds is refused,
/// many that each take a good part of what is allowed leave time to say that one lives.
#[test]
fn bug_16_15_and_16_16_long_commands_remove_no_member() {
    let rack = Rack::start("long-work", &["--replicas", "2", "--durability", "none"]);
    let mut redis = rack.client();
    let members: Vec<String> = (0..20_000).map(|n| format!("member-{n}")).collect();
    assert_eq!(redis.say(&format!("SADD s {}", members.join(" "))), ":20000");
    let union = |times: usize| format!("SUNIONSTORE d{}", " s".repeat(times));
    for line in [union(1_000), format!("SINTERCARD 1000{}", " s".repeat(1_000))] {
        let said = redis.say(&line);
        assert!(said.starts_with("-ERR too much work for one command"), "{said}");
    }
    // Each of these keys was looked for among all others.
    let said = redis.say(&format!("DEL {}", members.join(" ")));
    assert_eq!(said, ":0");
    // Several at a time, of which none is long.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(rack.client().say(&union(2)), ":20000"));
        }
    });
    assert_eq!(rack.status()["wrong"], serde_json::json!([]));
    let controller = std::fs::read_to_string(rack.run.join("controller.log")).unwrap();
    assert!(!controller.contains("replica removed"), "{controller}");
}

/// A string of the redis engine is as long as a reply at most.
#[test]
fn bug_16_17_redis_engine_string_limit() {
    let rack = Rack::start("long-strings", &["--engine", "redis", "--replicas", "2"]);
    let mut redis = rack.client();
    until("the commands are known", || redis.say("SETRANGE k 67108799 x") == ":67108800");
    for line in ["APPEND k x", "EVAL return(redis.call('append',KEYS[1],'x')) 1 k"] {
        let said = redis.say(line);
        assert!(said.contains("string exceeds maximum allowed size"), "{line}: {said}");
    }
    assert_eq!(redis.say("STRLEN k"), ":67108800");
    assert_eq!(rack.status()["wrong"], serde_json::json!([]));
}
