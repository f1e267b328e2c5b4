//! A gateway: Redis clients over TCP on one side, the rack over UDP on the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use concord_client::ClientConfig;
use concord_core::machine::Deadline;
use concord_core::{Duration, Instant, MS, NodeId, Nothing, Now, Rng, SEC};
use concord_engine::CommandTable;
use concord_gateway::{
    ConnectionId, Gateway, GatewayConfig, Latencies, Limits, Process, READ_BYTES_MAX,
};
use concord_wire::{Addr, GroupId, OfGroup};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};
use tracing::{error, info, warn};

pub use concord_gateway::{ChainSetup, REPLIES_BYTES_MIN};

use crate::clock;
use crate::driver::{Persisted, ROLE_TOKEN_MIN, Role, Stop};
use crate::error::{Context, Error};
use crate::http::{self, Health, Snapshot};
use crate::logging;
use crate::poller::{Event, Interest, Poller, Token};
use crate::process::{self, Stat};
use crate::roles::lobby::Lobby;
use crate::roles::{Place, unique};
use crate::udp::Outbox;

const LISTENER: Token = Token(ROLE_TOKEN_MIN);
const LOBBY: Token = Token(ROLE_TOKEN_MIN + 1);
/// The number of connections that wait to be accepted (Redis' `tcp-backlog`; Linux uses
/// `net.core.somaxconn` if that is less).
const BACKLOG: i32 = 511;
/// The number of connections accepted in a row, so that others are served in between.
const ACCEPTS_MAX: usize = 4;
/// The largest number of connections, if the system allows as many descriptors (Redis' default).
const CONNECTIONS_MAX: u64 = 10_000;
/// The number of descriptors that a gateway needs beside its connections.
const DESCRIPTORS_KEPT: u64 = 64 + http::CONNECTIONS_MAX as u64;
/// The shortest interval between two reads of the process' figures.
const FIGURES_NS: Duration = 100 * MS;
/// The bytes written to a connection at once, so that others are served in between.
const WRITE_BYTES_MAX: usize = 128 << 10;

/// The bytes of a connection that the kernel accepts beyond what it may send. A client that reads
/// always has something to receive, and the gateway soon notices one that does not.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Memory grows by small pages while clients wait for each other, and for this long afterwards. A
/// huge page (`GLIBC_TUNABLES`, [`crate::TUNABLES`]) is cleared as a whole at its first access,
/// while all clients wait, which replies that are not read are not worth.
const SMALL_PAGES_NS: Duration = 100 * MS;

/// The configuration of a gateway, beside its place.
#[derive(Clone, Debug)]
pub struct GatewaySetup {
    /// The group that has its clients' data.
    pub group: GroupId,
    /// The address of the switch.
    pub switch: Addr,
    /// The address of the controller, which knows whether another switch took over.
    pub controller: Addr,
    /// The other gateways of the group: their numbers and addresses.
    pub others: Vec<(u16, Addr)>,
    /// The address for Redis clients.
    pub listen: SocketAddr,
    /// The file and the line that give that address.
    pub listen_said_in: String,
    /// The password for AUTH; empty for none.
    pub requirepass: String,
    /// Whether reads of several keys are executed key by key.
    pub splits_reads: bool,
    /// The nodes from which it chooses the one that answers a read (follower leases); empty if the
    /// switch chooses.
    pub readers: Vec<u16>,
    /// Whether the engine is a Redis server, with commands of its own.
    pub redis: bool,
    /// The limit of the data in bytes; 0 for none.
    pub memory_bytes_max: u64,
    /// The largest number of bytes of replies that its clients have not read, in total.
    pub replies_bytes_max: usize,
    /// The longest argument of a command, in bytes.
    pub value_bytes_max: usize,
    /// The chain of switches whose keys it gives its clients.
    pub chain: Option<ChainSetup>,
    /// INFO's lines about the rack: `name:value`, each followed by CRLF.
    pub rack_info: String,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    interest: Interest,
    /// Whether it is in the lobby, and whether a reply was written to it.
    is_in_lobby: bool,
    was_served: bool,
}

#[derive(Debug)]
struct GatewayRole {
    node: u16,
    gateway: OfGroup<Gateway>,
    listener: TcpListener,
    lobby: Lobby,
    poller: Rc<Poller>,
    /// The connections by token, which is also the connection's id and is never reused.
    connections: HashMap<u64, Connection, FxBuildHasher>,
    next_id: u64,
    buffer: Vec<u8>,
    is_stopping: bool,
    /// Whether new memory comes in small pages, and until when ([`SMALL_PAGES_NS`]).
    has_small_pages: bool,
    small_pages_until: Instant,
    /// The time at which INFO's figures of the process are read again.
    figures_at: Instant,
    /// Whether it served when that was last logged.
    logged_serving: bool,
    /// Whether it has said that keys of the store are out of reach.
    logged_shadowed: bool,
    /// Whether the rack kept another password at that time than the gateway was started with.
    logged_password: bool,
    /// The number of clients that were given up and are not logged yet, and when the next line
    /// about them may be logged.
    given_up: u64,
    log_given_up_at: Instant,
}

/// Runs a gateway until it is told to end.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &GatewaySetup) -> Result<(), Error> {
    let _span = logging::span("gateway", place.node).entered();
    let mut driver = place.driver()?;
    let listener = listen(setup.listen).map_err(|e| {
        Error::listening(
            &setup.listen.to_string(),
            &e,
            &format!("`listen` in {}", setup.listen_said_in),
        )
    })?;
    let lobby = Lobby::new(driver.poller(), LOBBY)?;
    lobby.poller().add(&listener, LISTENER, Interest::READ)?;
    let password = setup.requirepass.as_bytes();
    let config = GatewayConfig {
        splits_reads: setup.splits_reads,
        client: ClientConfig {
            controller: Some(setup.controller),
            readers: setup.readers.iter().map(|node| NodeId(*node)).collect(),
            ..ClientConfig::new(place.addr, setup.switch)
        },
        requirepass: (!password.is_empty()).then(|| password.to_vec()),
        table: CommandTable::memory(),
        redis: setup.redis,
        connections_max: connections_max(),
        limits: Limits {
            value_bytes_max: setup.value_bytes_max,
            ..Limits::of_replies(setup.replies_bytes_max)
        },
        others: setup.others.clone(),
        node: place.node,
        port: setup.listen.port(),
    };
    // If the process was started without huge pages, it does not get them after a crowd has left.
    let has_small_pages = rustix::thread::transparent_huge_pages_are_disabled().unwrap_or(false);
    let mut role = GatewayRole {
        node: place.node,
        // The session's id is derived from it: each start has another one (trap T16 b).
        gateway: OfGroup::new(setup.group, Gateway::new(config, Rng::new(unique()?)))
            .with_chain(setup.chain.as_ref().map(|chain| chain.group)),
        listener,
        lobby,
        poller: driver.poller(),
        connections: HashMap::default(),
        next_id: LOBBY.0 + 1,
        buffer: vec![0; READ_BYTES_MAX],
        is_stopping: false,
        has_small_pages,
        small_pages_until: if has_small_pages { Instant::NEVER } else { Instant(0) },
        figures_at: Instant(0),
        logged_serving: false,
        logged_password: false,
        logged_shadowed: false,
        given_up: 0,
        log_given_up_at: Instant(0),
    };
    let mut secret = Vec::with_capacity(32);
    for _ in 0..4 {
        secret.extend_from_slice(&unique()?.to_be_bytes());
    }
    role.gateway.share_users(&secret);
    if let Some(chain) = &setup.chain {
        role.gateway.serve_chain(chain.clone(), Rng::new(unique()?));
    }
    role.gateway.set_rack_info(setup.rack_info.clone());
    role.gateway.set_memory_bytes_max(setup.memory_bytes_max);
    let own = role.gateway.process_mut();
    own.id = std::process::id();
    own.os = process::system();
    let program = std::env::current_exe().unwrap_or_default();
    own.executable = program.to_string_lossy().into_owned();
    info!(addr = %place.addr, listen = %setup.listen, "started");
    driver.run(&mut role)?;
    info!("stopped");
    Ok(())
}

/// Listens as the standard library does, except for the backlog: a client that finds it full tries
/// again after a second.
pub(crate) fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The number of connections for which there may be descriptors. One more would never be accepted,
/// and would wake the loop forever.
pub(crate) fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = CONNECTIONS_MAX + DESCRIPTORS_KEPT;
    let maximum = limit.maximum.map_or(wanted, |max| max.min(wanted));
    let current = limit.current.unwrap_or(wanted);
    let raised = Rlimit { current: Some(maximum), maximum: limit.maximum };
    let descriptors = match setrlimit(Resource::Nofile, raised) {
        _ if current >= maximum => current,
        Ok(()) => maximum,
        Err(_) => current,
    };
    descriptors.saturating_sub(DESCRIPTORS_KEPT).min(CONNECTIONS_MAX) as usize
}

/// Reads the process' figures.
fn read_figures(own: &mut Process) {
    let (Some(all), Some(thread)) = (Stat::of_process(), Stat::of_thread()) else { return };
    (own.all, own.children, own.main) = (all.used, all.children, thread.used);
    own.resident_bytes = all.resident_bytes as u64;
}

impl GatewayRole {
    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..ACCEPTS_MAX {
            let (mut stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // The client is gone, or the like, which does not concern the listener.
                Err(_) => continue,
            };
            let id = self.next_id;
            self.next_id += 1;
            if !self.gateway.connected(clock::now(), ConnectionId(id), &peer.to_string()) {
                // A fresh socket has room for one line; if not, the client sees only the end.
                let _ = stream.write(Gateway::TOO_MANY);
                continue;
            }
            if let Ok(local) = stream.local_addr() {
                self.gateway.set_local(ConnectionId(id), &local.to_string());
            }
            // Without these, clients are slower, not wrong; the loop would block on a read.
            let _ = stream.set_nodelay(true);
            let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
            stream.set_nonblocking(true).cannot("accept a connection")?;
            self.lobby.poller().add(&stream, Token(id), Interest::READ)?;
            let interest = Interest::READ;
            let connection = Connection { stream, interest, is_in_lobby: true, was_served: false };
            self.connections.insert(id, connection);
        }
        Ok(())
    }

    /// Reads once: the rest makes the descriptor ready again in the next iteration.
    fn read(&mut self, id: u64, out: &mut Outbox) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_in_lobby && connection.was_served {
            // It asks again after it was answered.
            connection.is_in_lobby = false;
            if self.lobby.leave(&connection.stream, Token(id), connection.interest).is_err() {
                self.close(id);
                return;
            }
        }
        if connection.interest.end && self.gateway.waits_in_crowd(ConnectionId(id)) {
            return self.close(id);
        }
        // An event for which the descriptor is not watched means that the connection broke, which
        // the read reports.
        let room = match self.gateway.input_room(ConnectionId(id)) {
            0 => READ_BYTES_MAX,
            room => room,
        };
        match connection.stream.read(&mut self.buffer[..room]) {
            Ok(0) if self.gateway.has_ended(ConnectionId(id)) => self.close(id),
            Ok(0) => {
                self.gateway.ended(ConnectionId(id));
                // Events of a connection that is not read mean that it broke.
                connection.interest.read = false;
                let poller =
                    if connection.is_in_lobby { self.lobby.poller() } else { &*self.poller };
                if poller.change(&connection.stream, Token(id), connection.interest).is_err() {
                    self.close(id);
                }
            }
            Ok(count) => {
                let now = clock::now();
                if !connection.is_in_lobby {
                    self.lobby.note_others(now.instant);
                }
                if now.instant >= self.figures_at {
                    self.figures_at = now.instant.after(FIGURES_NS);
                    read_figures(self.gateway.process_mut());
                }
                let (gateway, mut sink) = self.gateway.input(out);
                gateway.input(now, ConnectionId(id), &self.buffer[..count], &mut sink);
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.close(id),
        }
    }

    /// Writes the output of a connection, and closes it or changes what it is watched for.
    fn serve(&mut self, now: Now, id: u64, out: &mut Outbox) -> Result<(), Error> {
        let gateway_id = ConnectionId(id);
        if self.gateway.is_given_up(gateway_id) {
            self.log_given_up(now.instant, gateway_id);
            if let Some(connection) = self.connections.get(&id) {
                // The kernel would keep megabytes that the client has not read; a reset frees them.
                let _ = set_socket_linger(&connection.stream, Some(std::time::Duration::ZERO));
            }
            self.close(id);
            return Ok(());
        }
        if self.gateway.is_over(gateway_id) {
            self.close(id);
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Some(output) = self.gateway.output(gateway_id) else { return Ok(()) };
        let part = &output[..output.len().min(WRITE_BYTES_MAX)];
        let mut written = 0;
        while written < part.len() {
            match connection.stream.write(&part[written..]) {
                Ok(count) if count > 0 => written += count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => {
                    self.close(id);
                    return Ok(());
                }
            }
        }
        let all = written == output.len();
        if all && self.gateway.wants_close(gateway_id) {
            self.close(id);
            return Ok(());
        }
        let read = self.gateway.wants_input(gateway_id);
        let end = !read && self.gateway.waits_in_crowd(gateway_id);
        let interest = Interest { read, write: !all, end };
        if interest != connection.interest {
            connection.interest = interest;
            let poller = if connection.is_in_lobby { self.lobby.poller() } else { &*self.poller };
            poller.change(&connection.stream, Token(id), interest)?;
        }
        if written > 0 {
            connection.was_served = all;
            let (gateway, mut sink) = self.gateway.input(out);
            gateway.written(now, gateway_id, written, &mut sink);
        }
        Ok(())
    }

    /// Logs a client that is disconnected because it does not read, or does not send the rest of a
    /// command. If there are many, the log has one line a second.
    fn log_given_up(&mut self, now: Instant, id: ConnectionId) {
        self.given_up += 1;
        let Some((client, unread_bytes)) = self.gateway.given_up(id) else { return };
        if now < self.log_given_up_at {
            return;
        }
        self.log_given_up_at = now.after(SEC);
        let clients = core::mem::take(&mut self.given_up);
        warn!(
            client,
            unread_bytes,
            clients,
            "disconnected a client that reads no replies, or does not send the rest of a command; it can read while it \
             writes, pipeline less at a time, or get more room by reply_memory in the rack file"
        );
    }

    /// Serves the lobby and accepts connections.
    fn serve_lobby(&mut self, out: &mut Outbox) -> Result<(), Error> {
        let (mut raw, mut events) = (Vec::new(), Vec::new());
        self.lobby.begin(clock::now().instant);
        loop {
            let is_crowded = self.gateway.is_crowded();
            self.lobby.poll(clock::now().instant, is_crowded, &mut raw, &mut events)?;
            if events.is_empty() {
                return Ok(());
            }
            for event in &events {
                self.event(*event, out)?;
            }
        }
    }

    /// Uses small pages for the replies of a crowd.
    fn choose_pages(&mut self, now: Instant) {
        if self.gateway.is_crowded() {
            self.small_pages_until = self.small_pages_until.max(now.after(SMALL_PAGES_NS));
        }
        let has_small_pages = now < self.small_pages_until;
        if has_small_pages != self.has_small_pages {
            self.has_small_pages = has_small_pages;
            // If the system refuses, memory stays as it is.
            let _ = rustix::thread::disable_transparent_huge_pages(has_small_pages);
        }
    }

    fn close(&mut self, id: u64) {
        self.gateway.closed(ConnectionId(id));
        // Closing the descriptor also removes it from the poller.
        self.connections.remove(&id);
    }
}

impl Role for GatewayRole {
    type Machine = OfGroup<Gateway>;

    fn machine(&mut self) -> &mut OfGroup<Gateway> {
        &mut self.gateway
    }

    fn persist(&mut self, what: Nothing) -> Result<Persisted, Error> {
        match what {}
    }

    fn event(&mut self, event: Event, out: &mut Outbox) -> Result<(), Error> {
        match event.token {
            LOBBY => return self.serve_lobby(out),
            LISTENER => return self.accept(),
            _ => {}
        }
        if event.readable {
            self.read(event.token.0, out);
        }
        if event.writable {
            self.serve(clock::now(), event.token.0, out)?;
        }
        Ok(())
    }

    fn wakes_at(&self) -> Deadline {
        let lobby = Deadline { at: self.lobby.wakes_at(), reason: "serve the lobby" };
        if !self.has_small_pages {
            return lobby;
        }
        lobby.min(Deadline { at: self.small_pages_until, reason: "take huge pages again" })
    }

    fn attend(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        self.lobby.wake(now.instant)?;
        let (gateway, mut sink) = self.gateway.input(out);
        gateway.open_session(now, &mut sink);
        loop {
            let (gateway, mut sink) = self.gateway.input(out);
            let Some(ConnectionId(id)) = gateway.take_ready(now, &mut sink) else { break };
            self.serve(now, id, out)?;
        }
        self.choose_pages(now.instant);
        Ok(())
    }

    fn log(&mut self, _now: Now) {
        let serving = self.gateway.is_serving();
        if serving != self.logged_serving {
            self.logged_serving = serving;
            info!(serving, "state");
        }
        if let Some((key, prefix)) = self.gateway.shadowed_key()
            && !std::mem::replace(&mut self.logged_shadowed, true)
        {
            let (key, prefix) = (String::from_utf8_lossy(key), String::from_utf8_lossy(prefix));
            error!(%key, %prefix, "the store has keys that begin with coord_prefix: no client reaches them");
        }
        let is_other = self.gateway.keeps_another_password();
        if is_other != self.logged_password {
            self.logged_password = is_other;
            match is_other {
                true => warn!(
                    "the rack keeps another password of the user default than requirepass says, and that one counts"
                ),
                false => info!("the password of the user default is what requirepass says"),
            }
        }
    }

    /// Accepts no more connections, and closes each one when its requests are answered.
    fn stop(&mut self, _now: Now, _why: Stop) -> bool {
        if !self.is_stopping {
            self.is_stopping = true;
            self.lobby.poller().remove(&self.listener);
            self.gateway.shutdown();
        }
        self.connections.is_empty()
    }

    fn snapshot(&self, now: Now) -> Snapshot {
        let mut s = Snapshot::new("gateway", self.node);
        s.count(self.gateway.counters().each());
        s.count(self.gateway.of_group_counters().each());
        s.count_as("client_", self.gateway.client().counters().each());
        let connections = self.gateway.connection_count();
        s.gauge("connections_open", "Connections that are open.", connections as f64);
        let unanswered = self.gateway.client().unanswered();
        s.gauge("unanswered", "Requests sent to the rack and not answered.", unanswered as f64);
        let (held, most) = self.gateway.reply_bytes();
        s.gauge("reply_bytes", "Bytes of replies that clients have not read yet.", held as f64);
        s.gauge("reply_bytes_most", "The most bytes of unread replies so far.", most as f64);
        let fetched = self.gateway.replies_fetched() as f64;
        s.gauge("replies_fetched", "Long replies that are on their way from replicas.", fetched);
        let (reads, writes) = self.gateway.latencies();
        let mut latencies = |name, help, l: &Latencies| {
            s.histogram(name, help, l.count(), l.sum_ns(), l.cumulative());
        };
        latencies("read_seconds", "Latency of reads, in seconds.", reads);
        latencies("write_seconds", "Latency of writes, in seconds.", writes);
        if !self.gateway.is_serving() {
            s.health = Health::NotYet("no session with the rack yet".to_string());
        }
        if self.gateway.is_failing(now.instant) {
            let why = "the rack answered no command of the last seconds in time";
            s.health = Health::NotYet(why.to_string());
        }
        let shadowed = self.gateway.shadowed_key();
        s.tell("shadowed_key", shadowed.map(|(key, _)| String::from_utf8_lossy(key).into_owned()));
        s.tell("serving", self.gateway.is_serving());
        s.tell("reads", reads.count());
        s.tell("writes", writes.count());
        s
    }
}
