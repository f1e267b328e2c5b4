//! The event loop that runs a machine: one thread, woken by packets, descriptors and deadlines.
//!
//! Each iteration waits, receives a bounded batch, samples the clock (trap T1), hands over every
//! packet, lets the role finish the batch, and sends the segment trains. It never spins, and it
//! never waits while there is work.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use concord_core::machine::{Deadline, Persist};
use concord_core::{Instant, MS, Machine, Now, SEC};
use rustix::event::epoll;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::clock;
use crate::cpu_share::CpuShare;
use crate::error::{Context, Error};
use crate::http::{Publisher, Snapshot};
use crate::poller::{Event, Interest, Poller, Token};
use crate::process::ignores_hangup;
use crate::udp::{self, Inbox, Outbox, Socket, TRAINS_PER_RECEIVE};

const UDP: Token = Token(0);
const SIGNAL: Token = Token(1);
const PARENT: Token = Token(2);
const HTTP: Token = Token(3);
/// The number of messages after which a batch ends. Even if the trains are short, this fills the
/// caches, and answers are sent together.
const BATCH_MESSAGES: usize = 2_048;
/// The time within a batch after which due deadlines are handled and output is sent: some inputs
/// take a replica a good part of a second, and its peers must hear from it meanwhile.
const BATCH_NS: u64 = 20 * MS;
/// The longest time in ns that packets wait for other ready descriptors. The clock is read once in
/// [`EVENTS_UNTIMED`] descriptors.
const EVENTS_NS: u64 = MS * 2 / 5;
const EVENTS_UNTIMED: usize = 8;
/// The longest time that a role may take to finish its work once it was told to end, in ns.
pub(crate) const STOP_NS_MAX: u64 = SEC;
/// The shortest time for which the longest iteration is shown, in ns.
const LONGEST_NS: u64 = 10 * SEC;
/// The shortest interval between two reads of the thread's CPU time, which cost a system call each.
/// CPU time since the last read is charged to one iteration, which overstates it by at most this.
const CPU_READ_NS: u64 = MS / 10;
/// The lowest token of a role's own descriptors.
pub const ROLE_TOKEN_MIN: u64 = 16;

/// The reason that a process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It received SIGTERM, SIGINT or SIGHUP; the other processes go on without it.
    Signal,
    /// Standard input was closed: the process that started the rack is gone, and all others end as
    /// well.
    Rack,
}

/// Whether the data that a machine wants persisted is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persisted {
    /// It is durable, and the driver tells the machine.
    Now,
    /// It is not yet durable; the role tells the machine when it is, in [`Role::event`].
    Later,
}

/// A machine, with its input and output other than UDP.
pub trait Role {
    /// The role's machine. A machine in one group is wrapped in [`concord_wire::OfGroup`].
    type Machine: Machine;

    /// The machine, to which the driver hands packets and deadlines.
    fn machine(&mut self) -> &mut Self::Machine;

    /// Handles one of the role's own descriptors that is ready. The role samples the clock itself,
    /// after it received the input (trap T1).
    ///
    /// # Errors
    /// An error after which the role cannot go on.
    fn event(&mut self, _event: Event, _out: &mut Outbox) -> Result<(), Error> {
        Ok(())
    }

    /// Persists the data that the machine wants kept.
    ///
    /// # Errors
    /// The data cannot be persisted: the machine must not go on.
    fn persist(&mut self, what: <Self::Machine as Machine>::Persist) -> Result<Persisted, Error>;

    /// Handles input other than UDP at the end of a batch, before the machine is told of the end.
    ///
    /// # Errors
    /// An error after which the role cannot go on.
    fn attend(&mut self, _now: Now, _out: &mut Outbox) -> Result<(), Error> {
        Ok(())
    }

    /// Logs what has changed since the last call.
    fn log(&mut self, now: Now);

    /// Whether the role is finished and ends by itself. Asked in every event-loop iteration.
    fn is_over(&self) -> bool {
        false
    }

    /// The process was told to end. Returns true once no work is left; asked in every event-loop
    /// iteration.
    fn stop(&mut self, _now: Now, _why: Stop) -> bool {
        true
    }

    /// The time in ns that the role has to finish its work, after which it ends in any case.
    fn stop_ns(&self, _why: Stop) -> u64 {
        STOP_NS_MAX
    }

    /// The role's own deadline, beside its machine's.
    fn wakes_at(&self) -> Deadline {
        Deadline::NONE
    }

    /// The contents of `/metrics` and `/status`.
    fn snapshot(&self, now: Now) -> Snapshot;
}

/// Does the work at the end of a batch, in order.
fn end_batch<R: Role>(role: &mut R, now: Now, out: &mut Outbox) -> Result<(), Error> {
    role.attend(now, out)?;
    role.machine().flush(now, out);
    while let Some(Persist { number, what }) = role.machine().poll_persist() {
        if role.persist(what)? == Persisted::Now {
            // The write took time, so the clock is sampled again.
            role.machine().persisted(clock::now(), number, out);
        }
    }
    role.log(now);
    Ok(())
}

/// Within a batch that takes long, handles due deadlines and ends the batch so far.
fn end_batch_if_due<R: Role>(role: &mut R, now: Now, out: &mut Outbox) -> Result<(), Error> {
    if deadline(role) <= now.instant {
        role.machine().tick(now, out);
    }
    end_batch(role, now, out)?;
    out.flush();
    Ok(())
}

/// The next deadline of the machine or its role.
fn deadline(role: &mut impl Role) -> Instant {
    let own = role.wakes_at();
    role.machine().deadline().min(own).at
}

/// How a role's process ends, and the share of a core that it may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct DriverOptions {
    /// Whether `concord up` started it: it then ends when standard input is closed, so that no role
    /// outlives `concord up`, and ignores SIGINT and SIGHUP.
    pub supervised: bool,
    /// The share of a core that the thread may use, for benches.
    pub cpu_share: Option<f64>,
}

/// The longest recent event-loop iterations: a packet may wait for as long.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    /// The beginning of the current period.
    since: Instant,
    /// The longest by the wall clock and by the thread's own CPU time. They differ for an iteration
    /// that other processes interrupted.
    wall: Peak,
    cpu: Peak,
    /// The last read of the thread's CPU time: when, and its value.
    cpu_read_at: Instant,
    cpu_ns: u64,
}

/// The maximum in the current period, in the one before and ever, in ns.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    now_ns: u64,
    before_ns: u64,
    ever_ns: u64,
}

impl Peak {
    fn note(&mut self, ns: u64) {
        self.now_ns = self.now_ns.max(ns);
        self.ever_ns = self.ever_ns.max(ns);
    }

    fn recent_ns(&self) -> u64 {
        self.now_ns.max(self.before_ns)
    }
}

impl Longest {
    /// Notes an iteration from `began` to `now`.
    fn note(&mut self, began: Instant, now: Instant) {
        let stretch_ns = now.since(self.since);
        if stretch_ns >= LONGEST_NS {
            for peak in [&mut self.wall, &mut self.cpu] {
                peak.before_ns = if stretch_ns < 2 * LONGEST_NS { peak.now_ns } else { 0 };
                peak.now_ns = 0;
            }
            self.since = now;
        }
        self.wall.note(now.since(began));
        if now.since(self.cpu_read_at) >= CPU_READ_NS {
            let cpu_ns = clock::thread_cpu_ns();
            if self.cpu_ns > 0 {
                self.cpu.note(cpu_ns - self.cpu_ns);
            }
            (self.cpu_read_at, self.cpu_ns) = (now, cpu_ns);
        }
    }

    fn tell(&self, s: &mut Snapshot) {
        let (wall_ns, cpu_ns) = (self.wall.recent_ns(), self.cpu.recent_ns());
        let help = "The longest event-loop iteration of the last 10 to 20 s, in seconds.";
        s.gauge("loop_longest_seconds", help, wall_ns as f64 / SEC as f64);
        let help = "The longest event-loop iteration since the start, in seconds.";
        s.gauge("loop_longest_ever_seconds", help, self.wall.ever_ns as f64 / SEC as f64);
        let help =
            "The most CPU time of an event-loop iteration of the last 10 to 20 s, in seconds.";
        s.gauge("loop_longest_cpu_seconds", help, cpu_ns as f64 / SEC as f64);
        let help = "The most CPU time of an event-loop iteration since the start, in seconds.";
        s.gauge("loop_longest_cpu_ever_seconds", help, self.cpu.ever_ns as f64 / SEC as f64);
        s.tell("loop_longest_ns", wall_ns);
        s.tell("loop_longest_cpu_ns", cpu_ns);
    }
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
    longest: Longest,
}

impl Driver {
    /// A driver over `socket`. SIGINT, SIGTERM and SIGHUP end [`Driver::run`] from now on.
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
        Ok(Driver {
            inbox: Inbox::new(Rc::clone(&socket)),
            outbox: Outbox::new(Rc::clone(&socket)),
            share: options.cpu_share.map(CpuShare::new),
            longest: Longest::default(),
            poller,
            socket,
            publisher,
            signals,
            parent,
        })
    }

    /// The poller with which roles register their own descriptors.
    #[must_use]
    pub fn poller(&self) -> Rc<Poller> {
        Rc::clone(&self.poller)
    }

    /// The socket, for its address.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Runs `role` until a signal or, if supervised, the end of standard input. Work in progress
    /// then has a second to finish, or until a second signal.
    ///
    /// # Errors
    /// The role's, or the system's.
    pub fn run(&mut self, role: &mut impl Role) -> Result<(), Error> {
        let mut raw: Vec<epoll::Event> = Vec::new();
        let mut events = Vec::new();
        let mut stop: Option<(Stop, Instant)> = None;
        let mut began = clock::now().instant;
        loop {
            // Everything received so far was received before this moment (trap T1).
            let now = clock::now();
            if deadline(role) <= now.instant {
                role.machine().tick(now, &mut self.outbox);
            }
            end_batch(role, now, &mut self.outbox)?;
            self.outbox.flush();
            if let Some(share) = &mut self.share {
                share.pay();
            }
            if role.is_over() {
                return Ok(());
            }
            if stop.is_some_and(|(why, by)| by <= now.instant || role.stop(now, why)) {
                return Ok(());
            }
            let deadline = deadline(role).min(stop.map_or(Instant::NEVER, |(_, by)| by));
            let waits_from = clock::now().instant;
            self.longest.note(began, waits_from);
            self.poller.wait(waits_from, deadline, &mut raw, &mut events)?;
            began = clock::now().instant;
            let mut received = began;
            for (number, event) in events.iter().enumerate() {
                // If many descriptors are ready, packets do not wait for all of them.
                if number % EVENTS_UNTIMED == EVENTS_UNTIMED - 1 {
                    let now = clock::now();
                    if now.instant.since(received) > EVENTS_NS {
                        received = now.instant;
                        self.receive(role)?;
                        end_batch(role, now, &mut self.outbox)?;
                        self.outbox.flush();
                    }
                }
                match event.token {
                    UDP => self.receive(role)?,
                    SIGNAL | PARENT => {
                        if self.should_end(event.token) {
                            let why = if event.token == PARENT { Stop::Rack } else { Stop::Signal };
                            let now = clock::now();
                            if stop.is_some() || role.stop(now, why) {
                                return Ok(());
                            }
                            stop = Some((why, now.instant.after(role.stop_ns(why))));
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

    /// Receives a batch of trains. The rest is left for the next iteration, after this batch's
    /// output was sent: the larger the batch, the fewer and the longer the trains that it causes.
    fn receive(&mut self, role: &mut impl Role) -> Result<(), Error> {
        let mut messages = 0;
        let mut since = clock::coarse();
        while messages < BATCH_MESSAGES {
            let received = self.inbox.receive();
            // The clock is sampled after the receive, so that a suspend before it is noticed (trap
            // T1) and no answer by this clock precedes its request.
            let mut now = clock::now();
            for mut train in self.inbox.trains() {
                let from = train.from;
                for message in train.messages() {
                    messages += 1;
                    role.machine().handle(now, from, message, &mut self.outbox);
                    if clock::coarse().saturating_sub(since) < BATCH_NS {
                        continue;
                    }
                    now = clock::now();
                    end_batch_if_due(role, now, &mut self.outbox)?;
                    since = clock::coarse();
                }
            }
            if received < TRAINS_PER_RECEIVE {
                break;
            }
        }
        Ok(())
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
            self.longest.tell(&mut snapshot);
            snapshot.tell("addr", self.socket.addr().ok().map(|addr| addr.to_string()));
            snapshot.count(self.inbox.counters().each());
            snapshot.count(self.outbox.counters().each());
            if let Some(drops) = self.socket.addr().ok().and_then(udp::kernel_drops) {
                let help = "Datagrams that the kernel dropped: the receive buffer was full.";
                snapshot.count(std::iter::once(("kernel_receive_drops", help, drops)));
            }
            publisher.publish(snapshot);
        }
    }

    /// Whether the process is to end: on a signal, and on standard input only at its end.
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

/// A stream that becomes readable with SIGTERM, with SIGINT, and with SIGHUP unless it is ignored
/// (`nohup`). Ctrl-C and the closing of a terminal reach every process of the terminal: a
/// supervised role ignores them, and `concord up` ends it in order.
fn watch_signals(supervised: bool) -> Result<UnixStream, Error> {
    let (read, write) = UnixStream::pair().cannot("make a signal pipe")?;
    read.set_nonblocking(true).cannot("make a signal pipe")?;
    let own = write.try_clone().cannot("make a signal pipe")?;
    signal_hook::low_level::pipe::register(SIGTERM, own).cannot("handle SIGTERM")?;
    for signal in [Some(SIGINT), (!ignores_hangup()).then_some(SIGHUP)].into_iter().flatten() {
        let handled = if supervised {
            let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            signal_hook::flag::register(signal, ignored)
        } else {
            let own = write.try_clone().cannot("make a signal pipe")?;
            signal_hook::low_level::pipe::register(signal, own)
        };
        handled.cannot("handle SIGINT and SIGHUP")?;
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::{Addr, Sink};
    use concord_wire::{GroupId, Header, Kind, OfGroup, header};

    /// Answers what comes, and wants it kept.
    struct Persister(Vec<Vec<u8>>, u64);

    impl Machine for Persister {
        type Persist = Vec<u8>;

        fn handle(&mut self, _now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
            self.0.push(packet.to_vec());
            sink.send(from, &Header::new(Kind::Link, 7).bytes(16));
        }

        fn tick(&mut self, _now: Now, _sink: &mut impl Sink) {}

        fn deadline(&self) -> Deadline {
            Deadline::NONE
        }

        fn poll_persist(&mut self) -> Option<Persist<Vec<u8>>> {
            let what = self.0.pop()?;
            self.1 += 1;
            Some(Persist { number: self.1, what })
        }

        fn persisted(&mut self, _now: Now, number: u64, sink: &mut impl Sink) {
            assert_eq!(number, self.1);
            let to = Addr { ip: 0x7f00_0001, port: 9 };
            sink.send(to, b"it is kept");
        }
    }

    /// Ends with the last packet.
    struct Shelf(OfGroup<Persister>, Vec<u8>);

    impl Role for Shelf {
        type Machine = OfGroup<Persister>;

        fn machine(&mut self) -> &mut OfGroup<Persister> {
            &mut self.0
        }

        fn persist(&mut self, what: Vec<u8>) -> Result<Persisted, Error> {
            self.1.push(header::op(&what));
            Ok(Persisted::Now)
        }

        fn log(&mut self, _now: Now) {}

        fn stop(&mut self, _now: Now, _why: Stop) -> bool {
            true
        }

        fn attend(&mut self, _now: Now, out: &mut Outbox) -> Result<(), Error> {
            out.flush();
            let is_last = self.1.contains(&9);
            if is_last { Err(Error::new("enough".to_string())) } else { Ok(()) }
        }

        fn snapshot(&self, _now: Now) -> Snapshot {
            Snapshot::new("keeper", 1)
        }
    }

    #[test]
    fn the_longest_iteration_is_shown_for_some_time() {
        let (mut longest, at) = (Longest::default(), |ms: u64| Instant(ms * 1_000_000));
        longest.note(at(100_000), at(100_007));
        longest.note(at(100_010), at(100_011));
        assert_eq!((longest.wall.now_ns, longest.wall.ever_ns), (7_000_000, 7_000_000));
        longest.note(at(111_000), at(111_002));
        assert_eq!(
            longest.wall.now_ns.max(longest.wall.before_ns),
            7_000_000,
            "of the stretch before"
        );
        longest.note(at(150_000), at(150_001));
        assert_eq!(longest.wall.now_ns.max(longest.wall.before_ns), 1_000_000);
        assert_eq!(longest.wall.ever_ns, 7_000_000);
    }

    /// A node hears of its own group alone speaks in it and keeps what it wants kept.
    #[test]
    fn node_is_bound_to_its_group_and_persists() {
        let own = GroupId(3);
        let socket = Socket::bind(Addr { ip: 0x7f00_0001, port: 0 }).unwrap();
        let at = udp::to_std(socket.addr().unwrap());
        let mut driver = Driver::new(socket, None, DriverOptions::default()).unwrap();
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        // Of another group, of the first, of nobody's making, and of its own.
        for (group, op) in [(GroupId(4), 1), (GroupId::FIRST, 2), (own, 3)] {
            let packet = Header { group, ..Header::new(Kind::Link, op) }.bytes(16);
            peer.send_to(&packet, at).unwrap();
        }
        peer.send_to(b"this is no packet of ours", at).unwrap();
        peer.send_to(&Header { group: own, ..Header::new(Kind::Link, 9) }.bytes(16), at).unwrap();
        let mut shelf = Shelf(OfGroup::new(own, Persister(vec![], 0)), vec![]);
        assert_eq!(driver.run(&mut shelf).unwrap_err().to_string(), "enough");
        let mut kept = shelf.1.clone();
        kept.sort_unstable();
        assert_eq!(kept, [3, 9, b' '], "what is malformed the machine counts itself");
        assert_eq!(shelf.0.of_group_counters().other_group, 2);
        assert_eq!(shelf.0.1, 3);
        let mut answer = [0; 64];
        let (len, _) = peer.recv_from(&mut answer).unwrap();
        assert_eq!(header::group(&answer[..len]), own);
    }

    /// Each input takes it long; it wants to be woken often.
    struct Slow {
        seen: Vec<char>,
        next_at: Instant,
    }

    impl Machine for Slow {
        type Persist = ();

        fn handle(&mut self, _now: Now, _from: Addr, _packet: &mut [u8], _sink: &mut impl Sink) {
            std::thread::sleep(std::time::Duration::from_millis(30));
            self.seen.push('p');
        }

        fn tick(&mut self, now: Now, _sink: &mut impl Sink) {
            self.seen.push('t');
            self.next_at = now.instant.after(10 * MS);
        }

        fn deadline(&self) -> Deadline {
            Deadline { at: self.next_at, reason: "say that it lives" }
        }
    }

    impl Role for Slow {
        type Machine = Slow;

        fn machine(&mut self) -> &mut Slow {
            self
        }

        fn persist(&mut self, (): ()) -> Result<Persisted, Error> {
            Ok(Persisted::Now)
        }

        fn log(&mut self, _now: Now) {}

        fn attend(&mut self, _now: Now, _out: &mut Outbox) -> Result<(), Error> {
            let packets = self.seen.iter().filter(|what| **what == 'p').count();
            if packets == 8 { Err(Error::new("enough".to_string())) } else { Ok(()) }
        }

        fn snapshot(&self, _now: Now) -> Snapshot {
            Snapshot::new("slow", 1)
        }
    }

    /// A batch that takes long does not keep a machine from what is due.
    #[test]
    fn bug_16_16_long_batch_delays_no_deadline() {
        let socket = Socket::bind(Addr { ip: 0x7f00_0001, port: 0 }).unwrap();
        let at = udp::to_std(socket.addr().unwrap());
        let mut driver = Driver::new(socket, None, DriverOptions::default()).unwrap();
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..8 {
            peer.send_to(b"one of a batch", at).unwrap();
        }
        let mut slow = Slow { seen: vec![], next_at: Instant(0) };
        assert_eq!(driver.run(&mut slow).unwrap_err().to_string(), "enough");
        let seen: String = slow.seen.iter().collect();
        assert!(!seen.contains("pp"), "{seen}");
    }
}
