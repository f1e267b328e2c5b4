//! A load over Redis' protocol: connections with a pipeline each, from one thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use concord_core::{Instant, MS, Now};
use concord_runtime::poller::{Event, Interest, Poller, Token};
use concord_runtime::{Context, Error, clock};
use rustix::event::epoll;

use super::load::{Answer, Ask, Target};

const READ_BYTES: usize = 64 << 10;
/// The maximum length of a line or value in a reply, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The slots of the pending requests, in the order of their replies.
    slots: VecDeque<u32>,
}

/// Connections to one server.
pub struct Resp {
    target: SocketAddr,
    connections: Vec<Connection>,
    /// The number of slots of one connection.
    pipeline: u32,
    poller: Poller,
    raw: Vec<epoll::Event>,
    events: Vec<Event>,
    buffer: Vec<u8>,
    /// The option of SET for the key's time to live, and its number.
    expiry: Option<(&'static str, String)>,
}

impl Resp {
    /// `count` connections to `target`, with `pipeline` slots each.
    ///
    /// # Errors
    /// If no server listens there.
    pub fn new(target: SocketAddr, count: u32, pipeline: u32) -> Result<Resp, Error> {
        let poller = Poller::new()?;
        let mut connections = Vec::new();
        for token in 0..count {
            let stream = TcpStream::connect(target).cannot(format!("connect to {target}"))?;
            stream.set_nodelay(true).cannot("set up a connection")?;
            stream.set_nonblocking(true).cannot("set up a connection")?;
            poller.add(&stream, Token(u64::from(token)), Interest::READ)?;
            let slots = VecDeque::new();
            connections.push(Connection { stream, output: Vec::new(), input: Vec::new(), slots });
        }
        let (raw, events, buffer) = (Vec::new(), Vec::new(), vec![0; READ_BYTES]);
        let pipeline = pipeline.max(1);
        let expiry = None;
        Ok(Resp { target, connections, pipeline, poller, raw, events, buffer, expiry })
    }

    /// The same, with SETs that give keys this time to live.
    #[must_use]
    pub fn with_ttl(self, ttl_ms: u64) -> Resp {
        Resp { expiry: Some(("PX", ttl_ms.to_string())), ..self }
    }

    /// The same, with SETs that let keys expire at this time, in ms since the Unix epoch.
    #[must_use]
    pub fn due_at(self, unix_ms: u64) -> Resp {
        Resp { expiry: Some(("PXAT", unix_ms.to_string())), ..self }
    }

    fn broken(&self, why: impl std::fmt::Display) -> Error {
        Error::new(format!("{} broke a connection: {why}", self.target))
    }
}

impl Target for Resp {
    fn submit(&mut self, _now: Now, ask: Ask<'_>) -> Result<bool, Error> {
        let index = (ask.slot / self.pipeline) as usize % self.connections.len();
        let connection = &mut self.connections[index];
        match ask.value {
            None => encode(&mut connection.output, &[b"GET", ask.key]),
            Some(value) => match &self.expiry {
                None => encode(&mut connection.output, &[b"SET", ask.key, value]),
                Some((option, number)) => {
                    let args = [b"SET", ask.key, value, option.as_bytes(), number.as_bytes()];
                    encode(&mut connection.output, &args);
                }
            },
        }
        connection.slots.push_back(ask.slot);
        Ok(true)
    }

    fn iterate(&mut self, until: Instant, answers: &mut Vec<Answer>) -> Result<(), Error> {
        let mut stuck = false;
        for i in 0..self.connections.len() {
            let sent = self.connections[i].write();
            stuck |= !sent.map_err(|e| self.broken(e))?;
        }
        let now = clock::now().instant;
        // What could not be written is tried again soon; it does not wait for a time less than 1 ms
        // away.
        let until = if stuck || until.since(now) < MS { now } else { until };
        self.poller.wait(now, until, &mut self.raw, &mut self.events)?;
        for i in 0..self.events.len() {
            let index = self.events[i].token.0 as usize;
            let read = self.connections[index].read(&mut self.buffer, answers);
            read.map_err(|e| self.broken(e))?;
        }
        Ok(())
    }
}

fn encode(output: &mut Vec<u8>, args: &[&[u8]]) {
    // Writing to a Vec cannot fail.
    let _ = write!(output, "*{}\r\n", args.len());
    for arg in args {
        let _ = write!(output, "${}\r\n", arg.len());
        output.extend_from_slice(arg);
        output.extend_from_slice(b"\r\n");
    }
}

impl Connection {
    /// Writes pending output; returns whether all of it was written.
    fn write(&mut self) -> io::Result<bool> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(count) => written += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.output.drain(..written);
        Ok(self.output.is_empty())
    }

    fn read(&mut self, buffer: &mut [u8], answers: &mut Vec<Answer>) -> io::Result<()> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        self.input.extend_from_slice(&buffer[..count]);
        let mut rest = self.input.as_slice();
        while let Some((length, ok)) = reply(rest)? {
            rest = &rest[length..];
            let slot = self.slots.pop_front().ok_or(ErrorKind::InvalidData)?;
            answers.push(Answer { slot, ok, fast: false });
        }
        let kept = rest.len();
        self.input.drain(..self.input.len() - kept);
        Ok(())
    }
}

/// The length of the first reply to a GET or SET, and whether it is no error; `None` if it is
/// incomplete.
fn reply(bytes: &[u8]) -> io::Result<Option<(usize, bool)>> {
    let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") else {
        return Ok(None);
    };
    let bad = || io::Error::new(ErrorKind::InvalidData, "not a reply to GET or SET");
    match bytes[0] {
        b'+' | b':' => Ok(Some((end + 2, true))),
        b'-' => Ok(Some((end + 2, false))),
        b'$' if &bytes[1..end] == b"-1" => Ok(Some((end + 2, true))),
        b'$' => {
            let digits = std::str::from_utf8(&bytes[1..end]).map_err(|_| bad())?;
            let length: usize = digits.parse().map_err(|_| bad())?;
            if length > REPLY_BYTES_MAX {
                return Err(bad());
            }
            let whole = end + 2 + length + 2;
            Ok((bytes.len() >= whole).then_some((whole, true)))
        }
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_apart_and_torn_ones_waited_for() {
        for (bytes, expected) in [
            (&b"+OK\r\n+OK\r\n"[..], Some((5, true))),
            (b"-ERR no\r\n", Some((9, false))),
            (b"$-1\r\n", Some((5, true))),
            (b"$3\r\nabc\r\n$", Some((9, true))),
            (b"$3\r\nabc\r", None),
            (b"$3", None),
            (b"", None),
        ] {
            assert_eq!(reply(bytes).unwrap(), expected, "{bytes:?}");
        }
        assert!(reply(b"*1\r\n").is_err());
        assert!(reply(b"$99999999999\r\n").is_err());
    }
}
