//! The loop that runs a machine: one thread, woken by packets, descriptors and deadlines.
//!
//! Each turn: wait; receive a bounded batch; sample the clock (trap T1); hand over every packet;
//! let the role finish the batch; send the trains. It never spins, and it never waits while there
//! is something to do.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use concord_core::machine::Deadline;
use concord_core::{Instant, Now, SEC};
use concord_wire::{GroupId, header};
use rustix::event::epoll;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::clock;
use crate::cpu_share::CpuShare;
use crate::error::{Context, Error};
use crate::http::{Publisher, Snapshot};
use crate::poller::{Event, Interest, Poller, Token};
use crate::udp::{self, Inbox, Outbox, Socket, TRAINS_PER_RECEIVE};

const UDP: Token = Token(0);
const SIGNAL: Token = Token(1);
const PARENT: Token = Token(2);
const HTTP: Token = Token(3);
/// A batch ends after so many messages: however short the trains are, the caches are filled and the
/// answers are sent once for as many.
const BATCH_MESSAGES: usize = 2_048;
/// How long a role may take to finish what is under way once it was told to end, in ns.
const STOP_NS_MAX: u64 = SEC;
/// Roles number their own descriptors from here on.
pub const ROLE_TOKEN_MIN: u64 = 16;

/// Why a process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was sent SIGTERM or SIGINT: the others go on without it.
    Signal,
    /// Standard input came to its end: whoever started the rack is gone, and all others end as well.
    Rack,
}

/// A machine with what it needs of the outside beside UDP.
pub trait Role {
    /// Takes one datagram that came from `from`; there may be padding behind it.
    fn packet(&mut self, now: Now, from: concord_wire::Addr, packet: &mut [u8], out: &mut Outbox);

    /// One of the role's own descriptors is ready. The role samples the clock itself, after it
    /// received what is there (trap T1).
    ///
    /// # Errors
    /// What the role cannot go on after.
    fn event(&mut self, event: Event, out: &mut Outbox) -> Result<(), Error>;

    /// The deadline has come.
    fn tick(&mut self, now: Now, out: &mut Outbox);

    /// The end of a batch of inputs, whatever they were.
    ///
    /// # Errors
    /// What the role cannot go on after.
    fn flush(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error>;

    /// The process was told to end. True once nothing is left to do; asked in every event-loop iteration.
    fn stop(&mut self, _now: Now, _why: Stop) -> bool {
        true
    }

    /// When to be woken, and why.
    fn deadline(&self) -> Deadline;

    /// What `/metrics` and `/status` show.
    fn snapshot(&self, now: Now) -> Snapshot;
}

/// How a role's process ends, and how much of a core it may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct DriverOptions {
    /// Started by `concord up`: ends when standard input does, so that no role outlives it, and
    /// leaves SIGINT to it.
    pub supervised: bool,
    /// Share of a core that the thread may use, for benches.
    pub cpu_share: Option<f64>,
    /// The one group that the node is of: packets of others are dropped and counted, and what it sends is
    /// of that group. `None`: it serves all groups, as a controller and a switch do.
    pub group: Option<GroupId>,
}

/// The loop around one role.
#[derive(Debug)]
pub struct Driver {
    poller: Rc<Poller>,
    socket: Rc<Socket>,
    inbox: Inbox,
    outbox: Outbox,
    publisher: Option<Publisher>,
    signals: UnixStream,
    parent: Option<OwnedFd>,
    share: Option<CpuShare>,
    group: Option<GroupId>,
}

impl Driver {
    /// A driver over `socket`. SIGINT and SIGTERM end [`Driver::run`] from now on.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    pub fn new(
        socket: Rc<Socket>,
        publisher: Option<Publisher>,
        options: DriverOptions,
    ) -> Result<Driver, Error> {
        let poller = Rc::new(Poller::new()?);
        poller.add(&*socket, UDP, Interest::READ)?;
        if let Some(publisher) = &publisher {
            poller.add(publisher, HTTP, Interest::READ)?;
        }
        let signals = watch_signals(options.supervised)?;
        poller.add(&signals, SIGNAL, Interest::READ)?;
        let parent = if options.supervised {
            let stdin = std::io::stdin().as_fd().try_clone_to_owned();
            let stdin = stdin.cannot("watch standard input")?;
            poller.add(&stdin, PARENT, Interest::READ)?;
            Some(stdin)
        } else {
            None
        };
        let mut outbox = Outbox::new(Rc::clone(&socket));
        if let Some(group) = options.group {
            outbox.set_group(group);
        }
        Ok(Driver {
            inbox: Inbox::new(Rc::clone(&socket)),
            outbox,
            group: options.group,
            share: options.cpu_share.map(CpuShare::new),
            poller,
            socket,
            publisher,
            signals,
            parent,
        })
    }

    /// What roles with descriptors of their own register them with.
    #[must_use]
    pub fn poller(&self) -> Rc<Poller> {
        Rc::clone(&self.poller)
    }

    /// The socket, for its address.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Runs `role` until a signal or, if supervised, the end of standard input; what is under way
    /// then has a second to finish, or until a second signal.
    ///
    /// # Errors
    /// The role's, or the system's.
    pub fn run(&mut self, role: &mut impl Role) -> Result<(), Error> {
        let mut raw: Vec<epoll::Event> = Vec::new();
        let mut events = Vec::new();
        let mut stop: Option<(Stop, Instant)> = None;
        loop {
            // Everything received so far was received before this moment (trap T1).
            let now = clock::now();
            if role.deadline().at <= now.instant {
                role.tick(now, &mut self.outbox);
            }
            role.flush(now, &mut self.outbox)?;
            self.outbox.flush();
            if let Some(share) = &mut self.share {
                share.pay();
            }
            if stop.is_some_and(|(why, by)| by <= now.instant || role.stop(now, why)) {
                return Ok(());
            }
            let deadline = role.deadline().at.min(stop.map_or(Instant::NEVER, |(_, by)| by));
            self.poller.wait(clock::now().instant, deadline, &mut raw, &mut events)?;
            for event in &events {
                match event.token {
                    UDP => self.receive(role),
                    SIGNAL | PARENT => {
                        if self.should_end(event.token) {
                            let why = if event.token == PARENT { Stop::Rack } else { Stop::Signal };
                            let now = clock::now();
                            if stop.is_some() || role.stop(now, why) {
                                return Ok(());
                            }
                            stop = Some((why, now.instant.after(STOP_NS_MAX)));
                            if let Some(stdin) = self.parent.take() {
                                self.poller.remove(&stdin);
                            }
                        }
                    }
                    HTTP => self.publish(role, clock::now()),
                    _ => role.event(*event, &mut self.outbox)?,
                }
            }
        }
    }

    /// A batch of trains. What is left over is there at the next turn, after this batch's packets
    /// went out: the larger the batch, the fewer and the longer the trains that it causes.
    fn receive(&mut self, role: &mut impl Role) {
        let (mut messages, mut strangers) = (0, 0);
        while messages < BATCH_MESSAGES {
            let received = self.inbox.receive();
            // After the receive: whoever slept before it knows (trap T1), and what is answered by
            // this clock had come before it.
            let now = clock::now();
            for mut train in self.inbox.trains() {
                let from = train.from;
                for message in train.messages() {
                    messages += 1;
                    if self.group.is_some_and(|own| header::is_of_other_group(message, own)) {
                        strangers += 1;
                        continue;
                    }
                    role.packet(now, from, message, &mut self.outbox);
                }
            }
            if received < TRAINS_PER_RECEIVE {
                break;
            }
        }
        self.inbox.count_other_group(strangers);
    }

    fn publish(&mut self, role: &impl Role, now: Now) {
        if let Some(publisher) = &self.publisher {
            let mut snapshot = role.snapshot(now);
            let clock = clock::steady();
            let help = "Times that this node's wall clock was found to have been set.";
            snapshot.count(std::iter::once(("wall_clock_jumps", help, clock.jumps())));
            let help =
                "How far the wall clock is ahead of the time that the node goes by, in seconds.";
            snapshot.gauge("wall_clock_ahead_seconds", help, clock.wall_ahead_ms() as f64 / 1e3);
            snapshot.count(self.inbox.counters().each());
            snapshot.count(self.outbox.counters().each());
            if let Some(drops) = self.socket.addr().ok().and_then(udp::kernel_drops) {
                let help = "Datagrams that the kernel dropped: the receive buffer was full.";
                snapshot.count(std::iter::once(("kernel_receive_drops", help, drops)));
            }
            publisher.publish(snapshot);
        }
    }

    /// Whether the process is to end: a signal does, standard input only at its end.
    fn should_end(&mut self, token: Token) -> bool {
        let mut byte = [0u8; 64];
        match &self.parent {
            Some(stdin) if token == PARENT => {
                !matches!(rustix::io::read(stdin, &mut byte), Ok(1..))
            }
            _ => self.signals.read(&mut byte).is_ok_and(|n| n > 0),
        }
    }
}

/// A stream that becomes readable with SIGTERM, and with SIGINT. Ctrl-C reaches every process of
/// the terminal: a supervised role takes no notice, `concord up` ends it in order.
fn watch_signals(supervised: bool) -> Result<UnixStream, Error> {
    let (read, write) = UnixStream::pair().cannot("make a signal pipe")?;
    read.set_nonblocking(true).cannot("make a signal pipe")?;
    let own = write.try_clone().cannot("make a signal pipe")?;
    signal_hook::low_level::pipe::register(SIGTERM, own).cannot("handle SIGTERM")?;
    if supervised {
        let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(SIGINT, ignored).cannot("handle SIGINT")?;
    } else {
        signal_hook::low_level::pipe::register(SIGINT, write).cannot("handle SIGINT")?;
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use concord_wire::{Addr, Header, Kind, Sink as _};

    /// Keeps what comes, answers it, and ends with the last one.
    struct Keeper(Vec<Vec<u8>>);

    impl Role for Keeper {
        fn packet(&mut self, _now: Now, from: Addr, packet: &mut [u8], out: &mut Outbox) {
            self.0.push(packet.to_vec());
            out.send(from, &Header::new(Kind::Link, 7).bytes(16));
        }

        fn event(&mut self, _event: Event, _out: &mut Outbox) -> Result<(), Error> {
            Ok(())
        }

        fn tick(&mut self, _now: Now, _out: &mut Outbox) {}

        fn flush(&mut self, _now: Now, out: &mut Outbox) -> Result<(), Error> {
            out.flush();
            let is_last = self.0.last().is_some_and(|packet| header::op(packet) == 9);
            if is_last { Err(Error::new("enough".to_string())) } else { Ok(()) }
        }

        fn deadline(&self) -> Deadline {
            Deadline::NONE
        }

        fn snapshot(&self, _now: Now) -> Snapshot {
            Snapshot::new("keeper", 1)
        }
    }

    #[test]
    fn a_node_hears_of_its_own_group_alone_and_speaks_in_it() {
        let own = GroupId(3);
        let options = DriverOptions { group: Some(own), ..DriverOptions::default() };
        let socket = Socket::bind(Addr { ip: 0x7f00_0001, port: 0 }).unwrap();
        let at = udp::to_std(socket.addr().unwrap());
        let mut driver = Driver::new(socket, None, options).unwrap();
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        // Of another group, of the first, of nobody's making, and of its own.
        for (group, op) in [(GroupId(4), 1), (GroupId::FIRST, 2), (own, 3)] {
            let packet = Header { group, ..Header::new(Kind::Link, op) }.bytes(16);
            peer.send_to(&packet, at).unwrap();
        }
        peer.send_to(b"this is no packet of ours", at).unwrap();
        peer.send_to(&Header { group: own, ..Header::new(Kind::Link, 9) }.bytes(16), at).unwrap();
        let mut keeper = Keeper(vec![]);
        assert_eq!(driver.run(&mut keeper).unwrap_err().to_string(), "enough");
        let ops: Vec<u8> = keeper.0.iter().map(|packet| header::op(packet)).collect();
        assert_eq!(ops, [3, b' ', 9], "what is malformed the role counts itself");
        assert_eq!(driver.inbox.counters().other_group, 2);
        let mut answer = [0; 64];
        let (len, _) = peer.recv_from(&mut answer).unwrap();
        assert_eq!(header::group(&answer[..len]), own);
    }
}
