//! Requests with a body, which a role answers: each waits until the role's loop does. Clients must
//! present the rack's token.
//!
//! A thread of its own reads requests and writes answers. It hands each request to the loop over a
//! queue, and signals an eventfd, which the loop watches like any other descriptor.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, oneshot};

use super::listener::{self, Connection, HEAD_MAX, Site};
use crate::error::{Context, Error};

/// The longest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// The time within which a body must arrive.
const BODY_MAX: Duration = Duration::from_secs(60);
/// The time within which a request is answered, or not at all.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The largest number of connections at a time.
const CONNECTIONS_MAX: usize = 1_024;
/// The largest number of requests that wait for the loop to take them.
const ASKED_MAX: usize = 64;

const SITE: Site = Site {
    thread: "jobs",
    what: "jobs",
    told_by: "`listen` in the rack file",
    connections_max: CONNECTIONS_MAX,
    head_max: HEAD_MAX,
};

/// A request.
#[derive(Debug)]
pub struct Ask {
    /// GET, POST or DELETE.
    pub method: String,
    /// The path, such as `/jobs/7`.
    pub path: String,
    /// The text after the question mark.
    pub query: String,
    /// The body.
    pub body: Bytes,
    /// The connection on which it arrived.
    pub(crate) connection: Connection,
    answer: oneshot::Sender<Answer>,
}

/// An answer in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The answer 200 with this body.
    #[must_use]
    pub fn ok(value: &serde_json::Value) -> Answer {
        Answer { status: 200, body: format!("{value}\n") }
    }

    /// A refusal, with one line that says why.
    #[must_use]
    pub fn refused(status: u16, why: &str) -> Answer {
        Answer { status, body: format!("{}\n", serde_json::json!({ "error": why })) }
    }
}

impl Ask {
    /// Whether the client does not wait for the answer any more.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.answer.is_closed()
    }

    /// Sends the answer.
    pub fn answer(self, answer: Answer) {
        // The client may be gone.
        let _ = self.answer.send(answer);
    }
}

#[cfg(test)]
impl Ask {
    /// A request, and the receiver of its answer.
    pub(crate) fn of(
        method: &str,
        path: &str,
        body: &'static str,
    ) -> (Ask, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let (method, path, query) = (method.to_string(), path.to_string(), String::new());
        let (body, connection) = (Bytes::from_static(body.as_bytes()), Connection::default());
        (Ask { method, path, query, body, connection, answer }, answered)
    }
}

/// The loop's handle, readable when a request has arrived.
#[derive(Debug)]
pub struct Api {
    wanted: Arc<OwnedFd>,
    asked: mpsc::Receiver<Ask>,
}

impl AsFd for Api {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }
}

impl Api {
    /// Resets the descriptor. Call it when it is readable, before [`Api::take`].
    pub fn heard(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wanted, &mut count);
    }

    /// The next request.
    pub fn take(&mut self) -> Option<Ask> {
        self.asked.try_recv().ok()
    }
}

/// The thread's handle.
#[derive(Clone)]
struct Door {
    wanted: Arc<OwnedFd>,
    asked: mpsc::Sender<Ask>,
    /// The required value of `Authorization`.
    token: Arc<str>,
}

/// Serves on `addr` until the process ends. Clients must send `Authorization: Bearer <token>`.
///
/// # Errors
/// One line that names the address.
pub fn serve(addr: SocketAddr, token: &str) -> Result<Api, Error> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wanted = Arc::new(eventfd(0, flags).cannot("make an eventfd")?);
    let (sender, asked) = mpsc::channel(ASKED_MAX);
    let token = format!("Bearer {token}").into();
    let door = Door { wanted: Arc::clone(&wanted), asked: sender, token };
    listener::serve(addr, SITE, move |request| respond(request, door.clone()))?;
    Ok(Api { wanted, asked })
}

/// A page that requests the rest with the token that a person enters. The page itself contains no
/// data.
const PAGE: &str = include_str!("jobs.html");
/// It loads nothing, and may not be put into a frame.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

fn page() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(PAGE.as_bytes())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}

async fn respond(request: Request<Incoming>, door: Door) -> Response<Full<Bytes>> {
    if request.method() == Method::GET && request.uri().path() == "/" {
        return page();
    }
    let answer = ask(request, &door).await.unwrap_or_else(|refused| refused);
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Hands a request to the loop. An error is an answer, too.
async fn ask(request: Request<Incoming>, door: &Door) -> Result<Answer, Answer> {
    let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    if !shown.is_some_and(|shown| is_same(shown, door.token.as_bytes())) {
        let why = "show the rack's token: `Authorization: Bearer $(concord job token)`";
        return Err(Answer::refused(401, why));
    }
    let (head, body) = request.into_parts();
    let connection = head.extensions.get::<Connection>().cloned().unwrap_or_default();
    // A client with the token is not disconnected for being silent.
    connection.keep();
    let body = tokio::time::timeout(BODY_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => {
            let why = format!("the request is longer than {BODY_BYTES_MAX} bytes: submit several");
            return Err(Answer::refused(413, &why));
        }
        Ok(Err(_)) | Err(_) => return Err(Answer::refused(408, "the request ended too early")),
    };
    let (answer, answered) = oneshot::channel();
    let asked = Ask {
        method: head.method.as_str().to_string(),
        path: head.uri.path().to_string(),
        query: head.uri.query().unwrap_or("").to_string(),
        body,
        connection,
        answer,
    };
    let silent = || Answer::refused(503, "the role does not answer");
    door.asked.send(asked).await.map_err(|_| silent())?;
    rustix::io::write(&*door.wanted, &1u64.to_ne_bytes()).map_err(|_| silent())?;
    match tokio::time::timeout(ANSWER_MAX, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(silent()),
    }
}

/// Compares in a time that does not depend on where they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::{Interest, Poller, Token};
    use std::io::{Read, Write};

    fn send(addr: SocketAddr, head: &str, body: &[u8]) -> String {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        // Who refuses a long one does not read it to its end.
        let _ = stream.write_all(body);
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn a_request_with_the_token_reaches_the_loop_and_no_other_does() {
        let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut api = serve(addr, "secret").unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&api, Token(1), Interest::READ).unwrap();
        let client = std::thread::spawn(move || {
            let good = "POST /jobs?a=b HTTP/1.1\r\nAuthorization: Bearer secret";
            [
                send(addr, good, b"{\"body\": 1}"),
                send(addr, "POST /jobs HTTP/1.1", b"{}"),
                send(addr, "GET /jobs HTTP/1.1\r\nAuthorization: Bearer secreT", b""),
                send(addr, good, &vec![b' '; BODY_BYTES_MAX + 1]),
            ]
        });
        let (mut raw, mut events, mut taken) = (vec![], vec![], vec![]);
        while !client.is_finished() {
            let now = crate::clock::now().instant;
            poller.wait(now, now.after(10_000_000), &mut raw, &mut events).unwrap();
            api.heard();
            while let Some(ask) = api.take() {
                taken.push(format!("{} {} {} {:?}", ask.method, ask.path, ask.query, ask.body));
                ask.answer(Answer::refused(404, "no such \"job\""));
            }
        }
        let answers = client.join().unwrap();
        assert_eq!(taken, ["POST /jobs a=b b\"{\\\"body\\\": 1}\""]);
        assert!(answers[0].starts_with("HTTP/1.1 404") && answers[0].contains("application/json"));
        assert!(answers[0].ends_with("{\"error\":\"no such \\\"job\\\"\"}\n"), "{}", answers[0]);
        assert!(answers[1].starts_with("HTTP/1.1 401") && answers[2].starts_with("HTTP/1.1 401"));
        assert!(answers[3].is_empty() || answers[3].starts_with("HTTP/1.1 413"), "{}", answers[3]);
    }
}
