//! A listener on a thread of its own: whoever connects costs little, and nothing ends it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::error::{Context, Error};

/// A request's head must come in this time.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long the listener waits after the system refused it a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served, for its thread's name, and for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// The thread's name.
    pub thread: &'static str,
    /// Such as `HTTP`.
    pub what: &'static str,
    /// Where the address was given: a flag, or the rack file.
    pub told_by: &'static str,
    /// Most connections at a time; one more ends the oldest of those that wait for no answer, or is
    /// refused.
    pub connections_max: usize,
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

/// Accepts for ever: no number of connections, and no refusal of the system, ends it.
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
            let idle = open.iter().position(|connection| !connection.is_asking());
            // Who waits for an answer was there first.
            let Some(oldest) = idle.and_then(|at| open.remove(at)) else { continue };
            oldest.task.abort();
        }
        let asking = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(connection(stream, answer.clone(), Arc::clone(&asking)));
        open.push_back(Open { task: task.abort_handle(), asking });
    }
}

/// A connection.
struct Open {
    task: AbortHandle,
    /// Requests that are not answered.
    asking: Arc<AtomicUsize>,
}

impl Open {
    fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }
}

async fn connection<S, A>(stream: TcpStream, answer: S, asking: Arc<AtomicUsize>)
where
    S: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response<Full<Bytes>>>,
{
    // Without it answers are slower, not wrong.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let (answer, asking) = (answer(request), Arc::clone(&asking));
        async move {
            asking.fetch_add(1, Ordering::Relaxed);
            let answered = answer.await;
            asking.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, Infallible>(answered)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // The client may be gone, or have sent what is no HTTP; that is its affair.
    let _ = served.await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    /// One more connection than there may be ends no request that waits for its answer.
    #[test]
    fn bug_21_68_one_more_connection_ends_no_request() {
        let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let site = Site { thread: "few", what: "few", told_by: "a test", connections_max: 2 };
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
}
