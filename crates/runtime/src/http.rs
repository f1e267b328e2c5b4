//! `/metrics` (Prometheus text) and `/status` (JSON) of a role, from a thread of its own.
//!
//! The thread asks by an eventfd, which the role's loop watches like any other descriptor; the
//! loop answers with a snapshot. So the loop shares nothing, and pays only when somebody asks, at
//! most once in [`SNAPSHOT_MS`].

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use tiny_http::{Header, Response, Server};

use crate::error::{Context, Error};

/// A snapshot serves requests for this long, in ms.
pub const SNAPSHOT_MS: u64 = 100;
/// A loop that does not answer in this time is said to be unresponsive.
const ANSWER_MS_MAX: u64 = 1_000;

/// A role as it was at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// "switch", "replica", "gateway" or "controller".
    pub role: &'static str,
    /// Its number in the rack.
    pub node: u16,
    /// `(name, help, value)` of what only grows.
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// `(name, help, value)` of what goes up and down.
    pub gauges: Vec<(&'static str, &'static str, f64)>,
    /// What `/status` says beside the counters: an object.
    pub status: serde_json::Map<String, serde_json::Value>,
}

impl Snapshot {
    /// Of `node`, with nothing in it.
    #[must_use]
    pub fn new(role: &'static str, node: u16) -> Snapshot {
        Snapshot {
            role,
            node,
            counters: Vec::new(),
            gauges: Vec::new(),
            status: serde_json::Map::new(),
        }
    }

    /// Adds counters, as [`concord_core::counters!`] lists them.
    pub fn count(&mut self, each: impl Iterator<Item = (&'static str, &'static str, u64)>) {
        self.counters.extend(each);
    }

    /// Adds a gauge, which `/status` shows too.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.gauges.push((name, help, value));
    }

    /// Adds a field of `/status`.
    pub fn tell(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.status.insert(name.to_string(), value.into());
    }

    /// Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let (mut out, role, node) = (String::new(), self.role, self.node);
        for (name, help, value) in &self.counters {
            let name = format!("concord_{role}_{name}_total");
            // Writing to a string cannot fail.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
            let _ = writeln!(out, "{name}{{node=\"{node}\"}} {value}");
        }
        for (name, help, value) in &self.gauges {
            let name = format!("concord_{role}_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
            let _ = writeln!(out, "{name}{{node=\"{node}\"}} {value}");
        }
        out
    }

    /// One JSON object: role, node, the status fields, `gauges` and `counters`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = self.status.clone();
        object.insert("role".to_string(), self.role.into());
        object.insert("node".to_string(), self.node.into());
        let counters: serde_json::Map<_, _> =
            self.counters.iter().map(|(name, _, v)| ((*name).to_string(), (*v).into())).collect();
        let gauges: serde_json::Map<_, _> =
            self.gauges.iter().map(|(name, _, v)| ((*name).to_string(), (*v).into())).collect();
        object.insert("counters".to_string(), counters.into());
        object.insert("gauges".to_string(), gauges.into());
        object.into()
    }
}

/// The loop's end: readable when a snapshot is wanted.
#[derive(Debug)]
pub struct Publisher {
    wanted: Arc<OwnedFd>,
    snapshots: SyncSender<Snapshot>,
}

impl AsFd for Publisher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }
}

impl Publisher {
    /// Answers the request that made this readable.
    pub fn publish(&self, snapshot: Snapshot) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wanted, &mut count);
        // If the thread has not taken the last one yet, it needs no other.
        let _ = self.snapshots.try_send(snapshot);
    }
}

/// The thread's end.
struct Asker {
    wanted: Arc<OwnedFd>,
    snapshots: Receiver<Snapshot>,
    last: Option<(Instant, Snapshot)>,
}

impl Asker {
    /// A snapshot no older than [`SNAPSHOT_MS`]; `None` if the loop does not answer.
    fn ask(&mut self) -> Option<&Snapshot> {
        let fresh = Duration::from_millis(SNAPSHOT_MS);
        if self.last.as_ref().is_none_or(|(at, _)| at.elapsed() >= fresh) {
            // What came after an earlier request was given up is old.
            while self.snapshots.try_recv().is_ok() {}
            rustix::io::write(&*self.wanted, &1u64.to_ne_bytes()).ok()?;
            let timeout = Duration::from_millis(ANSWER_MS_MAX);
            self.last = Some((Instant::now(), self.snapshots.recv_timeout(timeout).ok()?));
        }
        self.last.as_ref().map(|(_, snapshot)| snapshot)
    }
}

/// Serves `/metrics` and `/status` on `addr` until the process ends.
///
/// # Errors
/// One line that names the address.
pub fn serve(addr: SocketAddr) -> Result<Publisher, Error> {
    let listener = std::net::TcpListener::bind(addr)
        .map_err(|e| Error::listening(&format!("HTTP {addr}"), &e, "the rack file"))?;
    let server = Server::from_listener(listener, None).cannot(format!("serve HTTP on {addr}"))?;
    let wanted = Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).cannot("make an eventfd")?,
    );
    let (snapshots, receiver) = sync_channel(1);
    let mut asker = Asker { wanted: Arc::clone(&wanted), snapshots: receiver, last: None };
    std::thread::Builder::new()
        .name("http".to_string())
        .spawn(move || {
            for request in server.incoming_requests() {
                let response = answer(request.url(), &mut asker);
                // The client may be gone; that is its affair.
                let _ = request.respond(response);
            }
        })
        .cannot("start the HTTP thread")?;
    Ok(Publisher { wanted, snapshots })
}

fn answer(url: &str, asker: &mut Asker) -> Response<std::io::Cursor<Vec<u8>>> {
    let (status, kind, body) = match url {
        "/metrics" | "/status" => match (asker.ask(), url) {
            (Some(s), "/metrics") => (200, "text/plain; version=0.0.4", s.metrics()),
            (Some(s), _) => (200, "application/json", s.to_json().to_string()),
            (None, _) => (503, "text/plain", "the role does not answer\n".to_string()),
        },
        _ => (404, "text/plain", "there is /metrics and /status\n".to_string()),
    };
    let response = Response::from_string(body).with_status_code(status);
    match Header::from_bytes("Content-Type", kind) {
        Ok(header) => response.with_header(header),
        Err(()) => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn get(addr: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn free_addr() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn snapshot() -> Snapshot {
        let mut s = Snapshot::new("replica", 2);
        s.count([("reads_fast", "Reads answered alone.", 7)].into_iter());
        s.gauge("keys", "Number of keys.", 3.0);
        s.tell("phase", "open");
        s
    }

    #[test]
    fn metrics_have_help_type_and_node() {
        let text = snapshot().metrics();
        assert!(text.contains("# HELP concord_replica_reads_fast_total Reads answered alone.\n"));
        assert!(text.contains("# TYPE concord_replica_reads_fast_total counter\n"));
        assert!(text.contains("concord_replica_reads_fast_total{node=\"2\"} 7\n"));
        assert!(text.contains("# TYPE concord_replica_keys gauge\n"));
        assert!(text.contains("concord_replica_keys{node=\"2\"} 3\n"));
    }

    #[test]
    fn a_loop_is_asked_when_somebody_asks_and_not_twice_in_a_moment() {
        let addr = free_addr();
        let publisher = serve(addr).unwrap();
        let poller = crate::poller::Poller::new().unwrap();
        poller.add(&publisher, crate::poller::Token(1), crate::poller::Interest::READ).unwrap();
        let client = std::thread::spawn(move || {
            ["/status", "/metrics", "/", "/status"].map(|path| get(addr, path))
        });
        let (mut raw, mut events, mut asked) = (Vec::new(), Vec::new(), 0);
        let started = Instant::now();
        while !client.is_finished() && started.elapsed() < Duration::from_secs(5) {
            let now = crate::clock::now().instant;
            poller.wait(now, now.after(10_000_000), &mut raw, &mut events).unwrap();
            if !events.is_empty() {
                asked += 1;
                publisher.publish(snapshot());
            }
        }
        let [status, metrics, other, again] = client.join().unwrap();
        assert!(status.contains("\"reads_fast\":7") && status.contains("\"phase\":\"open\""));
        assert!(metrics.contains("concord_replica_keys"));
        assert!(other.starts_with("HTTP/1.1 404"));
        assert!(again.contains("\"node\":2"));
        assert!((1..=3).contains(&asked), "asked {asked} times");
    }

    #[test]
    fn a_loop_that_hangs_is_reported_and_a_taken_port_is_an_error() {
        let addr = free_addr();
        let _publisher = serve(addr).unwrap();
        assert!(get(addr, "/status").starts_with("HTTP/1.1 503"));
        let line = serve(addr).unwrap_err().to_string();
        assert!(line.contains("address in use"), "{line}");
    }
}
