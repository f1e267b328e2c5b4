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
