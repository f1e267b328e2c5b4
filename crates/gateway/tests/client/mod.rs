//! CLIENT, CONFIG, MONITOR and COMMAND, as redis-server 7.0.15 answers them.

use concord_gateway::ConnectionId;

use crate::common::{World, heard, say};

#[test]
fn replies_are_left_out_where_the_client_says_so() {
    let mut w = World::new(1);
    let asked = ["CLIENT REPLY OFF", "PING", "GET a", "MULTI", "SET a 1", "EXEC", "nosuch"];
    assert_eq!(say(&mut w, 1, &asked), "");
    assert_eq!(
        say(&mut w, 1, &["CLIENT REPLY SKIP", "CLIENT REPLY ON", "GET a"]),
        "+OK\r\n$1\r\n1\r\n"
    );
    let asked = ["CLIENT REPLY SKIP", "GET a", "PING", "CLIENT REPLY SKIP", "CLIENT ID", "PING"];
    assert_eq!(say(&mut w, 1, &asked), "+PONG\r\n+PONG\r\n");
    assert_eq!(say(&mut w, 1, &["CLIENT REPLY MAYBE"]), "-ERR syntax error\r\n");
    // A confirmation comes all the same, and RESET has replies come again.
    assert!(
        say(&mut w, 1, &["CLIENT REPLY OFF", "SUBSCRIBE c"]).starts_with("*3\r\n$9\r\nsubscribe")
    );
    assert_eq!(say(&mut w, 1, &["RESET"]), "+RESET\r\n");
    assert_eq!(say(&mut w, 1, &["MGET a b"]), "*2\r\n$1\r\n1\r\n$-1\r\n");
}

/// A read in parts that waited for room has no reply either.
#[test]
fn bug_18_69_reply_off_covers_a_queued_partial_read() {
    let mut w = World::with(5, |config| {
        (config.splits_reads, config.client.reads_max) = (true, 10);
    });
    let many: Vec<String> = (0..50).map(|i| format!("m{i}")).collect();
    for command in ["EXISTS", "MGET"] {
        let asked = format!("{command} a {}", many.join(" "));
        assert_eq!(say(&mut w, 1, &["CLIENT REPLY OFF", &asked]), "");
        assert_eq!(say(&mut w, 1, &["CLIENT REPLY ON", "PING"]), "+OK\r\n+PONG\r\n");
    }
    assert!(w.gateway.counters().window_full > 0);
}

#[test]
fn connections_are_listed_and_closed_by_their_properties() {
    let mut w = World::new(2);
    (2..=5).for_each(|id| w.connect(id));
    w.gateway.set_local(ConnectionId(1), "127.0.0.1:7379");
    say(&mut w, 2, &["SUBSCRIBE c"]);
    let ids = |list: String| -> Vec<String> {
        let lines = list.lines().filter_map(|line| line.strip_prefix("id="));
        lines.map(|line| line.split(' ').next().unwrap().to_string()).collect()
    };
    assert_eq!(ids(say(&mut w, 1, &["CLIENT LIST"])), ["1", "2", "3", "4", "5"]);
    assert_eq!(ids(say(&mut w, 1, &["CLIENT LIST TYPE pubsub"])), ["2"]);
    assert_eq!(ids(say(&mut w, 1, &["CLIENT LIST ID 4 9 1"])), ["4", "1"]);
    let info = say(&mut w, 1, &["CLIENT INFO"]);
    let expected = " laddr=127.0.0.1:7379 fd=0 name= age=0 idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf=13 ";
    assert!(
        info.contains(expected) && info.contains(" cmd=client|info user=default redir=-1 resp=2 "),
        "{info}"
    );
    // Redis takes a lone word for an address.
    for (asked, reply) in [
        ("KILL", "-ERR wrong number of arguments for 'client|kill' command"),
        ("KILL 1.2.3.4:5", "-ERR No such client"),
        ("KILL ID 10 x", "-ERR syntax error"),
        ("KILL ID 0", "-ERR client-id should be greater than 0"),
        ("KILL ID x", "-ERR client-id should be greater than 0"),
        ("KILL TYPE x", "-ERR Unknown client type 'x'"),
        ("KILL USER x", "-ERR No such user 'x'"),
        ("KILL SKIPME", "-ERR No such client"),
        ("KILL SKIPME x", "-ERR syntax error"),
        ("LIST ID", "-ERR syntax error"),
        ("LIST ID 3 x", "-ERR Invalid client ID"),
        ("LIST TYPE x", "-ERR Unknown client type 'x'"),
        ("KILL ID 99", ":0"),
        ("KILL LADDR 127.0.0.1:7379", ":0"),
        ("KILL TYPE pubsub", ":1"),
        ("KILL 127.0.0.1:50003", "+OK"),
        ("KILL USER default SKIPME yes", ":2"),
        ("GETREDIR", ":-1"),
        ("NO-EVICT x", "-ERR syntax error"),
    ] {
        let found = say(&mut w, 1, &[&format!("CLIENT {asked}")]);
        assert_eq!(found, format!("{reply}\r\n"), "{asked}");
    }
    assert_eq!(w.gateway.connection_count(), 1);
    assert_eq!(say(&mut w, 1, &["CLIENT KILL SKIPME no ID 1"]), ":1\r\n");
    assert!(w.gateway.wants_close(ConnectionId(1)));
}

#[test]
fn settings_are_kept_all_or_none() {
    let mut w = World::new(3);
    let get = |w: &mut World, name: &str| {
        let reply = say(w, 1, &[&format!("CONFIG GET {name}")]);
        reply.lines().last().unwrap().to_string()
    };
    assert_eq!(
        say(&mut w, 1, &["CONFIG SET list-max-ziplist-size 3 hz 20 maxmemory-policy NOEVICTION"]),
        "+OK\r\n"
    );
    assert_eq!(get(&mut w, "list-max-listpack-size"), "3");
    let failed = |name: &str, why: &str| {
        format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n")
    };
    let own = "Concord is configured by its own file and flags; see concord --help";
    for (asked, reply) in [
        ("hz 30 hz 40", failed("hz", "duplicate parameter")),
        ("hz 30 databases 3", failed("databases", "can't set immutable config")),
        ("hz 30 maxmemory 5gb", failed("maxmemory", own)),
        (
            "hz 30 notify-keyspace-events w",
            failed(
                "notify-keyspace-events",
                "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
            ),
        ),
        ("maxmemory abc", failed("maxmemory", "argument must be a memory value")),
        ("timeout -1", failed("timeout", "argument must be between 0 and 2147483647 inclusive")),
        (
            "slowlog-max-len x",
            failed("slowlog-max-len", "argument couldn't be parsed into an integer"),
        ),
        ("appendonly maybe", failed("appendonly", "argument must be 'yes' or 'no'")),
        (
            "hz 30 foo 1",
            "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'\r\n".into(),
        ),
        ("hz 30 foo", "-ERR syntax error\r\n".into()),
        ("hz", "-ERR wrong number of arguments for 'config|set' command\r\n".into()),
        ("save \"\" appendonly no maxmemory 0", "+OK\r\n".into()),
    ] {
        assert_eq!(say(&mut w, 1, &[&format!("CONFIG SET {asked}")]), reply, "{asked}");
        assert_eq!(get(&mut w, "hz"), "20", "{asked}");
    }
    let all = say(&mut w, 1, &["CONFIG GET hz slowlog-max-* HZ"]);
    assert_eq!(all, "*4\r\n$2\r\nhz\r\n$2\r\n20\r\n$15\r\nslowlog-max-len\r\n$3\r\n128\r\n");
    let rewrite = "-ERR The server is running without a config file\r\n";
    assert_eq!(say(&mut w, 1, &["CONFIG REWRITE"]), rewrite);
    let in_multi = say(&mut w, 1, &["MULTI", "CONFIG SET maxmemory bla", "SET a 1", "EXEC"]);
    assert!(in_multi.contains("*2\r\n-ERR CONFIG SET failed"), "{in_multi}");
}

#[test]
fn whoever_monitors_sees_the_commands_of_the_gateway() {
    let mut w = World::new(4);
    w.connect(2);
    assert_eq!(say(&mut w, 2, &["MONITOR"]), "+OK\r\n");
    say(&mut w, 1, &["SET a \"b\\n\\x01\"", "GET a x", "nosuch", "MULTI", "GET a", "EXEC"]);
    say(&mut w, 1, &["AUTH x y", "CLIENT LIST", "CONFIG GET x", "SELECT 3", "EVAL x 0", "PING"]);
    let lines = heard(&mut w, 2);
    let lines: Vec<&str> =
        lines.lines().map(|line| line.strip_prefix("+1700000000.123000 ").unwrap()).collect();
    assert_eq!(
        lines,
        [
            "[0 127.0.0.1:50001] \"SET\" \"a\" \"b\\n\\x01\"",
            "[0 127.0.0.1:50001] \"MULTI\"",
            "[0 127.0.0.1:50001] \"GET\" \"a\"",
            "[0 127.0.0.1:50001] \"EXEC\"",
            "[0 127.0.0.1:50001] \"AUTH\" \"(redacted)\" \"(redacted)\"",
            "[3 127.0.0.1:50001] \"SELECT\" \"3\"",
            "[3 127.0.0.1:50001] \"EVAL\" \"x\" \"0\"",
            "[3 127.0.0.1:50001] \"PING\"",
        ]
    );
    assert_eq!(say(&mut w, 2, &["GET a"]), "-ERR Replica can't interact with the keyspace\r\n");
    assert_eq!(say(&mut w, 2, &["RESET"]).lines().next(), Some("+RESET"));
    say(&mut w, 1, &["PING"]);
    assert_eq!(heard(&mut w, 2), "");
    for never in ["SAVE", "SHUTDOWN", "MONITOR"] {
        let told = say(&mut w, 1, &["MULTI", never, "EXEC"]);
        assert!(told.contains("-ERR Command not allowed inside a transaction"), "{told}");
        assert!(told.contains("-EXECABORT"), "{told}");
    }
}

#[test]
fn commands_tell_their_keys_and_how_often_they_failed() {
    let mut w = World::new(5);
    let asked = ["COMMAND GETKEYSANDFLAGS LMOVE a b LEFT RIGHT"];
    let expected = "*2\r\n*2\r\n$1\r\na\r\n*3\r\n+RW\r\n+access\r\n+delete\r\n*2\r\n$1\r\nb\r\n*2\r\n+RW\r\n+insert\r\n";
    assert_eq!(say(&mut w, 1, &asked), expected);
    for (asked, reply) in [
        ("GETKEYS MEMORY USAGE k", "*1\r\n$1\r\nk\r\n"),
        ("GETKEYS XGROUP CREATE k g $", "*1\r\n$1\r\nk\r\n"),
        ("GETKEYS EVAL x 1 k", "*1\r\n$1\r\nk\r\n"),
        ("GETKEYS EVAL x 0", "*0\r\n"),
        ("GETKEYS PING", "-ERR The command has no key arguments\r\n"),
        ("GETKEYS nosuch", "-ERR Invalid command specified\r\n"),
        ("GETKEYS GET k k", "-ERR Invalid number of arguments specified for command\r\n"),
        ("LIST FILTERBY PATTERN bitc*", "*1\r\n$8\r\nbitcount\r\n"),
        ("LIST FILTERBY MODULE x", "*0\r\n"),
        ("LIST FILTERBY x y", "-ERR syntax error\r\n"),
        ("LIST x", "-ERR syntax error\r\n"),
    ] {
        assert_eq!(say(&mut w, 1, &[&format!("COMMAND {asked}")]), reply, "{asked}");
    }
    say(&mut w, 1, &["SET a x", "INCR a", "INCR a b", "INCR c", "CLIENT REPLY x"]);
    let stats = say(&mut w, 1, &["INFO commandstats"]);
    assert!(stats.contains("cmdstat_incr:calls=2,rejected_calls=1,failed_calls=1\r\n"), "{stats}");
    assert!(
        stats.contains("cmdstat_client:calls=1,rejected_calls=0,failed_calls=1\r\n"),
        "{stats}"
    );
    say(&mut w, 1, &["CONFIG RESETSTAT", "INCR a", "LPUSH a x", "INCR", "nosuch", "MULTI"]);
    say(&mut w, 1, &["LPUSH a x", "SET c 1", "INCR a", "EXEC"]);
    let errors = say(&mut w, 1, &["INFO errorstats"]);
    let expected = "# Errorstats\r\nerrorstat_ERR:count=4\r\nerrorstat_WRONGTYPE:count=2\r\n";
    assert!(errors.contains(expected), "{errors}");
    let info = say(&mut w, 1, &["SCRIPT FLUSH", "SCRIPT LOAD x", "SCRIPT LOAD y", "INFO"]);
    assert!(info.contains("number_of_cached_scripts:2\r\n"), "{info}");
    assert!(info.contains("total_error_replies:6\r\n"), "{info}");
    assert_eq!(
        say(&mut w, 1, &["ROLE", "MODULE LIST"]),
        "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n*0\r\n"
    );
    let arity = "-ERR wrong number of arguments for 'xgroup|help' command\r\n";
    assert_eq!(say(&mut w, 1, &["XGROUP HELP x"]), arity);
    for name in ["XGROUP", "XINFO", "CLIENT", "CONFIG", "COMMAND"] {
        let help = say(&mut w, 1, &[&format!("{name} HELP")]);
        assert!(
            help.contains(&format!("+{name} <subcommand>"))
                && help.ends_with("Prints this help.\r\n")
        );
    }
}

#[test]
fn slow_commands_are_logged() {
    let mut w = World::new(3);
    assert_eq!(say(&mut w, 1, &["SLOWLOG LEN", "LATENCY LATEST"]), ":0\r\n*0\r\n");
    say(&mut w, 1, &["CLIENT SETNAME me", "CONFIG SET slowlog-log-slower-than 0"]);
    say(
        &mut w,
        1,
        &["SLOWLOG RESET", "SET a 1", "SELECT 1", "GET b", "MULTI", "SET c 1", "GET c", "EXEC"],
    );
    say(&mut w, 1, &["SELECT 0", "AUTH secret", "EVAL return(1) 0"]);
    let log = say(&mut w, 1, &["SLOWLOG GET -1"]);
    let args: Vec<String> = log
        .split("*6\r\n")
        .skip(1)
        .map(|entry| {
            let words: Vec<&str> =
                entry.lines().filter(|l| !l.starts_with(['$', ':', '*'])).collect();
            let (ends, words) = (&words[words.len() - 2..], &words[..words.len() - 2]);
            assert_eq!(ends[1], "me", "{entry}");
            words.join(" ")
        })
        .collect();
    let expected = [
        "EVAL return(1) 0",
        "SELECT 0",
        "EXEC SET c 1 GET c",
        "SET a 1",
        "GET b",
        "SELECT 1",
        "SLOWLOG RESET",
    ];
    assert_eq!(args, expected, "{log}");
    // Those that a client must wait for come with how long; fewer are kept once there is room for
    // fewer.
    say(&mut w, 1, &["CONFIG SET slowlog-max-len 2"]);
    assert_eq!(say(&mut w, 1, &["SLOWLOG LEN"]), ":2\r\n");
    assert!(say(&mut w, 1, &["SLOWLOG GET 1"]).starts_with("*1\r\n*6\r\n:"));
    say(&mut w, 1, &["CONFIG SET slowlog-log-slower-than -1", "SLOWLOG RESET"]);
    assert_eq!(say(&mut w, 1, &["GET a", "SLOWLOG LEN"]), "$1\r\n1\r\n:0\r\n");
    for (asked, reply) in [
        ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1\r\n"),
        ("SLOWLOG GET x", "-ERR count should be greater than or equal to -1\r\n"),
        ("SLOWLOG LEN x", "-ERR wrong number of arguments for 'slowlog|len' command\r\n"),
        ("SLOWLOG X", "-ERR unknown subcommand 'X'. Try SLOWLOG HELP.\r\n"),
        ("LATENCY HISTORY x", "*0\r\n"),
        ("LATENCY RESET", ":0\r\n"),
        ("LATENCY LATEST x", "-ERR wrong number of arguments for 'latency|latest' command\r\n"),
    ] {
        assert_eq!(say(&mut w, 1, &[asked]), reply, "{asked}");
    }
}

/// INFO is answered within MULTI, with what a replica said of the data last; it counts reads that
/// found something and those that did not, and has the fields of snapshots that dashboards read.
#[test]
fn bug_22_114_info_in_multi_and_what_dashboards_read() {
    let mut w = World::new(5);
    let first = w.ask(&["MULTI", "SET k v", "INFO memory", "EXEC"]);
    assert!(first.contains("concord_data_known:0"), "nobody has said anything yet: {first}");
    assert!(w.ask(&["INFO"]).contains("db0:keys=1"));
    let queued = w.ask(&["MULTI", "GET k", "INFO", "EXEC"]);
    assert!(queued.contains("db0:keys=1") && queued.contains("concord_data_known:1"), "{queued}");
    w.ask(&["CONFIG RESETSTAT", "GET k", "GET none", "HGET none f", "STRLEN k"]);
    let stats = w.ask(&["INFO stats"]);
    assert!(stats.contains("keyspace_hits:2\r\nkeyspace_misses:2\r\n"), "{stats}");
    let persistence = w.ask(&["INFO persistence"]);
    for line in ["rdb_changes_since_last_save:0", "rdb_last_bgsave_status:ok"] {
        assert!(persistence.contains(line), "{persistence}");
    }
}

/// Each command with subcommands has its HELP.
#[test]
fn bug_22_114_help_of_commands_with_subcommands() {
    let mut w = World::new(5);
    for name in ["OBJECT", "MEMORY", "SCRIPT", "PUBSUB", "XINFO", "XGROUP"] {
        let reply = w.ask(&[&format!("{name} HELP")]);
        let begin = format!("+{name} <subcommand>");
        assert!(reply.starts_with('*') && reply.contains(&begin), "{name}: {reply}");
        let wrong = w.ask(&[&format!("{name} HELP more")]);
        assert!(wrong.starts_with("-ERR wrong number of arguments for '"), "{name}: {wrong}");
    }
}

/// A script's text travels once in a transaction, however often it is called: as often as a queue's
/// flow of many jobs calls it.
#[test]
fn bug_22_115_a_script_in_multi_counts_once() {
    let mut w = World::new(5);
    let text = format!("return{}1", " ".repeat(30_000));
    let load = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{text}\r\n", text.len());
    w.input(1, load.as_bytes());
    let loaded = w.replies(1);
    let sha = loaded.lines().nth(1).unwrap().to_string();
    let calls: Vec<String> = (0..72).map(|n| format!("EVALSHA {sha} 1 k{n}")).collect();
    let lines: Vec<&str> =
        ["MULTI"].into_iter().chain(calls.iter().map(String::as_str)).chain(["EXEC"]).collect();
    let reply = w.ask(&lines);
    assert!(reply.starts_with("+OK\r\n+QUEUED") && reply.contains("*72\r\n"), "{reply}");
    assert_eq!(w.executed(), ["CONCORD.EXEC "]);
}
