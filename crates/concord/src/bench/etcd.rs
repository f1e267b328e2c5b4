//! A three-node etcd, and the part of gRPC that is needed to load it with many pending requests
//! from one thread (HTTP/2, RFC 9113; HPACK literals, RFC 7541 §6.2.2). etcd's own client would
//! take half of a core.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use concord_core::{Instant, MS, Now, SEC};
use concord_runtime::poller::{Event, Interest, Poller, Token};
use concord_runtime::{Context, Error, clock};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use rustix::event::epoll;

use super::cgroup::Cap;
use super::load::{Answer, Ask, Target};
use super::rig::{Process, Scratch, capped, free_port};

/// The heartbeat interval, as etcd's documentation recommends it for slow members: an election
/// takes ten heartbeats.
const HEARTBEAT_MS: &str = "500";
const ELECTION_MS: &str = "5000";
/// The time after which a request has failed, in ns: etcd itself gives up after 7 s.
const DEADLINE_NS: u64 = 15 * SEC;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// The initial window of each side, in bytes (RFC 9113 §6.9.2).
const WINDOW_BYTES: i64 = 65_535;
/// The additional window that we grant the server, in bytes, and the amount after which we grant it
/// again.
const RECEIVE_WINDOW_BYTES: u32 = 1 << 30;
/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Flags: of DATA and HEADERS, of SETTINGS and PING, of HEADERS.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The configuration of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// As shipped.
    Shipped,
    /// To be capped like our replicas: its log is in memory, and the stalls of a cap cause no
    /// elections.
    Capped,
}

/// The processes of an etcd. They end before their caps and their directory are removed.
#[derive(Debug)]
pub struct Etcd {
    nodes: Vec<Process>,
    caps: Vec<Cap>,
    _scratch: Scratch,
    /// The addresses for clients.
    pub clients: Vec<SocketAddr>,
}

impl Etcd {
    /// Starts `count` nodes on free ports, and waits until they serve.
    ///
    /// # Errors
    /// If they do not serve.
    pub fn start(count: usize, setup: Setup) -> Result<Etcd, Error> {
        let scratch = match setup {
            Setup::Shipped => Scratch::new()?,
            Setup::Capped => Scratch::in_memory()?,
        };
        Etcd::start_in(scratch, count, setup)
    }

    /// As [`Etcd::start`], with the data in `scratch`.
    ///
    /// # Errors
    /// If they do not serve.
    pub fn start_in(scratch: Scratch, count: usize, setup: Setup) -> Result<Etcd, Error> {
        let ports: Result<Vec<_>, _> = (0..2 * count).map(|_| free_port()).collect();
        let ports = ports?;
        let (clients, peers) = ports.split_at(count);
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(i, peer)| format!("n{i}=http://{peer}")).collect();
        let mut nodes = Vec::new();
        for (i, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("n{i}"), "--log-level", "error"]);
            command.arg("--data-dir").arg(scratch.path.join(format!("n{i}")));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster.join(",")]);
            command.args(["--initial-cluster-state", "new"]);
            if setup == Setup::Capped {
                command.args(["--heartbeat-interval", HEARTBEAT_MS]);
                command.args(["--election-timeout", ELECTION_MS]);
            }
            nodes.push(Process::start(&mut command, scratch.path.join(format!("n{i}.log")))?);
        }
        let etcd = Etcd { nodes, caps: Vec::new(), _scratch: scratch, clients: clients.to_vec() };
        etcd.wait()?;
        Ok(etcd)
    }

    /// Caps each node to `share` of a core from now on.
    ///
    /// # Errors
    /// If the machine does not allow it.
    pub fn cap(&mut self, share: f64) -> Result<(), Error> {
        let pids: Vec<u32> = self.nodes.iter().map(Process::pid).collect();
        self.caps = capped(&pids, share)?;
        Ok(())
    }

    /// Waits until every node answers a linearizable get.
    fn wait(&self) -> Result<(), Error> {
        let began = clock::now().instant;
        for &client in &self.clients {
            while !answers(client) {
                super::load::check_stop()?;
                if clock::now().instant.since(began) > 30_000 * MS {
                    return Err(Error::new(format!("etcd at {client} does not serve")));
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

fn answers(client: SocketAddr) -> bool {
    let Ok(mut grpc) = Grpc::new(&[client]) else { return false };
    let mut got = Vec::new();
    let now = clock::now();
    let asked = grpc.submit(now, Ask { slot: 0, key: b"ready", value: None });
    let until = now.instant.after(1_000 * MS);
    while matches!(asked, Ok(true)) && got.is_empty() && clock::now().instant < until {
        if grpc.iterate(until, &mut got).is_err() {
            return false;
        }
    }
    got.first().is_some_and(|a| a.ok)
}

/// The request of an open stream.
#[derive(Clone, Copy, Debug)]
struct Call {
    slot: u32,
    asked_at: Instant,
    has_reply: bool,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    authority: String,
    output: Vec<u8>,
    input: Vec<u8>,
    next_stream: u32,
    /// The remaining window for our data, in bytes.
    window: i64,
    /// The number of bytes of DATA that arrived since we last extended the server's window.
    consumed: u32,
    open: HashMap<u32, Call, FxBuildHasher>,
}

/// One connection to each node, any number of requests on it.
pub struct Grpc {
    connections: Vec<Connection>,
    poller: Poller,
    raw: Vec<epoll::Event>,
    events: Vec<Event>,
    buffer: Vec<u8>,
    /// The time at which unanswered calls are next looked for.
    next_look: Instant,
}

impl Grpc {
    /// Connects to every node.
    ///
    /// # Errors
    /// If one does not listen.
    pub fn new(nodes: &[SocketAddr]) -> Result<Grpc, Error> {
        let poller = Poller::new()?;
        let mut connections = Vec::new();
        for (token, node) in nodes.iter().enumerate() {
            let stream = TcpStream::connect(node).cannot(format!("connect to etcd at {node}"))?;
            stream.set_nodelay(true).cannot("set up a connection")?;
            stream.set_nonblocking(true).cannot("set up a connection")?;
            poller.add(&stream, Token(token as u64), Interest::READ)?;
            let mut output = PREFACE.to_vec();
            frame(&mut output, SETTINGS, 0, 0, &[]);
            frame(&mut output, WINDOW_UPDATE, 0, 0, &RECEIVE_WINDOW_BYTES.to_be_bytes());
            connections.push(Connection {
                stream,
                authority: node.to_string(),
                output,
                input: Vec::new(),
                next_stream: 1,
                window: WINDOW_BYTES,
                consumed: 0,
                open: HashMap::default(),
            });
        }
        let (raw, events, buffer) = (Vec::new(), Vec::new(), vec![0; 64 << 10]);
        let next_look = clock::now().instant;
        Ok(Grpc { connections, poller, raw, events, buffer, next_look })
    }
}

impl Target for Grpc {
    fn submit(&mut self, now: Now, ask: Ask<'_>) -> Result<bool, Error> {
        let count = self.connections.len();
        Ok(self.connections[ask.slot as usize % count].submit(now.instant, ask))
    }

    fn iterate(&mut self, until: Instant, answers: &mut Vec<Answer>) -> Result<(), Error> {
        let mut stuck = false;
        for connection in &mut self.connections {
            stuck |= !connection.write().cannot("write to etcd")?;
        }
        let now = clock::now().instant;
        let until = if stuck || until.since(now) < MS { now } else { until };
        self.poller.wait(now, until, &mut self.raw, &mut self.events)?;
        for event in &self.events {
            let connection = &mut self.connections[event.token.0 as usize];
            connection.read(&mut self.buffer, answers).cannot("read from etcd")?;
        }
        if now >= self.next_look {
            self.next_look = now.after(SEC);
            self.connections.iter_mut().for_each(|c| c.give_up(now, answers));
        }
        Ok(())
    }
}

/// Writes a frame (RFC 9113 §4.1).
fn frame(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    output.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
    output.extend_from_slice(payload);
}

/// Writes a varint of protobuf.
fn varint(output: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        output.push(value as u8 | 0x80);
        value >>= 7;
    }
    output.push(value as u8);
}

/// Writes a bytes field of protobuf.
fn field(output: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    output.push(number << 3 | 2);
    varint(output, bytes.len());
    output.extend_from_slice(bytes);
}

/// The headers of a call, uncompressed (RFC 7541 §6.2.2, indices of its Appendix A).
fn headers(path: &str, authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // :method POST, :scheme http
    let mut literal = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    literal(&[0x04], path);
    literal(&[0x01], authority);
    literal(&[0x0f, 0x10], "application/grpc");
    literal(b"\0\x02te", "trailers");
    block
}

/// The message of a call: RangeRequest{key} without `serializable`, and so linearizable; or
/// PutRequest{key, value}.
fn message(ask: &Ask<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    field(&mut body, 1, ask.key);
    if let Some(value) = ask.value {
        field(&mut body, 2, value);
    }
    let mut message = vec![0]; // not compressed
    message.extend_from_slice(&(body.len() as u32).to_be_bytes());
    message.extend_from_slice(&body);
    message
}

impl Connection {
    fn submit(&mut self, now: Instant, ask: Ask<'_>) -> bool {
        let message = message(&ask);
        if self.window < message.len() as i64 {
            return false;
        }
        self.window -= message.len() as i64;
        let stream = self.next_stream;
        self.next_stream += 2;
        let path = match ask.value {
            None => "/etcdserverpb.KV/Range",
            Some(_) => "/etcdserverpb.KV/Put",
        };
        let block = headers(path, &self.authority);
        frame(&mut self.output, HEADERS, END_HEADERS, stream, &block);
        frame(&mut self.output, DATA, END_STREAM, stream, &message);
        self.open.insert(stream, Call { slot: ask.slot, asked_at: now, has_reply: false });
        true
    }

    /// Fails calls that got no answer in time; the stream of a late answer is forgotten.
    fn give_up(&mut self, now: Instant, answers: &mut Vec<Answer>) {
        let late = |call: &Call| now.since(call.asked_at) > DEADLINE_NS;
        for (_, call) in self.open.extract_if(|_, call| late(call)) {
            answers.push(Answer { slot: call.slot, ok: false, fast: false });
        }
    }

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
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(&buffer[..count]);
        let mut rest = input.as_slice();
        while let Some((&[a, b, c, kind, flags, s0, s1, s2, s3], tail)) =
            rest.split_first_chunk::<FRAME_HEADER_BYTES>()
        {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, tail)) = tail.split_at_checked(length) else { break };
            let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
            self.frame(kind, flags, stream, payload, answers)?;
            rest = tail;
        }
        let kept = rest.len();
        input.drain(..input.len() - kept);
        self.input = input;
        Ok(())
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        answers: &mut Vec<Answer>,
    ) -> io::Result<()> {
        match kind {
            DATA => {
                self.consumed += payload.len() as u32;
                if self.consumed > RECEIVE_WINDOW_BYTES / 2 {
                    let more = self.consumed.to_be_bytes();
                    frame(&mut self.output, WINDOW_UPDATE, 0, 0, &more);
                    self.consumed = 0;
                }
                if let Some(call) = self.open.get_mut(&stream) {
                    call.has_reply = true;
                }
            }
            SETTINGS if flags & ACK == 0 => frame(&mut self.output, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut self.output, PING, ACK, 0, payload),
            WINDOW_UPDATE if stream == 0 => {
                let more = payload.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
                self.window += i64::from(more & 0x7fff_ffff);
            }
            GOAWAY => return Err(io::Error::other("etcd says GOAWAY")),
            _ => {}
        }
        // A failed call ends without a message, by HEADERS alone or by RST_STREAM.
        let is_last =
            kind == RST_STREAM || (matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0);
        if is_last && let Some(call) = self.open.remove(&stream) {
            answers.push(Answer { slot: call.slot, ok: call.has_reply, fast: false });
        }
        Ok(())
    }
}
