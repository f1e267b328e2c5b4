//! A listener on a thread of its own: each connection costs little, and nothing ends the listener.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::error::{Context, Error};

/// The time within which a request's head must arrive, except on a connection that is kept open.
pub(super) const HEAD_MAX: Duration = Duration::from_secs(5);
/// TCP keepalive: the silence after which the system probes the other host, the interval of the
/// probes, and their number.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 3;
/// The longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served, for errors and the thread's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// The thread's name.
    pub thread: &'static str,
    /// The name of the service, such as `HTTP`.
    pub what: &'static str,
    /// The origin of the address: a flag, or the rack file.
    pub told_by: &'static str,
    /// The largest number of connections. One more ends the oldest of those that wait for no
    /// answer, or is refused.
    pub connections_max: usize,
    /// [`HEAD_MAX`], except in tests.
    pub head_max: Duration,
}

/// The state of a connection, which is among a request's extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of unanswered requests.
    asking: AtomicUsize,
    /// The number of requests so far.
    asked: AtomicUsize,
    is_closed: AtomicBool,
    is_kept: AtomicBool,
}

impl Connection {
    #[cfg(test)]
    pub(crate) fn close(&self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
    }

    fn is_asking(&self) -> bool {
        self.0.asking.load(Ordering::Relaxed) > 0
    }

    /// Whether it is open. The connection of a stopped program still is.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.is_closed.load(Ordering::Relaxed)
    }

    /// Keeps it open however long it is silent.
    pub(super) fn keep(&self) {
        self.0.is_kept.store(true, Ordering::Relaxed);
    }
}

/// Marks a connection as closed when dropped, for whatever reason.
struct Closes(Connection);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.0.is_closed.store(true, Ordering::Relaxed);
    }
}

/// Answers requests on `addr` until the process ends.
///
/// # Errors
/// One line that names the address.
pub(super) fn serve<S, A>(addr: SocketAddr, site: Site, answer: S) -> Result<(), Error>
where
    S: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let Site { thread, what, told_by, .. } = site;
    let cannot = || format!("serve {what} on {addr}");
    let listener = std::net::TcpListener::bind(addr)
        .map_err(|e| Error::listening(&format!("{what} {addr}"), &e, told_by))?;
    listener.set_nonblocking(true).cannot(cannot())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.cannot(cannot())?;
    let listener = {
        let _entered = runtime.enter();
        TcpListener::from_std(listener).cannot(cannot())?
    };
    std::thread::Builder::new()
        .name(thread.to_string())
        .spawn(move || runtime.block_on(accept(listener, site, answer)))
        .cannot(format!("start the thread for {what}"))?;
    Ok(())
}

/// Accepts connections forever: neither their number nor a refusal of the system ends it.
async fn accept<S, A>(listener: TcpListener, site: Site, answer: S)
where
    S: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let Site { what, connections_max, .. } = site;
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the listener for {what} could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if open.len() >= connections_max {
            open.retain(|connection| !connection.task.is_finished());
        }
        if open.len() >= connections_max {
            let idle = open.iter().position(|open| !open.connection.is_asking());
            // A connection that waits for an answer has precedence.
            let Some(oldest) = idle.and_then(|at| open.remove(at)) else { continue };
            oldest.task.abort();
        }
        let connection = Connection::default();
        let task =
            tokio::spawn(serve_one(stream, site.head_max, answer.clone(), connection.clone()));
        open.push_back(Open { task: task.abort_handle(), connection });
    }
}

/// A connection, with the task that serves it.
struct Open {
    task: AbortHandle,
    connection: Connection,
}

/// Turns on keepalive, so that a vanished host is noticed.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    sockopt::set_socket_keepalive(stream, true)
}

async fn serve_one<S, A>(stream: TcpStream, head_max: Duration, answer: S, connection: Connection)
where
    S: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response<Full<Bytes>>>,
{
    // Without it answers are slower, not wrong.
    let _ = stream.set_nodelay(true);
    let _ = keep_alive(&stream);
    let _closes = Closes(connection.clone());
    let own = connection.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(own.clone());
        let (answer, own) = (answer(request), own.clone());
        async move {
            own.0.asking.fetch_add(1, Ordering::Relaxed);
            own.0.asked.fetch_add(1, Ordering::Relaxed);
            let answered = answer.await;
            own.0.asking.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, Infallible>(answered)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let mut before = 0;
    // The client may be gone, or have sent something other than HTTP, which concerns only itself.
    while tokio::time::timeout(head_max, served.as_mut()).await.is_err() {
        let is_kept = connection.0.is_kept.load(Ordering::Relaxed);
        let asked = connection.0.asked.load(Ordering::Relaxed);
        if asked == before && !is_kept && !connection.is_asking() {
            return;
        }
        before = asked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    /// One more connection than there may be ends no request that waits for its answer.
    #[test]
    fn bug_21_68_one_more_connection_ends_no_request() {
        let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let site = Site {
            thread: "few",
            what: "few",
            told_by: "a test",
            connections_max: 2,
            head_max: HEAD_MAX,
        };
        let answer = |_| async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            Response::new(Full::new(Bytes::from_static(b"answer")))
        };
        serve(addr, site, answer).unwrap();
        let connect = || {
            let stream = std::net::TcpStream::connect(addr).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            stream
        };
        let ask = || {
            let mut stream = connect();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            std::thread::sleep(Duration::from_millis(50));
            stream
        };
        let is_answered = |mut stream: std::net::TcpStream| {
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            text.ends_with("answer")
        };
        let three = [ask(), ask(), ask()].map(is_answered);
        assert_eq!(three, [true, true, false], "who came last is refused");
        // One that asks for nothing makes room.
        let idle = connect();
        assert_eq!([ask(), ask()].map(is_answered), [true, true]);
        assert!(!is_answered(idle));
    }

    /// A client that sends nothing is disconnected. A kept connection stays open as long as its
    /// other end is, also for a program that is stopped.
    #[test]
    fn bug_21_90_a_connection_that_is_kept_stays_open() {
        let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let head_max = Duration::from_millis(100);
        let site =
            Site { thread: "kept", what: "kept", told_by: "a test", connections_max: 9, head_max };
        let (seen, connections) = std::sync::mpsc::channel();
        let answer = move |request: Request<Incoming>| {
            let own = request.extensions().get::<Connection>().unwrap().clone();
            if request.uri().path() == "/keep" {
                own.keep();
            }
            seen.send(own).unwrap();
            async { Response::new(Full::new(Bytes::from_static(b"answer"))) }
        };
        serve(addr, site, answer).unwrap();
        let ask = |path: &str| {
            let mut stream = std::net::TcpStream::connect(addr).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            (stream, connections.recv().unwrap())
        };
        let (kept, idle) = (ask("/keep"), ask("/"));
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!([kept.1.is_open(), idle.1.is_open()], [true, false]);
        drop(kept.0);
        let began = std::time::Instant::now();
        while kept.1.is_open() {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
