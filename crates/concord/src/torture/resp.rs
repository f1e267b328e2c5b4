//! A blocking connection that sends commands and reads their replies.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use concord_check::Reply;

/// The maximum nesting of replies: deeper ones do not result from the workload, and mean a broken
/// peer.
const DEPTH_MAX: usize = 4;
const ITEMS_MAX: i64 = 1 << 20;
const BULK_BYTES_MAX: i64 = 64 << 20;

/// One connection.
#[derive(Debug)]
pub struct Link {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

/// A command with its arguments.
pub(super) type Command = Vec<Vec<u8>>;

pub(super) fn words(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The number in a bulk string.
pub(super) fn number<N: std::str::FromStr>(reply: &Reply) -> Option<N> {
    match reply {
        Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// Whether an error says that the rack is temporarily not well.
pub(super) fn is_passing(text: &str) -> bool {
    ["TRYAGAIN", "TIMEOUT", "UNKNOWN", "BUSY "].iter().any(|kind| text.starts_with(kind))
}

fn broken(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_string())
}

impl Link {
    /// Connects; replies that take longer than `timeout` are errors.
    pub fn open(target: SocketAddr, timeout: Duration) -> io::Result<Link> {
        let stream = TcpStream::connect_timeout(&target, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        Ok(Link { stream: BufReader::new(stream), request: Vec::new() })
    }

    /// Sends a command and waits for its reply. After an error the outcome is unknown, and the
    /// connection cannot be used any more.
    pub fn call(&mut self, args: &[Vec<u8>]) -> io::Result<Reply> {
        self.send(&[args.to_vec()])?;
        self.receive()
    }

    /// Sends commands; each needs a [`Link::receive`].
    pub fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<()> {
        self.request.clear();
        for args in commands {
            write!(self.request, "*{}\r\n", args.len())?;
            for arg in args {
                write!(self.request, "${}\r\n", arg.len())?;
                self.request.extend_from_slice(arg);
                self.request.extend_from_slice(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&self.request)
    }

    /// The next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        self.reply(0)
    }

    fn reply(&mut self, depth: usize) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else { return Err(broken("closed")) };
        let Some((kind, text)) = line.split_at_checked(1) else { return Err(broken("empty")) };
        let number = || text.parse::<i64>().map_err(|_| broken("not a number"));
        match kind {
            "+" if text == "OK" => Ok(Reply::Ok),
            "+" => Ok(Reply::bulk(text)),
            "-" => Ok(Reply::Error(text.into())),
            ":" => number().map(Reply::Int),
            "$" | "*" if text == "-1" => Ok(Reply::Nil),
            "$" => match number()? {
                length @ 0..=BULK_BYTES_MAX => {
                    let mut value = vec![0; length as usize + 2];
                    self.stream.read_exact(&mut value)?;
                    value.truncate(length as usize);
                    Ok(Reply::Bulk(value))
                }
                _ => Err(broken("a length that cannot be")),
            },
            "*" => match number()? {
                items @ 0..=ITEMS_MAX if depth < DEPTH_MAX => {
                    let items = (0..items).map(|_| self.reply(depth + 1));
                    items.collect::<io::Result<Vec<_>>>().map(Reply::Array)
                }
                _ => Err(broken("a count that cannot be")),
            },
            _ => Err(broken("not a RESP2 reply")),
        }
    }
}
