//! The little that the command needs as a client: one HTTP request, and a few Redis commands.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The body of `GET path`.
///
/// # Errors
/// The system's; or an answer that is not 200.
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

/// A request with a body, and with the rack's token: the answer's status, and its body.
///
/// # Errors
/// The system's; or an answer that is no HTTP.
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
    // Who refuses a long body does not read it to its end: what it answers says more.
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

/// A Redis reply as text: enough to show one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A string, number or nil, as text.
    Text(String),
    /// An error.
    Error(String),
    /// Several.
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

    /// The same as a user of that name; without one as `default`.
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
    /// The system's, or an answer that is no RESP2.
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

/// Replies nest at most this deep.
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
    /// One line a value, nested ones indented.
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
