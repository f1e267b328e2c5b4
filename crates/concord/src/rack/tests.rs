//! The rack file as it is read and written, and the error for each likely mistake in it.

use super::*;

fn refused(text: &str) -> String {
    let line = Rack::parse(text).unwrap_err();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn flair_is_for_vr_and_up_to_eight_replicas() {
    let file = |more: &str| refused(&format!("accel = \"flair\"\n{more}"));
    assert!(
        file("").contains(
            "program flair does not fit protocol chain; those that do: forward, harmonia"
        )
    );
    let replica = |n| format!("[[replica]]\nnode = {n}\naddr = \"127.0.0.1:{}\"\n", 7_100 + n);
    let replicas: String = (1..=9).map(replica).collect();
    let vr = "protocol = \"vr\"\n";
    assert!(file(&format!("{vr}{replicas}")).contains("8 replicas, not 9"));
    assert!(Rack::parse(&format!("accel = \"flair\"\n{vr}")).is_ok());
}

#[test]
fn an_empty_file_is_the_default_rack() {
    assert_eq!(Rack::parse("").unwrap(), Rack::default());
}

#[test]
fn each_likely_mistake_gets_one_clear_line() {
    for (file, wanted) in MISTAKES {
        let line = refused(file);
        assert_eq!(line, *wanted, "{file}");
    }
}

#[test]
fn a_host_name_is_looked_up() {
    let named = Rack::parse("[[replica]]\nnode = 1\naddr = \"localhost:7001\"\n").unwrap();
    assert_eq!(named.replica[0].addr, SocketAddrV4::new(LOCALHOST, 7_001));
    assert!(Rack::parse("protocol = \"craq\"\naccel = \"none\"").is_ok());
}

/// Mistakes in a rack file, and the error for each: the file, and the line after its name.
const MISTAKES: &[(&str, &str)] = &[
    // Names.
    (
        "protocol = \"chain\"\nacel = \"none\"\n",
        ":2: unknown key `acel`; the nearest known one is `accel`",
    ),
    (
        "\n\nprotocol = \"ring\"\n",
        ":3: unknown value `ring`, expected one of `chain`, `primary-backup`, `vr`, `craq`, `nopaxos`, `raft`",
    ),
    (
        "protocol = \"paxos\"",
        ":1: unknown value `paxos`, expected one of `chain`, `primary-backup`, `vr`, `craq`, `nopaxos`, `raft`",
    ),
    ("system = \"falcon\"", ":1: unknown key `system`: it is a flag of `concord up`, --system"),
    (
        "[package]\nname = \"rack\"",
        ":1: unknown section `package`, expected one of `table`, `key_groups`, `queue`, `chain`, `faults`, `controller`, `switch`, `standby`, `replica`, `gateway`, `group`",
    ),
    ("[switch.port]\nnumber = 7", ":1: unknown section `port`: there is none here"),
    (
        "zzzzzz = 1",
        ":1: unknown key `zzzzzz`, expected one of `version`, `protocol`, `accel`, `reads`, `engine`, `durability`, `redis_server`, `maxmemory`, `log_memory`, `reply_memory`, `max_value`, `scrub_seconds`, `compare_ms`, `script_seconds`, `requirepass`, `split_reads`, `coord_prefix`, `lease_ms`, `failure_ms`, `switch_failure_ms`, `replies_via_switch`",
    ),
    (
        "[[replicas]]\nnode = 1\n",
        ":1: unknown section `replicas`; the nearest known one is `replica`",
    ),
    (
        "[switch]\naddress = \"10.0.0.2:7001\"",
        ":2: unknown key `address`; the nearest known one is `addr`",
    ),
    ("[table]\nslot = 64", ":2: unknown key `slot`; the nearest known one is `slots`"),
    // Places of roles.
    (
        "[switch]\naddr = \"10.0.0.2:7001\"\nprotocol = \"vr\"",
        ":3: unknown key `protocol` here; it belongs to the top level, above the first section or in [[group]]",
    ),
    ("slots = 4096", ":1: unknown key `slots` here; it belongs in [queue] or in [table]"),
    (
        "[replica]\nnode = 1\naddr = \"10.0.0.3:7001\"",
        ":1: there may be several of this section: write [[replica]]",
    ),
    (
        "lease_ms = 500\n[[switch]]\naddr = \"10.0.0.2:7001\"",
        ":2: there is one of this section: write [switch]",
    ),
    (
        "lease_ms = 500\n[replica]\nnode = 1\n\n[[replica]]\nnode = 2",
        ":2: there may be several of this section: write [[replica]]",
    ),
    (
        "[replica]\nnode = 1\n[replica]\nnode = 2",
        ":1: there may be several of this section: write [[replica]]",
    ),
    (
        "[table]\nslots = 64\n[table]\nslots = 64",
        ":3: this section is there twice, first in line 1: `[table]`",
    ),
    (
        "[[group.replica]]\nnode = 1\naddr = \"10.0.0.3:7001\"",
        ":1: [[group.replica]] stands below the [[group]] that it is of; there is none above",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\n[group.replica]\nnode = 1\naddr = \"10.0.0.3:7001\"",
        ":4: there may be several of this section: write [[group.replica]]",
    ),
    (
        "[[worker]]\nnode = 1",
        ":1: unknown section `worker` here; it belongs below a [[group]], as [[group.worker]]",
    ),
    ("key_file = \"key\"", ":1: unknown key `key_file` here; it belongs in [[group]]"),
    ("allow_exec = true", ":1: unknown key `allow_exec` here; it belongs in [[group.worker]]"),
    ("[[replica]]\nnode = 1\n", ":1: this section lacks the key `addr`"),
    ("lease_ms = 1\nlease_ms = 2", ":2: this key is there twice: `lease_ms = 2`"),
    ("version = 2", ":1: version is 2; this concord reads version 1"),
    ("version = 2\nnew_key = 1", ":1: version is 2; this concord reads version 1"),
    // Values.
    (
        "coord_prefix = \"@\"",
        ":1: coord_prefix is for the keys of a chain; there is no [[group]] of kind = \"switches\"",
    ),
    (
        "coord_prefix = \"0123456789abcdef0123456789abcdef\"",
        ":1: coord_prefix: keys of a chain have 32 bytes at most, none of them 0",
    ),
    ("lease_ms = \"500\"", ":1: lease_ms: found string \"500\"; write a whole number, 0 or more"),
    (
        "protocol = \"craq\"\naccel = \"none\"\nreads = \"read-index\"",
        ":3: reads = \"read-index\" is for protocols with a leader: write protocol = \"raft\", \"vr\" or \"nopaxos\"",
    ),
    (
        "protocol = \"raft\"\naccel = \"flair\"\nreads = \"follower-lease\"",
        ":3: reads = \"follower-lease\" is for raft without the switch's help: write protocol = \"raft\" and accel = \"none\"",
    ),
    (
        "protocol = \"vr\"\naccel = \"none\"\nreads = \"quorum\"",
        ":3: reads = \"quorum\" is for raft without the switch's help: write protocol = \"raft\" and accel = \"none\"",
    ),
    (
        "[key_groups]\ngroups = 1000",
        ":2: key_groups.groups is 1000; give it a power of two from 64 to 131072",
    ),
    ("[key_groups]\nstepdown_ms = 50", ":2: key_groups.stepdown_ms is 50; give it 75 to 60000"),
    ("[key_groups]\nrepair_ms = 0", ":2: key_groups.repair_ms is 0; give it 1 to 60000"),
    ("lease_ms = -1", ":1: lease_ms: found integer `-1`; write a whole number, 0 or more"),
    ("lease_ms = 0", ":1: lease_ms must be above 0"),
    (
        "reads = \"leader-lease\"",
        ":1: reads = \"leader-lease\" is for protocols with a leader: write protocol = \"raft\", \"vr\" or \"nopaxos\"",
    ),
    (
        "failure_ms = 9000000000000000000",
        ":1: failure_ms is 9000000000000000000; it must be at most 3600000",
    ),
    ("lease_ms = 3600001", ":1: lease_ms is 3600001; it must be at most 3600000"),
    ("compare_ms = 3600001", ":1: compare_ms is 3600001; it must be at most 3600000"),
    ("scrub_seconds = 31536001", ":1: scrub_seconds is 31536001; it must be at most 31536000"),
    (
        "maxmemory = 512",
        ":1: maxmemory is 512 bytes; it must be at least 1mb, or 0 for no limit: the units are kb, mb and gb",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"memory\"\nblock_bytes = 3000",
        ":5: group b: block_bytes is 3000; it must be one of 512, 1024, 2048, 4096",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"memory\"\nrange_blocks = 0",
        ":5: group b: range_blocks is 0; it must be from 1 to 4294967296",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"workers\"\ncache_blocks = 8",
        ":5: group b: cache_blocks is for kind = \"memory\"",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"workers\"\nlease_ms = 3600001",
        ":5: lease_ms is 3600001; it must be at most 3600000",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"workers\"\n[[group.worker]]\nnode = 1\naddr = \"10.0.0.3:7001\"\nslots = 0",
        ":8: group b: slots is 0; a worker runs at least 1 task at a time",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"workers\"\n[[group.worker]]\nnode = 1\naddr = \"10.0.0.3:7001\"\nhas = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"]",
        ":8: group b: its workers have more than 7 different things",
    ),
    // Values of another type.
    ("accel = true", ":1: accel: found `true`; write one of \"harmonia\", \"flair\", \"none\""),
    (
        "engine = [\"memory\"]",
        ":1: engine: found `[\"memory\"]`; write one of \"memory\", \"redis\"",
    ),
    (
        "[[group]]\nname = \"b\"\nnumber = 1\nkind = \"workers\"\n[[group.worker]]\nnode = 1\naddr = \"10.0.0.3:7001\"\nhas = \"gpu\"",
        ":8: has: found string \"gpu\"; write a list of text, like [\"gpu\"]",
    ),
    (
        "[[replica]]\nnode = \"1\"\naddr = \"10.0.0.3:7001\"",
        ":2: node: found string \"1\"; write a whole number from 0 to 65535",
    ),
    (
        "switch = \"10.0.0.2:7001\"",
        ":1: switch: found string \"10.0.0.2:7001\"; it is a section: write [switch]",
    ),
    ("replica = 3", ":1: replica: found integer `3`; it is a section: write [[replica]]"),
    (
        "[split_reads]\non = true",
        ":1: `split_reads` is a key and no section: write true or false, as split_reads = ...",
    ),
    (
        "[accel]",
        ":1: `accel` is a key and no section: write one of \"harmonia\", \"flair\", \"none\", as accel = ...",
    ),
    // Text that is not TOML.
    ("failure_ms = 2s # “x”", ":1: write a whole number: `failure_ms = 2s # “x”`"),
    ("split_reads = yes", ":1: write true or false: `split_reads = yes`"),
    ("failure_ms = 2s", ":1: write a whole number: `failure_ms = 2s`"),
    ("[[replica]]\nnode = 1 // first", ":2: comments begin with #: `node = 1 // first`"),
    ("; the rack", ":1: comments begin with #: `; the rack`"),
    (
        "[switch]\naddr = 10.0.0.1:7001\"",
        ":2: text stands between two double quotes, of which one is missing: `addr = 10.0.0.1:7001\"`",
    ),
    ("[[replica]]\nnode =\n", ":2: a value is missing: `node =`"),
    ("protocol = “chain”", ":1: text is written in plain double quotes, \": `protocol = “chain”`"),
    (
        "lease_ms = 100\nfailure_ms = 50",
        ":2: failure_ms is 50; it must be at least lease_ms, which is 100",
    ),
    (
        "switch_failure_ms = 10",
        ":1: switch_failure_ms is 10; it must be from 250 to failure_ms, which is 1500",
    ),
    ("split_reads = \"yes\"", ":1: split_reads: found string \"yes\"; write true or false"),
    ("protocol = chain", ":1: text is written in double quotes: `protocol = chain`"),
    ("a = = 1", ":1: extra `=`, expected nothing: `a = = 1`"),
    ("maxmemory = \"1tb\"", ":1: \"1tb\" is not a size; write it like 512mb or 1gb"),
    ("reply_memory = \"100mb\"", ":1: reply_memory must be at least 128mb: two replies of 64 MiB"),
    ("max_value = \"512mb\"", ":1: max_value must be from 1mb to 64mb: no reply is longer"),
    ("log_memory = \"much\"", ":1: \"much\" is not a size; write it like 512mb or 1gb"),
    ("maxmemory = true", ":1: maxmemory: found `true`; write a size, like \"512mb\" or 1000"),
    (
        "[table]\nslots = 1000\n",
        ":1: table: a stage has 1000 slots: give it a power of two up to 16777216",
    ),
    (
        "[table]\nstages = 300\n",
        ":2: stages: found integer `300`; write a whole number from 0 to 255",
    ),
    (
        "[queue]\nslots = 1000\n",
        ":1: queue: the queue has 1000 slots: give it a power of two from 2 to 131072",
    ),
    (
        "[faults]\ndrop_per_million = 1000001\n",
        ":2: drop_per_million is 1000001; it must be at most 1000000",
    ),
    (
        "protocol = \"craq\"",
        ":1: protocol craq runs without the switch's help: write accel = \"none\"",
    ),
    (
        "accel = \"flair\"",
        ":1: the program flair does not fit protocol chain; those that do: forward, harmonia",
    ),
    // Roles.
    ("[[replica]]\nnode = 0\naddr = \"10.0.0.3:7001\"", ":2: replica 0: numbers begin at 1"),
    (
        "[[replica]]\nnode = 1\naddr = \"10.0.0.3:7001\"\n\n[[replica]]\nnode = 1\naddr = \"10.0.0.4:7001\"",
        ":6: there are two of replica 1",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"10.0.0.3:7001\"\ncpu_share = 1.5",
        ":4: cpu_share is 1.5; it must be above 0 and at most 1",
    ),
    (
        "[controller]\naddr = \"10.0.0.1\"\nstate = \"s\"\n",
        ":2: \"10.0.0.1\" has no port; write host:port, like 10.0.0.7:7001",
    ),
    ("[controller]\naddr = \"10.0.0.1:7001\"\n", ":1: this section lacks the key `state`"),
    (
        "[controller]\naddr = 10.0.0.1:7001\n",
        ":2: text is written in double quotes: `addr = 10.0.0.1:7001`",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"0.0.0.0:7001\"",
        ":3: replica 1: addr is 0.0.0.0:7001; the others must be able to send there, so write the host's own address",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"10.0.0.3:0\"",
        ":3: replica 1: port 0; say which port it takes",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"[::1]:7001\"",
        ":3: \"[::1]:7001\" has an IPv6 address only; roles talk over IPv4",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"10.0.0.3:70011\"",
        ":3: the port is 1 to 65535, not \"70011\"",
    ),
    ("[switch]\naddr = \"10.0.0.3:-1\"", ":2: the port is 1 to 65535, not \"-1\""),
    ("[switch]\naddr = \"10.0.0.3:7001 \"", ":2: the port is 1 to 65535, not \"7001 \""),
    (
        "[[gateway]]\nnode = 1\naddr = \"10.0.0.6:7001\"\nlisten = \"0.0.0.0:70000\"",
        ":4: the port is 1 to 65535, not \"70000\"",
    ),
    (
        "[switch]\naddr = \":7001\"",
        ":2: \":7001\" has no host; write host:port, like 10.0.0.7:7001",
    ),
    (
        "[switch]\naddr = \"10.199.77:7000\"",
        ":2: \"10.199.77\" is no IPv4 address: write four numbers of 0 to 255, like 10.0.0.7",
    ),
    (
        "[switch]\naddr = \"10.199.77.256:7000\"",
        ":2: \"10.199.77.256\" is no IPv4 address: write four numbers of 0 to 255, like 10.0.0.7",
    ),
    (
        "[switch]\naddr = \"255.255.255.255:7000\"",
        ":2: switch: addr is 255.255.255.255:7000; the others must be able to send there, so write the host's own address",
    ),
    (
        "[controller]\naddr = \"10.0.0.1:7000\"\nstate = \"s\"\n[switch]\naddr = \"127.0.0.1:7000\"",
        ":5: switch: addr is 127.0.0.1:7000, which other hosts cannot reach, and controller is at 10.0.0.1:7000: write the host's own address",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"10.0.0.3:7001\"\nhttp = \"0.0.0.0:9001\"",
        ":4: replica 1: http is 0.0.0.0:9001; `concord status` asks there, so write the host's own address",
    ),
    (
        "[[replica]]\nnode = 1\naddr = \"10.0.0.3:7001\"\nhttp = \"r1:9001\"",
        ":4: write an IP address and a port in double quotes, like \"10.0.0.7:9001\"",
    ),
    (
        "[switch]\naddr = \"10.0.0.3:7001\"\n[[replica]]\nnode = 1\naddr = \"10.0.0.3:7001\"",
        ":5: replica 1 and switch have one addr, 10.0.0.3:7001",
    ),
    (
        "[[gateway]]\nnode = 1\naddr = \"10.0.0.6:7001\"\nlisten = \"0.0.0.0:6379\"\nhttp = \"10.0.0.6:6379\"",
        ":5: gateway 1: http and listen are one address, 10.0.0.6:6379",
    ),
    ("[[gateway]]\nnode = 1\naddr = \"10.0.0.6:7001\"", ":1: this section lacks the key `listen`"),
];

const TWO: &str = "\
[[replica]]
node = 1
addr = \"127.0.0.1:1\"
[[group]]
name = \"sessions\"
number = 3
protocol = \"vr\"
program = \"forward\"
maxmemory = \"1mb\"
[[group.replica]]
node = 1
addr = \"127.0.0.1:2\"
[[group]]
name = \"tasks\"
number = 4
kind = \"workers\"
[[group.worker]]
node = 1
addr = \"127.0.0.1:3\"
[[gateway]]
node = 1
addr = \"127.0.0.1:4\"
listen = \"127.0.0.1:5\"
group = \"sessions\"
[queue]
slots = 4096
capacity = 4096
";

#[test]
fn a_group_has_what_it_says_and_else_what_the_top_level_does() {
    let rack = Rack::parse(TWO).unwrap();
    assert_eq!(Rack::parse(&rack.to_toml().unwrap()).unwrap(), rack);
    let groups = rack.groups().unwrap();
    let names: Vec<_> = groups.iter().map(|g| (g.name, g.id.0, g.program.name())).collect();
    assert_eq!(
        names,
        [("store", 0, "harmonia"), ("sessions", 3, "forward"), ("tasks", 4, "falcon")]
    );
    assert_eq!((groups[1].engine, groups[1].maxmemory), (Engine::Memory, Bytes(1 << 20)));
    assert_eq!(rack.group_of(&rack.gateway[0]).unwrap().name, "sessions");
    assert_eq!(groups[0].member_name("replica", 1), "replica 1");
    assert_eq!(groups[1].member_stem("replica", 1), "sessions-replica-1");
    let pick = |name, node| {
        let picked = pick_member("replica", &groups, |g| g.replicas, |r| r.node, (name, node));
        picked.map_or_else(|e| e.to_string(), |(group, own)| format!("{} {}", group.name, own.addr))
    };
    assert_eq!(pick(Some("sessions"), Some(1)), "sessions 127.0.0.1:2");
    assert_eq!(pick(Some("store"), None), "store 127.0.0.1:1");
    assert_eq!(pick(None, Some(1)), "which replica? Say --group with one of store, sessions");
    let line = pick(Some("tasks"), None);
    assert!(line.contains("no group tasks has a replica"), "{line}");
    // All groups in `[[group]]`: there is no store.
    let (_, groups) = TWO.split_once("[[group]]").unwrap();
    let rack = Rack::parse(&format!("[[group]]{groups}")).unwrap();
    let names: Vec<_> = rack.groups().unwrap().iter().map(|g| g.name).collect();
    assert_eq!(names, ["sessions", "tasks"]);
}

#[test]
fn an_empty_path_is_refused_with_its_line() {
    let state = "[controller]\naddr = \"127.0.0.1:1\"\nstate = \"\"\n";
    assert_eq!(refused(state), ":3: state is empty: write a path");
    let data = "[[replica]]\nnode = 1\naddr = \"127.0.0.1:1\"\ndata_dir = \"\"\n";
    assert_eq!(refused(data), ":4: data_dir is empty: write a path");
    let home = "data_dir begins with ~, which only a shell knows: write the whole path";
    assert_eq!(refused(&data.replace("\"\"", "\"~/data\"")), format!(":4: {home}"));
    let group = "[[group]]\nname = \"b\"\nnumber = 1\n";
    let data = data.replace("[[", "[[group.").replace("\"\"", "\"~/data\"");
    assert_eq!(refused(&format!("{group}{data}")), format!(":7: {home}"));
}

#[test]
fn groups_that_do_not_fit_are_refused_in_a_line() {
    let but = |from: &str, to: &str| {
        assert!(TWO.contains(from));
        refused(&TWO.replace(from, to))
    };
    assert!(but("protocol = \"vr\"", "protcol = \"vr\"").ends_with("known one is `protocol`"));
    assert!(but("[[group.worker]]", "[[group.wroker]]").ends_with("known one is `worker`"));
    assert!(
        but("kind = \"workers\"", "kind = \"worker\"")
            .ends_with("expected one of `replicas`, `workers`, `switches`, `memory`")
    );
    assert!(but("number = 4", "number = 3").contains("group tasks: another one has number 3"));
    assert!(but("number = 4", "number = 0").contains("0 is the store's"));
    assert!(but("\"tasks\"", "\"sessions\"").contains("another one has that name"));
    assert!(but("\"tasks\"", "\"store\"").contains("another one has that name"));
    assert!(but("\"tasks\"", "\"Tasks\"").contains("lower case letters"));
    assert!(but("\"forward\"", "\"craq\"").contains("those that do: forward, harmonia"));
    assert!(but("\"forward\"", "\"mirror\"").contains("there is no program \"mirror\""));
    assert!(but("kind = \"workers\"\n", "").contains("is for kind = \"workers\""));
    let line = but("number = 4", "number = 4\nengine = \"redis\"");
    assert!(line.contains("group tasks: engine is for kind = \"replicas\""), "{line}");
    assert!(but("group = \"sessions\"", "group = \"tasks\"").contains("no group tasks"));
    assert!(but("127.0.0.1:3", "127.0.0.1:2").contains("tasks worker 1 and sessions replica 1"));
    let group = "[[group]]\nname = \"b\"\nnumber = 1\n[table]\nslots = 131072\n";
    let replica = "[[replica]]\nnode = 1\naddr = \"127.0.0.1:1\"\n";
    let line = refused(&format!("{replica}{group}"));
    assert!(line.contains("do not fit on one switch") && line.contains("[table]"), "{line}");
    assert!(Rack::parse(&format!("{replica}[table]\nslots = 131072")).is_ok());
}

#[test]
fn chains_that_cannot_be_are_refused_in_a_line() {
    let group = "[[group]]\nname = \"c\"\nnumber = 1\nkind = \"switches\"\n";
    let switch = |n: u16| format!("[[group.switch]]\nnode = {n}\naddr = \"127.0.0.1:{n}\"\n");
    let all = |most: u16| (1..=most).map(switch).collect::<String>();
    let line = refused(&format!("{group}{}", all(9)));
    assert!(
        line.ends_with(
            "group c: a chain has 1 to 8 switches, not 9; with `length` others are spares"
        ),
        "{line}"
    );
    for (length, switches, wanted) in [
        (0, 2, "group c: length is 0; a chain has 1 to 8 switches"),
        (9, 9, "group c: length is 9; a chain has 1 to 8 switches"),
        (3, 2, "group c: length is 3, more than it has switches (2)"),
        (3, 17, "group c: a chain and its spares are at most 16 switches, not 17"),
    ] {
        let line = refused(&format!("{group}length = {length}\n{}", all(switches)));
        assert!(line.ends_with(wanted), "{line}");
    }
    let spares = Rack::parse(&format!("{group}length = 2\n{}", all(16))).unwrap();
    assert_eq!(spares.groups().unwrap()[0].chain_length(), 2);
    let line = refused(&format!("{group}length = 2\n").replace("switches", "workers"));
    assert!(line.contains("length is for kind = \"switches\""), "{line}");
    for (cells, wanted) in [("keys = 1000", "powers of two"), ("value_bytes = 24", "16, 32 or 64")]
    {
        let line = refused(&format!("[chain]\n{cells}\n{group}{}", all(2)));
        assert!(line.contains(wanted), "{line}");
    }
    let line = refused(&format!("{group}{}", all(2)).replace("switches", "workers"));
    assert!(line.contains("[[group.switch]] is for kind = \"switches\""), "{line}");
    // A chain needs no switch of the rack.
    let controller = "[controller]\naddr = \"127.0.0.1:9\"\nstate = \"state\"\n";
    let whole = Rack::parse(&format!("{controller}{group}{}", all(8))).unwrap();
    assert!(whole.check_whole().is_ok());
    let store =
        format!("{controller}[[replica]]\nnode = 1\naddr = \"127.0.0.1:10\"\n{group}{}", all(1));
    assert!(Rack::parse(&store).unwrap().check_whole().is_err());
    let none = Rack::parse(&format!("{controller}{group}")).unwrap().check_whole().unwrap_err();
    assert!(none.to_string().contains("group c has no [[group.switch]]"), "{none}");
}

#[test]
fn a_whole_rack_survives_its_file() {
    let addr = |n: u16| SocketAddrV4::new(LOCALHOST, 7_000 + n);
    let http = |n: u16| Some(SocketAddr::V4(addr(n)));
    let rack = Rack {
        maxmemory: "64mb".parse().unwrap(),
        log_memory: "1gb".parse().unwrap(),
        reply_memory: "512mb".parse().unwrap(),
        requirepass: "secret \"quoted\"".to_string(),
        split_reads: true,
        faults: Faults { drop_per_million: 10_000, ..Faults::default() },
        controller: Some(ControllerPlace {
            addr: addr(1),
            http: http(1),
            state: "run/c.state".into(),
        }),
        switch: Some(SwitchPlace { addr: addr(2), http: None }),
        standby: vec![StandbyPlace { node: 1, addr: addr(3), http: http(3) }],
        replica: vec![ReplicaPlace {
            node: 1,
            addr: addr(4),
            http: http(4),
            directory: None,
            data_dir: None,
            cpu_share: Some(0.05),
        }],
        gateway: vec![GatewayPlace {
            node: 1,
            addr: addr(5),
            http: http(5),
            group: None,
            listen: addr(6).into(),
        }],
        ..Rack::default()
    };
    assert_eq!(Rack::parse(&rack.to_toml().unwrap()).unwrap(), rack);
}

#[test]
fn sizes_are_written_as_redis_writes_them() {
    for (text, bytes) in [("1gb", 1 << 30), ("100MB", 100 << 20), ("2k", 2_000), ("7", 7)] {
        assert_eq!(text.parse(), Ok(Bytes(bytes)));
    }
    for text in ["", "gb", "1tb", "-1", "1.5gb", "99999999999gb"] {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
    assert_eq!(Rack::parse("maxmemory = 5000000").unwrap().maxmemory, Bytes(5_000_000));
}

#[test]
fn a_node_is_picked_or_the_numbers_are_named() {
    let line = |all: &[u16], wanted| match pick("replica", all, |n| *n, wanted) {
        Ok(n) => n.to_string(),
        Err(e) => e.to_string(),
    };
    assert_eq!(line(&[4], None), "4");
    assert_eq!(line(&[1, 2], Some(2)), "2");
    assert!(line(&[1, 2], Some(3)).contains("no replica 3, only 1, 2"));
    assert!(line(&[1, 2], None).contains("--node with one of 1, 2"));
    assert!(line(&[], None).contains("no [[replica]]"));
    let groups = Rack::parse(TWO).unwrap();
    let groups = groups.groups().unwrap();
    let picked = pick_member("owner", &groups, |g| g.owners, |o| o.node, (None, None));
    assert_eq!(picked.unwrap_err().to_string(), "there is no [[group.owner]]");
}

#[test]
fn a_file_that_leaves_out_a_role_is_for_concord_up_alone() {
    let line = |text: &str| {
        let rack = Rack::parse(text).unwrap();
        rack.check_whole().map_or_else(|mistake| mistake.in_file(text), |()| "whole".to_string())
    };
    let roles = ": names no role; a rack has [controller], [switch], [[replica]] and [[gateway]]";
    let writes = "`concord up` writes a complete rack file";
    let controller = "[controller]\naddr = \"127.0.0.1:1\"\nstate = \"s\"\n";
    let switch = "[switch]\naddr = \"127.0.0.1:2\"\n";
    let replica = "[[replica]]\nnode = 1\naddr = \"127.0.0.1:3\"\n";
    assert_eq!(line(""), roles);
    assert_eq!(line("protocol = \"vr\"\n"), roles);
    assert_eq!(line(switch), format!(": there is no [controller]; {writes}"));
    assert_eq!(line(controller), format!(": there is no [switch]; {writes}"));
    let both = format!("{controller}{switch}");
    assert_eq!(line(&both), format!(": there is no [[replica]]; {writes}"));
    assert_eq!(line(&format!("{both}{replica}")), "whole");
    let gateway = "[[gateway]]\nnode = 1\naddr = \"127.0.0.1:4\"\nlisten = \"127.0.0.1:0\"\n";
    let port = ":12: gateway 1: port 0; say which port it takes";
    assert_eq!(line(&format!("{both}{replica}{gateway}")), port);
    let group = "[[group]]\nname = \"b\"\nnumber = 1\n";
    assert_eq!(line(&format!("{both}{group}")), ":6: group b has no [[group.replica]]");
    let workers = format!("{both}{group}kind = \"workers\"\n");
    assert_eq!(line(&workers), ":6: group b has no [[group.worker]]");
    let worker = "[[group.worker]]\nnode = 1\naddr = \"127.0.0.1:5\"\n";
    assert_eq!(line(&format!("{workers}{worker}")), "whole");
}

#[test]
fn what_is_no_text_file_or_too_long_is_no_rack_file() {
    let file = std::env::temp_dir().join(format!("concord-no-rack-{}", std::process::id()));
    let line = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let line = Rack::read(&file).map_or_else(|e| e.to_string(), |_| "a rack".to_string());
        line.replace(&file.display().to_string(), "FILE")
    };
    assert_eq!(line(b"lease_ms = 500\n"), "a rack");
    assert_eq!(line(b"\xff\xfe"), "FILE is no text file: it has bytes that are not UTF-8");
    let long = vec![b'\n'; 1 << 20];
    assert_eq!(line(&long), "a rack");
    assert_eq!(
        line(&[long, vec![b'\n']].concat()),
        "FILE is no rack file: it is larger than 1 MiB"
    );
    assert_eq!(line(b"lease_ms = 0"), "FILE:1: lease_ms must be above 0");
    std::fs::write(&file, "# a rack\nlease_ms = 500\n").unwrap();
    assert_eq!(line_of(&file, "lease_ms"), format!("{}:2", file.display()));
    std::fs::remove_file(&file).unwrap();
    let line = Rack::read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(line, "/dev/zero is no regular file");
}

#[test]
fn a_host_name_that_is_not_known_is_said_so() {
    let line = refused("[switch]\naddr = \"no-such-host.invalid:7001\"\n");
    let wanted = ":2: the host name \"no-such-host.invalid\" cannot be resolved: ";
    assert!(line.starts_with(wanted), "{line}");
}
