//! The errors of docs/reference/semantics.md, each provoked at a rack of processes: what is sent is
//! what the page quotes, and each row of its table is tried, here or where the list below says.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::common::pages::{page, quoted, table};
use crate::common::*;

/// Rows that another test tries, or none can: how the row's first quotation begins, and why.
const ELSEWHERE: [(&str, &str); 12] = [
    ("-BUSY", "after 5 s of work: crates/gateway/tests/health"),
    ("-DISKFULL", "crates/concord/tests/racks/full.rs"),
    ("-CROSSKEY", "a command that the tables do not have; -ERR unknown command is tried here"),
    ("-ERR value is larger", "crates/concord/tests/racks/large.rs"),
    ("-ERR the reply is longer", "64 MiB: crates/gateway/tests"),
    ("-ERR the reply would be longer", "crates/engine/src/memory, tests/redis_engine/long.rs"),
    ("-ERR executed, but the reply", "crates/engine/tests/redis_engine/long.rs"),
    ("-ERR too much work", "crates/engine/src/memory"),
    ("-ERR max number of clients", "crates/gateway/tests"),
    ("POST", "tried here, without a reply"),
    ("-UNKNOWN", "tried here; also the row of a broken connection"),
    ("-ERR the command is larger", "crates/gateway/tests"),
];

/// What the connection gets for these bytes until it is closed, or for a second.
fn raw(listen: SocketAddr, bytes: &[u8]) -> (String, bool) {
    let mut stream = TcpStream::connect(listen).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    stream.write_all(bytes).unwrap();
    let (mut got, mut piece) = (Vec::new(), [0; 4_096]);
    let is_closed = loop {
        match stream.read(&mut piece) {
            Ok(0) => break true,
            Ok(count) => got.extend_from_slice(&piece[..count]),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break true,
            Err(_) => break false,
        }
    };
    (String::from_utf8_lossy(&got).into_owned(), is_closed)
}

/// What was sent, under the beginning of the row that quotes it.
#[derive(Default)]
struct Seen(Vec<(String, String)>);

impl Seen {
    fn note(&mut self, row: &str, said: impl Into<String>) {
        self.0.push((row.to_string(), said.into()));
    }

    /// Each row is quoted as it was sent, and each row of the page was seen.
    fn judge(&self) {
        let rows =
            table(&page("reference/semantics.md"), "## Errors, and whether it is safe to retry");
        let quotations: Vec<String> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
        for (row, said) in &self.0 {
            let own = quotations.iter().find(|own| own.starts_with(row));
            let own = own.unwrap_or_else(|| panic!("the page does not quote {row}"));
            let fixed = own.split("...").next().unwrap().trim_end();
            assert!(said.starts_with(fixed), "the page quotes {own}, and sent was {said}");
        }
        for row in &rows {
            let quotations = quoted(&row[0]);
            let Some(first) = quotations.first() else { continue };
            let is_seen = |q: &String| self.0.iter().any(|(own, _)| q.starts_with(own));
            let elsewhere = ELSEWHERE.iter().any(|(own, _)| first.starts_with(own));
            let tried = quotations.iter().any(is_seen) || elsewhere;
            assert!(tried, "no test tries the row of {first}");
        }
    }
}

/// Errors of a rack that serves.
fn of_a_serving_rack(seen: &mut Seen) {
    let rack = Rack::start("docs-errors", &["--maxmemory", "2mb"]);
    let mut client = rack.client();
    let mut say = |words: &str| client.say(words);
    seen.note("-ERR unknown command", say("NOSUCHCOMMAND k"));
    assert_eq!(say("MULTI"), "+OK");
    say("NOSUCHCOMMAND k");
    seen.note("-EXECABORT", say("EXEC"));
    let sha = "0".repeat(40);
    seen.note("-NOSCRIPT", say(&format!("EVALSHA {sha} 0")));
    seen.note("-ERR string exceeds", say("SETRANGE k 536870900 xxxxxxxxxxxx"));
    seen.note("-ERR bit offset", say("SETBIT k 4294967296 1"));
    let eval = |client: &mut Resp, script: &str| {
        client.call(&[b"EVAL", script.as_bytes(), b"1", b"k"]).unwrap().0
    };
    seen.note("-ERR the script ran for too long", eval(&mut client, "while true do end"));
    let hoards = "local t = {} for i = 1, 100 do t[i] = string.rep('x', 1000000) .. i end return 1";
    seen.note("-ERR the script took more than 32 MiB", eval(&mut client, hoards));
    assert_eq!(client.say("ACL SETUSER ann on >pw ~* +get"), "+OK");
    let mut ann = rack.client();
    seen.note("-WRONGPASS", ann.say("AUTH ann wrong"));
    assert_eq!(ann.say("AUTH ann pw"), "+OK");
    seen.note("-NOPERM", ann.say("SET k v"));
    let (said, is_closed) = raw(rack.listen, b"*1\r\n$x\r\n");
    assert!(is_closed, "{said}");
    seen.note("-ERR Protocol error", said);
    let (said, is_closed) = raw(rack.listen, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    assert!(is_closed, "{said}");
    seen.note("-ERR Protocol error: this port does not speak TLS", said);
    for line in ["POST / HTTP/1.1\r\n\r\n", "Host: x\r\n\r\n"] {
        assert_eq!(raw(rack.listen, line.as_bytes()), (String::new(), true), "{line}");
    }
    let value = "v".repeat(100_000);
    let full = (0..100).map(|n| client.say(&format!("SET k{n} {value}"))).find(|r| r != "+OK");
    seen.note("-OOM", full.unwrap());
    // Bug 24.5: a script that frees memory first adds no more than any other.
    let script =
        "redis.call('DEL', KEYS[1]) for n = 1, 50 do redis.call('SET', KEYS[1] .. n, ARGV[1]) end";
    let call: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"1", b"k0", value.as_bytes()];
    let (said, _) = client.call(&call).unwrap();
    assert!(said.contains("OOM command not allowed"), "{said}");
    assert_eq!(client.say("CONFIG SET requirepass secret"), "+OK");
    seen.note("-NOAUTH", rack.client().say("GET k"));
}

/// Errors of a rack whose switch is dead: commands of a key that came together end together.
fn of_a_rack_without_a_switch(seen: &mut Seen) {
    let rack = Rack::start("docs-dead", &[]);
    let mut client = rack.client();
    assert_eq!(client.say("SET k v"), "+OK");
    Rack::signal(rack.pid("switch"), "-9");
    let mut stream = TcpStream::connect(rack.listen).unwrap();
    let began = std::time::Instant::now();
    stream.write_all(b"SET k a\r\nGET k\r\nSET k b\r\n").unwrap();
    let mut lines = std::io::BufReader::new(stream);
    for row in ["-UNKNOWN", "-TIMEOUT", "-TRYAGAIN"] {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        seen.note(row, line.trim_end());
    }
    println!("three commands of a key ended after {:?}", began.elapsed());
    let http = rack.role("gateway", 1)["unhealthy"].clone();
    assert!(http.is_string(), "the gateway says that it is well: {http}");
}

#[test]
fn docs_errors_are_the_ones_that_are_sent() {
    let mut seen = Seen::default();
    of_a_serving_rack(&mut seen);
    of_a_rack_without_a_switch(&mut seen);
    seen.judge();
}
