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
use tracing::{info, warn};

pub use concord_gateway::REPLIES_BYTES_MIN;

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
/// Connections that wait to be accepted (Redis' `tcp-backlog`; Linux takes `net.core.somaxconn` if
/// that is less).
const BACKLOG: i32 = 511;
/// Connections accepted in a row, so that others are served in between.
const ACCEPTS_MAX: usize = 4;
/// Most connections, where the system allows as many descriptors (Redis' default).
const CONNECTIONS_MAX: u64 = 10_000;
/// Descriptors that a gateway needs beside its connections.
const DESCRIPTORS_KEPT: u64 = 64 + http::CONNECTIONS_MAX as u64;
/// Time between two looks at what the process has used, at least.
const FIGURES_NS: Duration = 100 * MS;
/// Bytes written to a connection in one turn, so that others are served in between.
const WRITE_BYTES_MAX: usize = 128 << 10;

/// Bytes of a connection that the kernel takes beyond what it may send. As long as a client reads
/// there is always something to send, and of one that does not the gateway knows soon.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Memory grows by small pages while clients wait for each other, and so long afterwards. A huge
/// page (`GLIBC_TUNABLES`, [`crate::TUNABLES`]) is cleared as a whole when it is touched first,
/// while everybody waits: replies that nobody reads are not worth it.
const SMALL_PAGES_NS: Duration = 100 * MS;

/// What a gateway is told beside its place.
#[derive(Clone, Debug)]
pub struct GatewaySetup {
    /// The group that its clients' data is of.
    pub group: GroupId,
    /// Where the switch listens.
    pub switch: Addr,
    /// Where the controller listens, who knows if another switch took over.
    pub controller: Addr,
    /// The other gateways of the group: their numbers and addresses.
    pub others: Vec<(u16, Addr)>,
    /// Where Redis clients connect.
    pub listen: SocketAddr,
    /// Which file says so, and in which line.
    pub listen_said_in: String,
    /// What clients must AUTH with; empty for nothing.
    pub requirepass: String,
    /// Reads of several keys are executed key by key.
    pub splits_reads: bool,
    /// The nodes among which it chooses who answers a read (follower leases); none if the switch
    /// does.
    pub readers: Vec<u16>,
    /// The engine is a Redis server, with commands of its own.
    pub redis: bool,
    /// The limit of the data; 0 for none.
    pub memory_bytes_max: u64,
    /// Most bytes of replies that its clients have not read, all together.
    pub replies_bytes_max: usize,
    /// What INFO says about the rack, in lines of `name:value` that end with CRLF.
    pub rack_info: String,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    interest: Interest,
    /// Whether it waits with those that came last, and whether a reply was written to it.
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
    /// By token, which is the connection's id too; never used twice.
    connections: HashMap<u64, Connection, FxBuildHasher>,
    next_id: u64,
    buffer: Vec<u8>,
    is_stopping: bool,
    /// Whether what memory it needs more comes in small pages, and until when ([`SMALL_PAGES_NS`]).
    has_small_pages: bool,
    small_pages_until: Instant,
    /// When INFO's figures of the process are read again.
    figures_at: Instant,
    /// Whether it served when that was logged last.
    logged_serving: bool,
    /// Whether the rack kept another password then than it was started with.
    logged_password: bool,
    /// Clients that were given up and are not in the log, and when it may have the next line of
    /// them.
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
        limits: Limits::of_replies(setup.replies_bytes_max),
        others: setup.others.clone(),
        node: place.node,
        port: setup.listen.port(),
    };
    // Whoever started it without huge pages does not get them from a crowd that has left.
    let has_small_pages = rustix::thread::transparent_huge_pages_are_disabled().unwrap_or(false);
    let mut role = GatewayRole {
        node: place.node,
        // The session's id comes from it: another with every start (trap T16 b).
        gateway: OfGroup::new(setup.group, Gateway::new(config, Rng::new(unique()?))),
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
        given_up: 0,
        log_given_up_at: Instant(0),
    };
    let mut secret = Vec::with_capacity(32);
    for _ in 0..4 {
        secret.extend_from_slice(&unique()?.to_be_bytes());
    }
    role.gateway.share_users(&secret);
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

/// As the standard library does it, but for the backlog: a client that finds it full tries again
/// after a second.
pub(crate) fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// As many connections as there may be descriptors: one too many would be accepted by nobody, and
/// wake the loop for ever.
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

/// What the process has used by now.
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
                // The client is gone already, or the like: not the listener's end.
                Err(_) => continue,
            };
            let id = self.next_id;
            self.next_id += 1;
            if !self.gateway.connected(clock::now(), ConnectionId(id), &peer.to_string()) {
                // A fresh socket has room for one line; if not, the client sees the end alone.
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

    /// One read: what is left makes the descriptor ready again at the next turn.
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
        // An event that nobody wanted is that of a connection which broke: the read tells.
        let room = match self.gateway.input_room(ConnectionId(id)) {
            0 => READ_BYTES_MAX,
            room => room,
        };
        match connection.stream.read(&mut self.buffer[..room]) {
            Ok(0) if self.gateway.has_ended(ConnectionId(id)) => self.close(id),
            Ok(0) => {
                self.gateway.ended(ConnectionId(id));
                // Events of a connection that is not read are those of one that broke.
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

    /// Writes what there is for a connection, and closes it or changes what it is watched for.
    fn serve(&mut self, now: Now, id: u64, out: &mut Outbox) -> Result<(), Error> {
        let gateway_id = ConnectionId(id);
        if self.gateway.is_given_up(gateway_id) {
            self.log_given_up(now.instant, gateway_id);
            if let Some(connection) = self.connections.get(&id) {
                // What it did not read the kernel would keep for it, megabytes: a reset frees them.
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

    /// A client is disconnected that does not read, or does not send the rest of a command. Of a
    /// crowd of them the log has one line a second.
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

    /// Who came of late, and who comes.
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

    /// A crowd's replies have small pages.
    fn choose_pages(&mut self, now: Instant) {
        if self.gateway.is_crowded() {
            self.small_pages_until = self.small_pages_until.max(now.after(SMALL_PAGES_NS));
        }
        let has_small_pages = now < self.small_pages_until;
        if has_small_pages != self.has_small_pages {
            self.has_small_pages = has_small_pages;
            // Where the system refuses, memory is as it was.
            let _ = rustix::thread::disable_transparent_huge_pages(has_small_pages);
        }
    }

    fn close(&mut self, id: u64) {
        self.gateway.closed(ConnectionId(id));
        // Closing the descriptor takes it from the poller too.
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

    /// Accepts nobody any more, and closes each connection when what it sent is answered.
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
        s.tell("serving", self.gateway.is_serving());
        s.tell("reads", reads.count());
        s.tell("writes", writes.count());
        s
    }
}
