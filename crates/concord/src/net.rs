//! The network clients that the command needs: HTTP requests, and a few Redis commands.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The maximum length of a line in the head of an HTTP answer, in bytes.
const HEAD_LINE_BYTES_MAX: u64 = 8 << 10;
/// The maximum length of an answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The body of `GET path`.
///
/// # Errors
/// The system's, or an answer other than 200.
pub fn http_get(addr: SocketAddr, path: &str, timeout: Duration) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    match end {
        Some(end) if answer.starts_with(b"HTTP/1.1 200") => Ok(answer.split_off(end + 4)),
        _ => {
            let text = String::from_utf8_lossy(&answer);
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            let lines = [head.lines().next(), body.lines().next()];
            let lines: Vec<&str> = lines.into_iter().flatten().collect();
            Err(io::Error::other(lines.join(": ")))
        }
    }
}

/// Sends a request with a body and the rack's token; returns the status and the body of the answer.
///
/// # Errors
/// The system's, or an answer that is not HTTP.
pub fn http(
    addr: SocketAddr,
    method: &str,
    path: &str,
    token: &str,
    body: &[u8],
    timeout: Duration,
) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    );
    // A server that refuses a long body does not read all of it; its answer gives the reason.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let status =
        answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match (end, status) {
        (Some(end), Some(status)) => Ok((status, answer.split_off(end + 4))),
        _ => sent.and(read).and(Err(io::Error::other("no HTTP"))),
    }
}

/// A connection that stays open between requests, so that the server knows that its client is
/// there.
#[derive(Debug, Default)]
pub struct PersistentConnection {
    stream: Option<BufReader<TcpStream>>,
}

impl PersistentConnection {
    /// As [`http`] with GET and without a body.
    ///
    /// # Errors
    /// The system's, or an answer that is not HTTP.
    pub fn get(
        &mut self,
        addr: SocketAddr,
        path: &str,
        token: &str,
        timeout: Duration,
    ) -> io::Result<(u16, Vec<u8>)> {
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {token}\r\n\r\n");
        if let Some(stream) = self.stream.take()
            && let Ok(answer) = self.ask(stream, &head)
        {
            return Ok(answer);
        }
        // The server may have closed the connection meanwhile; a GET may be sent twice.
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        self.ask(BufReader::new(stream), &head)
    }

    fn ask(&mut self, mut stream: BufReader<TcpStream>, head: &str) -> io::Result<(u16, Vec<u8>)> {
        stream.get_mut().write_all(head.as_bytes())?;
        let malformed = || io::Error::other("no HTTP");
        let (mut status, mut length, mut is_kept) = (None, None, true);
        loop {
            let mut line = String::new();
            stream.by_ref().take(HEAD_LINE_BYTES_MAX).read_line(&mut line)?;
            let line = line.strip_suffix("\r\n").ok_or_else(malformed)?;
            if status.is_none() {
                status = line.get(9..12).and_then(|digits| digits.parse::<u16>().ok());
                status.ok_or_else(malformed)?;
            } else if line.is_empty() {
                break;
            } else if let Some((name, value)) = line.split_once(':') {
                match &name.to_ascii_lowercase()[..] {
                    "content-length" => length = value.trim().parse::<u64>().ok(),
                    "connection" => is_kept = !value.trim().eq_ignore_ascii_case("close"),
                    _ => {}
                }
            }
        }
        let length = length.filter(|length| *length <= ANSWER_BYTES_MAX).ok_or_else(malformed)?;
        let mut body = Vec::new();
        stream.by_ref().take(length).read_to_end(&mut body)?;
        if body.len() as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.stream = Some(stream).filter(|_| is_kept);
        Ok((status.ok_or_else(malformed)?, body))
    }
}

/// A Redis reply as text, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A string, number or nil, as text.
    Text(String),
    /// An error.
    Error(String),
    /// An array.
    Array(Vec<Reply>),
}

/// A connection to a gateway.
#[derive(Debug)]
pub struct Redis {
    stream: BufReader<TcpStream>,
}

impl Redis {
    /// Connects, and authenticates if there is a password.
    ///
    /// # Errors
    /// The system's, or the gateway's refusal.
    pub fn connect(addr: SocketAddr, password: &str, timeout: Duration) -> io::Result<Redis> {
        Redis::connect_as(addr, None, password, timeout)
    }

    /// Connects as this user, or as `default` without one.
    ///
    /// # Errors
    /// As [`Redis::connect`].
    pub fn connect_as(
        addr: SocketAddr,
        user: Option<&str>,
        password: &str,
        timeout: Duration,
    ) -> io::Result<Redis> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut redis = Redis { stream: BufReader::new(stream) };
        let mut auth: Vec<&[u8]> = vec![b"AUTH"];
        auth.extend(user.map(str::as_bytes));
        auth.push(password.as_bytes());
        if !password.is_empty() || user.is_some() {
            let reply = redis.call(&auth)?;
            if let Reply::Error(why) = reply {
                return Err(io::Error::other(why));
            }
        }
        Ok(redis)
    }

    /// Executes one command.
    ///
    /// # Errors
    /// The system's, or an answer that is not RESP2.
    pub fn call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        read_reply(&mut self.stream, 0)
    }
}

/// The maximum nesting of replies.
const DEPTH_MAX: usize = 8;

fn read_reply(stream: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not a Redis reply");
    let line = line.strip_suffix("\r\n").ok_or_else(malformed)?;
    let rest = line.get(1..).ok_or_else(malformed)?;
    match line.as_bytes()[0] {
        b'+' | b':' => Ok(Reply::Text(rest.to_string())),
        b'-' => Ok(Reply::Error(rest.to_string())),
        b'$' | b'*' if rest == "-1" => Ok(Reply::Text("(nil)".to_string())),
        b'$' => {
            let len: u64 = rest.parse().map_err(|_| malformed())?;
            let mut bytes = Vec::new();
            stream.take(len.min(ANSWER_BYTES_MAX) + 2).read_to_end(&mut bytes)?;
            let text = bytes.strip_suffix(b"\r\n").ok_or_else(malformed)?;
            if text.len() as u64 != len {
                return Err(malformed());
            }
            Ok(Reply::Text(String::from_utf8_lossy(text).into_owned()))
        }
        b'*' if depth < DEPTH_MAX => {
            let count: usize = rest.parse().map_err(|_| malformed())?;
            (0..count)
                .map(|_| read_reply(stream, depth + 1))
                .collect::<io::Result<_>>()
                .map(Reply::Array)
        }
        _ => Err(malformed()),
    }
}

impl Reply {
    /// One line for each value, with nested ones indented.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Reply::Text(text) => text.lines().map(str::to_string).collect(),
            Reply::Error(why) => vec![format!("(error) {why}")],
            Reply::Array(all) => all.iter().flat_map(Reply::lines).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two answers come over one connection, and a third over another one when that was closed.
    #[test]
    fn bug_21_90_a_connection_is_kept_between_requests() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut paths = vec![];
            for answers in [2, 1] {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                for _ in 0..answers {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    paths.push(line.split(' ').nth(1).unwrap().to_string());
                    while line != "\r\n" {
                        line.clear();
                        stream.read_line(&mut line).unwrap();
                    }
                    let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone";
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
            paths
        });
        let mut kept = PersistentConnection::default();
        for path in ["/a", "/b", "/c"] {
            let told = kept.get(addr, path, "token", Duration::from_secs(10)).unwrap();
            assert_eq!(told, (404, b"none".to_vec()));
        }
        assert_eq!(server.join().unwrap(), ["/a", "/b", "/c"]);
    }

    fn parse(bytes: &[u8]) -> io::Result<Reply> {
        read_reply(&mut BufReader::new(bytes), 0)
    }

    #[test]
    fn replies_become_lines_and_garbage_is_an_error() {
        let reply = parse(b"*3\r\n$3\r\na\nb\r\n:7\r\n$-1\r\n").unwrap();
        assert_eq!(reply.lines(), ["a", "b", "7", "(nil)"]);
        assert_eq!(parse(b"-ERR no\r\n").unwrap(), Reply::Error("ERR no".to_string()));
        for bytes in [&b""[..], b"x\r\n", b"$5\r\nab\r\n", b"*2\r\n:1\r\n", b"$x\r\n", b":1"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
        assert!(parse(&b"*1\r\n".repeat(20)).is_err());
    }
}
