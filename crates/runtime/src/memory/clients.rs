//! The clients of a node's store: connections, and the commands in what they send. A connection has
//! one command under way, and what it sends behind it waits.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use concord_core::Now;
use concord_gateway::{Parsed, Parser};
use concord_memory::Store;
use concord_wire::OfGroup;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::clock;
use crate::error::{Context, Error};
use crate::poller::{Event, Interest, Poller, Token};
use crate::roles::gateway::{connections_max, listen};
use crate::udp::Outbox;

/// Connections accepted in a row, so that others are served in between.
const ACCEPTS_MAX: usize = 4;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Longest command, in bytes: thousands of keys.
const COMMAND_BYTES_MAX: usize = 1 << 20;
/// Longest argument, in bytes: longer than any block, so that the answer can say how long.
const ARGUMENT_BYTES_MAX: usize = 64 << 10;
/// Of a client that reads nothing as many bytes of replies are kept, and no more commands taken.
const UNREAD_BYTES_MAX: usize = 256 << 10;
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    interest: Interest,
    parser: Parser,
    /// What was read and is of no command that began.
    input: Vec<u8>,
    /// It sends no more.
    has_ended: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Clients {
    poller: Rc<Poller>,
    listener: Option<TcpListener>,
    /// By token, which is the session's number too; never used twice.
    all: HashMap<u64, Connection, FxBuildHasher>,
    next_id: u64,
    most: usize,
    buffer: Vec<u8>,
}

impl Clients {
    /// Nobody yet, at `listen`, which `token` is for.
    ///
    /// # Errors
    /// One line if nobody can listen there.
    pub(super) fn new(poller: Rc<Poller>, token: Token, at: SocketAddr) -> Result<Clients, Error> {
        let listener = listen(at)
            .map_err(|e| Error::listening(&at.to_string(), &e, "`listen` in the rack file"))?;
        poller.add(&listener, token, Interest::READ)?;
        Ok(Clients {
            poller,
            listener: Some(listener),
            all: HashMap::default(),
            next_id: token.0 + 1,
            most: connections_max(),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Nobody else may come.
    pub(super) fn close_listener(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.poller.remove(&listener);
        }
    }

    /// Takes those who wait to come.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn accept(&mut self, store: &mut Store) -> Result<(), Error> {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else { return Ok(()) };
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // The client is gone already, or the like: not the listener's end.
                Err(_) => continue,
            };
            if self.all.len() >= self.most {
                // A fresh socket has room for one line; if not, the client sees the end alone.
                let _ = stream.write(TOO_MANY);
                continue;
            }
            // Without it clients are slower, not wrong.
            let _ = stream.set_nodelay(true);
            stream.set_nonblocking(true).cannot("accept a connection")?;
            let (id, interest) = (self.next_id, Interest::READ);
            self.next_id += 1;
            self.poller.add(&stream, Token(id), interest)?;
            let mut parser = Parser::default();
            parser.value_bytes_max = ARGUMENT_BYTES_MAX;
            let (input, has_ended) = (Vec::new(), false);
            self.all.insert(id, Connection { stream, interest, parser, input, has_ended });
            store.opened(id);
        }
        Ok(())
    }

    fn close(&mut self, id: u64, store: &mut Store) {
        store.closed(id);
        // Closing the descriptor takes it from the poller too.
        self.all.remove(&id);
    }

    /// A connection is ready.
    pub(super) fn event(&mut self, event: Event, store: &mut OfGroup<Store>, out: &mut Outbox) {
        let id = event.token.0;
        let Some(connection) = self.all.get_mut(&id) else { return };
        if event.readable && connection.has_ended {
            // Nothing is watched for but that it broke.
            return self.close(id, store);
        }
        if event.readable {
            match connection.stream.read(&mut self.buffer) {
                Ok(0) => connection.has_ended = true,
                Ok(count) => connection.input.extend_from_slice(&self.buffer[..count]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return self.close(id, store),
            }
        }
        // After the read: leases are looked at by this clock (trap T1).
        self.go_on(clock::now(), id, store, out);
    }

    /// The connections whose commands were answered later.
    pub(super) fn serve(&mut self, now: Now, store: &mut OfGroup<Store>, out: &mut Outbox) {
        while let Some(id) = store.take_ready() {
            self.go_on(now, id, store, out);
        }
    }

    /// Takes the commands that have come, as far as they may begin, and writes replies.
    fn go_on(&mut self, now: Now, id: u64, store: &mut OfGroup<Store>, out: &mut Outbox) {
        let Some(connection) = self.all.get_mut(&id) else { return };
        connection.take_commands(now, id, store, out);
        if connection.write(id, store).is_err() {
            return self.close(id, store);
        }
        let unread = store.output(id).map_or(0, |output| output.len());
        let is_over = store.closes(id) || connection.has_ended && store.is_idle(id);
        if is_over && unread == 0 {
            return self.close(id, store);
        }
        let read = !connection.has_ended
            && connection.input.len() < READ_BYTES.max(connection.wanted_bytes(store, id))
            && unread < UNREAD_BYTES_MAX;
        let interest = Interest { read, write: unread > 0, end: false };
        if interest != connection.interest {
            connection.interest = interest;
            if self.poller.change(&connection.stream, Token(id), interest).is_err() {
                self.close(id, store);
            }
        }
    }
}

impl Connection {
    /// How much may be read ahead: a command that is not whole has room for its rest.
    fn wanted_bytes(&self, store: &Store, id: u64) -> usize {
        if store.is_idle(id) { COMMAND_BYTES_MAX } else { 0 }
    }

    fn take_commands(&mut self, now: Now, id: u64, store: &mut OfGroup<Store>, out: &mut Outbox) {
        let mut at = 0;
        while store.is_idle(id)
            && store.output(id).is_some_and(|output| output.len() < UNREAD_BYTES_MAX)
        {
            let input = &self.input[at..];
            match self.parser.parse(input, store.is_known(id)) {
                Parsed::Incomplete if input.len() >= COMMAND_BYTES_MAX => {
                    store.refuse(id, "ERR a command of a shared memory has 1 MiB at most");
                }
                Parsed::Incomplete => break,
                Parsed::Request(count) => {
                    let (bytes, ranges) = self.parser.args(input);
                    let args: Vec<&[u8]> = ranges.iter().map(|r| &bytes[r.clone()]).collect();
                    let (store, mut sink) = store.input(out);
                    store.command(now, id, &args, &mut sink);
                    self.parser.next();
                    at += count;
                }
                Parsed::Dropped(count) => at += count,
                Parsed::TooLarge => {
                    self.parser.next();
                    let most = ARGUMENT_BYTES_MAX >> 10;
                    let text = format!("ERR an argument of a shared memory has {most} KiB at most");
                    store.refuse(id, &text);
                }
                Parsed::Error(error) => store.refuse(id, &error.text()),
            }
        }
        self.input.drain(..at);
    }

    /// Writes what there is to write, as far as that can be without waiting.
    fn write(&mut self, id: u64, store: &mut Store) -> std::io::Result<()> {
        let Some(output) = store.output(id) else { return Ok(()) };
        let mut written = 0;
        let result = loop {
            if written == output.len() {
                break Ok(());
            }
            match self.stream.write(&output[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        output.drain(..written);
        result
    }
}
