//! Serves `/metrics` (Prometheus text), `/status` (JSON) and `/health` of a role from a thread of
//! its own.
//!
//! The thread signals an eventfd, which the role's loop watches like any other descriptor; the loop
//! answers with a snapshot. So the loop shares nothing, and works only on request, at most once in
//! [`SNAPSHOT_MS`].
//!
//! Each connection costs little: at most [`CONNECTIONS_MAX`] are open, the newest ones, each of
//! bounded size; and a listener to which the system refuses a descriptor tries again.

pub mod api;
pub(crate) mod listener;
mod snapshot;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{Mutex, mpsc};

use crate::error::{Context, Error};
use listener::{HEAD_MAX, Site};

pub use snapshot::{Health, Snapshot};

/// The time in ms for which a snapshot serves requests.
pub const SNAPSHOT_MS: u64 = 100;
/// The largest number of connections. One more ends the oldest.
pub const CONNECTIONS_MAX: usize = 32;
/// The time after which a loop that does not answer is reported as unresponsive.
const ANSWER_MAX: Duration = Duration::from_secs(1);
const SITE: Site = Site {
    thread: "http",
    what: "HTTP",
    told_by: "the rack file",
    connections_max: CONNECTIONS_MAX,
    head_max: HEAD_MAX,
};

/// The loop's handle, readable when a snapshot is wanted.
#[derive(Debug)]
pub struct Publisher {
    wanted: Arc<OwnedFd>,
    snapshots: mpsc::Sender<Snapshot>,
}

impl AsFd for Publisher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }
}

impl Publisher {
    /// Answers the request that made the descriptor readable.
    pub fn publish(&self, snapshot: Snapshot) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wanted, &mut count);
        // If the thread has not taken the last one yet, it needs no other.
        let _ = self.snapshots.try_send(snapshot);
    }
}

/// The thread's handle.
struct Asker {
    wanted: Arc<OwnedFd>,
    snapshots: mpsc::Receiver<Snapshot>,
    last: Option<(Instant, Snapshot)>,
    /// The time since which the loop owes an answer.
    silent_since: Option<Instant>,
}

impl Asker {
    /// A snapshot no older than [`SNAPSHOT_MS`]; `None` if the loop does not answer.
    async fn ask(&mut self) -> Option<&Snapshot> {
        let fresh = Duration::from_millis(SNAPSHOT_MS);
        if self.last.as_ref().is_none_or(|(at, _)| at.elapsed() >= fresh) {
            // A snapshot that came after its request was given up is old.
            while self.snapshots.try_recv().is_ok() {}
            rustix::io::write(&*self.wanted, &1u64.to_ne_bytes()).ok()?;
            self.silent_since.get_or_insert_with(Instant::now);
            let answer = tokio::time::timeout(ANSWER_MAX, self.snapshots.recv()).await;
            self.last = Some((Instant::now(), answer.ok()??));
            self.silent_since = None;
        }
        self.last.as_ref().map(|(_, snapshot)| snapshot)
    }

    /// For how long the loop has not answered, in words.
    fn silence(&self) -> String {
        let seconds = self.silent_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        format!("the role does not answer: its event loop is busy, for at least {seconds:.1} s\n")
    }
}

/// Serves `/metrics`, `/status` and `/health` on `addr` until the process ends.
///
/// # Errors
/// One line that names the address.
pub fn serve(addr: SocketAddr) -> Result<Publisher, Error> {
    let wanted = Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).cannot("make an eventfd")?,
    );
    let (snapshots, receiver) = mpsc::channel(1);
    let asker =
        Asker { wanted: Arc::clone(&wanted), snapshots: receiver, last: None, silent_since: None };
    let asker = Arc::new(Mutex::new(asker));
    listener::serve(addr, SITE, move |request| answer(request, Arc::clone(&asker)))?;
    Ok(Publisher { wanted, snapshots })
}

async fn answer(request: Request<Incoming>, asker: Arc<Mutex<Asker>>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let path = request.uri().path();
    let (status, kind, body) = if !matches!(*request.method(), Method::GET | Method::HEAD) {
        (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_string())
    } else if !["/metrics", "/status", "/health"].contains(&path) {
        let pages = "there is /metrics, /status and /health\n";
        (StatusCode::NOT_FOUND, TEXT, pages.to_string())
    } else {
        let mut asker = asker.lock().await;
        match (asker.ask().await, path) {
            (Some(s), "/metrics") => {
                (StatusCode::OK, "text/plain; version=0.0.4", s.metrics() + &snapshot::process())
            }
            (Some(s), "/status") => (StatusCode::OK, "application/json", s.to_json().to_string()),
            (Some(s), _) => match &s.health {
                Health::Ok => (StatusCode::OK, TEXT, "ok\n".to_string()),
                Health::NotYet(why) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
            },
            (None, _) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, asker.silence()),
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
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
    fn health_says_why_it_is_not_well_and_other_methods_are_refused() {
        let addr = free_addr();
        let publisher = serve(addr).unwrap();
        let poller = crate::poller::Poller::new().unwrap();
        poller.add(&publisher, crate::poller::Token(1), crate::poller::Interest::READ).unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(addr).unwrap();
            write!(stream, "POST /status HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            (get(addr, "/health"), text)
        });
        let (mut raw, mut events) = (Vec::new(), Vec::new());
        let started = Instant::now();
        while !client.is_finished() && started.elapsed() < Duration::from_secs(5) {
            let now = crate::clock::now().instant;
            poller.wait(now, now.after(10_000_000), &mut raw, &mut events).unwrap();
            if !events.is_empty() {
                let mut snapshot = snapshot();
                snapshot.health = Health::NotYet("joining".to_string());
                publisher.publish(snapshot);
            }
        }
        let (health, post) = client.join().unwrap();
        assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("joining\n"), "{health}");
        assert!(post.starts_with("HTTP/1.1 405"), "{post}");
    }

    /// Alerts see what `/health` says.
    #[test]
    fn health_is_a_gauge() {
        let mut s = snapshot();
        assert!(s.metrics().contains("concord_replica_healthy{node=\"2\"} 1\n"));
        s.health = Health::NotYet("joining".to_string());
        assert!(s.metrics().contains("concord_replica_healthy{node=\"2\"} 0\n"));
    }

    #[test]
    fn a_histogram_is_cumulative_in_seconds() {
        let mut s = snapshot();
        s.histogram(
            "read_seconds",
            "Reads.",
            3,
            7_000_000,
            [(1_000_000, 1), (4_000_000, 2)].into_iter(),
        );
        let text = s.metrics();
        for line in [
            "# TYPE concord_replica_read_seconds histogram",
            "concord_replica_read_seconds_bucket{node=\"2\",le=\"0.001\"} 1",
            "concord_replica_read_seconds_bucket{node=\"2\",le=\"+Inf\"} 3",
            "concord_replica_read_seconds_sum{node=\"2\"} 0.007",
            "concord_replica_read_seconds_count{node=\"2\"} 3",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
        }
    }

    /// A loop that hangs is reported with the time since when, which counts on from one question to
    /// the next.
    #[test]
    fn bug_24_13_a_busy_loop_is_said_since_when() {
        let addr = free_addr();
        let _publisher = serve(addr).unwrap();
        let seconds = |path: &str| {
            let text = get(addr, path);
            assert!(text.starts_with("HTTP/1.1 503"), "{text}");
            let (_, rest) = text.split_once("busy, for at least ").unwrap();
            rest.split_once(" s").unwrap().0.parse::<f64>().unwrap()
        };
        let (first, second) = (seconds("/status"), seconds("/health"));
        assert!(first > 0.5 && second > first + 0.5, "{first} {second}");
    }

    #[test]
    fn a_taken_port_is_an_error() {
        let addr = free_addr();
        let _publisher = serve(addr).unwrap();
        let line = serve(addr).unwrap_err().to_string();
        assert!(line.contains("address in use"), "{line}");
    }
}
