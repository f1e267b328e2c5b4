//! A TCP connection for protocols with lines: output is buffered until it is flushed, and input is
//! read in large pieces.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error};

const READ_BYTES: usize = 64 << 10;
/// The maximum wait of one read, after which it is checked whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// The maximum wait for something that must arrive.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    input: Vec<u8>,
    /// The number of bytes of `input` that were consumed.
    taken: usize,
    /// The buffered output.
    pub output: Vec<u8>,
}

impl Line {
    pub(super) fn open(server: SocketAddr) -> Result<Line, Error> {
        let stream = TcpStream::connect(server).cannot(format!("connect to {server}"))?;
        stream.set_nodelay(true).cannot("set up a connection")?;
        stream.set_read_timeout(Some(LOOK)).cannot("set up a connection")?;
        Ok(Line { stream, input: Vec::new(), taken: 0, output: Vec::new() })
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.stream.write_all(&self.output).cannot("send")?;
        self.output.clear();
        Ok(())
    }

    /// Whether all input was consumed.
    pub(super) fn is_drained(&self) -> bool {
        self.taken == self.input.len()
    }

    /// Reads available input; returns `false` if none arrived for a while.
    fn read(&mut self) -> Result<bool, Error> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let length = self.input.len();
        self.input.resize(length + READ_BYTES, 0);
        let count = match self.stream.read(&mut self.input[length..]) {
            Ok(0) => return Err(Error::new("the server closed a connection")),
            Ok(count) => count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(e) if e.kind() == ErrorKind::Interrupted => 0,
            Err(e) => return Err(e).cannot("receive"),
        };
        self.input.truncate(length + count);
        Ok(count > 0)
    }

    /// The next line, without its terminator; `None` if none arrived for a while.
    pub(super) fn line(&mut self) -> Result<Option<String>, Error> {
        loop {
            let rest = &self.input[self.taken..];
            if let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.taken += end + 2;
                return Ok(Some(line));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// The next line, which must arrive.
    pub(super) fn expect_line(&mut self) -> Result<String, Error> {
        let began = Instant::now();
        loop {
            if let Some(line) = self.line()? {
                return Ok(line);
            }
            if began.elapsed() > WAIT_MAX {
                return Err(Error::new("the server says nothing any more"));
            }
        }
    }

    /// This number of bytes, which a line terminator follows.
    pub(super) fn bytes(&mut self, count: usize) -> Result<Vec<u8>, Error> {
        let began = Instant::now();
        while self.input.len() - self.taken < count + 2 {
            if !self.read()? && began.elapsed() > WAIT_MAX {
                return Err(Error::new("the server says nothing any more"));
            }
        }
        let bytes = self.input[self.taken..self.taken + count].to_vec();
        self.taken += count + 2;
        Ok(bytes)
    }
}
