//! Limits of memory, times to live and clocks, over groups of every protocol: each node has clocks
//! of its own, and packets arrive in the order in which they were sent.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use concord_core::{
    Guards, Instant, LogClock, MS, Machine, Now, ObjectId, RequestNumber, Seq, SessionId, SwitchId,
    hash,
};
use concord_engine::memory::Memory;
use concord_engine::{CommandBuf, Engine, Shimmed};
use concord_protocols::{Node, ReplicaConfig};
use concord_wire::control::{
    Config, CopyMessage, Member, Membership, Message as _, Program, Protocol,
};
use concord_wire::nopaxos::Stamp;
use concord_wire::rpc::{BODY_BYTES_MAX, READ_BIT};
use concord_wire::{Addr, Flags, FurtherIds, GroupId, Kind, Op, PacketMut, Repr, Status, kind};

const SWITCH: Addr = Addr { ip: 1, port: 200 };
const CONTROLLER: Addr = Addr { ip: 1, port: 300 };
const CLIENT: Addr = Addr { ip: 1, port: 100 };
const LEASE_MS: u64 = 100;
const SESSION: SessionId = SessionId(7);
const ALL: [Protocol; 6] = [
    Protocol::PrimaryBackup,
    Protocol::Chain,
    Protocol::Craq,
    Protocol::Vr,
    Protocol::NoPaxos,
    Protocol::Raft,
];

fn addr(node: u16) -> Addr {
    Addr { ip: 1, port: node }
}

/// Replicas 1 to n, and a switch that numbers what is written.
struct Group {
    protocol: Protocol,
    nodes: Vec<Node<Shimmed<Memory>>>,
    setup: ReplicaConfig,
    memory_max: u64,
    /// How far each node's wall clock is ahead, in ms.
    ahead_ms: Vec<i64>,
    /// Nodes that are dead, or cut off.
    dead: Vec<u16>,
    now_ms: u64,
    wire: VecDeque<(Addr, Vec<u8>)>,
    /// Pieces of copies arrive one in a millisecond.
    pieces: VecDeque<(Addr, Vec<u8>)>,
    members: Vec<u16>,
    joining: Vec<u16>,
    epoch: u32,
    counter: u32,
    request: u64,
    /// Writes of the replicas themselves that the switch is to lose, by their object.
    lost_objects: Vec<u32>,
    /// NOPaxos: what the leader has the switch say.
    stamp_full: (bool, bool),
    stamp_clock: LogClock,
    /// Writes of the replicas that came to the switch.
    internal: usize,
    /// Replies to the client.
    replies: Vec<(u64, String)>,
    /// Of the client's next writes, and how often it was told that an object was written.
    flags: Flags,
    pushed: usize,
}

const START_MS: u64 = 1_700_000_000_000;

impl Group {
    fn new(protocol: Protocol, count: u16, memory_max: u64, guards: Guards) -> Group {
        Group::with_clocks(protocol, vec![0; usize::from(count)], memory_max, guards)
    }

    fn with_clocks(
        protocol: Protocol,
        ahead_ms: Vec<i64>,
        memory_max: u64,
        guards: Guards,
    ) -> Group {
        let count = ahead_ms.len() as u16;
        let setup = ReplicaConfig {
            me: Member { node: 0, incarnation: 10, addr: addr(0) },
            controller: CONTROLLER,
            lease_ns: LEASE_MS * MS,
            replies_via_switch: true,
            copy_bytes: 2_000,
            records_kept: 20,
            weigh_ns: concord_core::SEC,
            reads: concord_protocols::SlowReads::default(),
            replicate_replies: false,
            compare_ns: 0,
            limits: concord_protocols::Limits {
                log_memory_bytes: 0,
                ..concord_protocols::Limits::default()
            },
            guards,
        };
        let mut group = Group {
            protocol,
            nodes: Vec::new(),
            setup,
            memory_max,
            ahead_ms,
            dead: Vec::new(),
            now_ms: 1_000,
            wire: VecDeque::new(),
            pieces: VecDeque::new(),
            members: (1..=count).collect(),
            joining: Vec::new(),
            epoch: 0,
            counter: 0,
            request: 0,
            lost_objects: Vec::new(),
            stamp_full: (false, false),
            stamp_clock: LogClock::default(),
            internal: 0,
            replies: Vec::new(),
            flags: Flags(0),
            pushed: 0,
        };
        group.nodes = (1..=count).map(|node| group.node(node, 10)).collect();
        group.configure();
        group.pass(60);
        group.send(Flags::REGISTER, b"", &[]);
        group.pass(5);
        group
    }

    fn node(&self, node: u16, incarnation: u64) -> Node<Shimmed<Memory>> {
        let me = Member { node, incarnation, addr: addr(node) };
        let setup = ReplicaConfig { me, ..self.setup.clone() };
        Node::new(self.protocol, setup, Shimmed::new(Memory::new(self.memory_max)))
    }

    fn at(&self, node: u16) -> &Node<Shimmed<Memory>> {
        &self.nodes[usize::from(node) - 1]
    }

    fn now(&self, node: u16) -> Now {
        let ahead = self.ahead_ms[usize::from(node) - 1];
        let unix_ms = (START_MS + self.now_ms).saturating_add_signed(ahead);
        Now { instant: Instant(self.now_ms * MS), unix_ms }
    }

    /// The next epoch, with the present members and who joins.
    fn configure(&mut self) {
        self.epoch += 1;
        let member = |node: &u16| *self.at(*node).member();
        let config = Config {
            group: GroupId(0),
            epoch: self.epoch,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: self.protocol.into(),
            program: Program::of(self.protocol, true),
            members: self.members.iter().map(member).collect(),
            joining: self.joining.iter().map(member).collect(),
        };
        let mut bytes = Vec::new();
        Membership::Configure(config.into()).emit(&mut bytes);
        for node in self.members.clone().into_iter().chain(self.joining.clone()) {
            self.hand(node, &bytes);
        }
    }

    /// VR: the founders, to a new life of one of them.
    fn tell_founders(&mut self, node: u16) {
        let member = |n: &u16| Member { node: *n, incarnation: 10, addr: addr(*n) };
        let config = Config {
            group: GroupId(0),
            epoch: self.epoch,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: self.protocol.into(),
            program: Program::of(self.protocol, true),
            members: self.members.iter().map(member).collect(),
            joining: Vec::new(),
        };
        let mut bytes = Vec::new();
        Membership::Configure(config.into()).emit(&mut bytes);
        self.hand(node, &bytes);
    }

    fn hand(&mut self, node: u16, bytes: &[u8]) {
        if self.dead.contains(&node) {
            return;
        }
        let (now, mut sent) = (self.now(node), Vec::new());
        let to = &mut self.nodes[usize::from(node) - 1];
        to.handle(now, Addr::default(), &mut bytes.to_vec(), &mut sent);
        to.flush(now, &mut sent);
        self.wire.extend(sent);
    }

    /// Who orders writes.
    fn orders(&self) -> u16 {
        let live = self.members.iter().copied().filter(|n| !self.dead.contains(n));
        match self.protocol {
            Protocol::Raft => {
                let leads = |n: &u16| matches!(self.at(*n), Node::Vr(vr) if vr.leads());
                let term = |n: &u16| self.at(*n).status(self.now(*n)).epoch;
                live.clone().filter(leads).max_by_key(term).or(live.min()).unwrap()
            }
            Protocol::Vr | Protocol::NoPaxos => {
                let view = |n: &u16| self.at(*n).status(self.now(*n)).epoch.0;
                let view = live.map(|n| view(&n)).max().unwrap();
                (view.max(1) as usize - 1) as u16 % self.nodes.len() as u16 + 1
            }
            _ => live.min().unwrap(),
        }
    }

    /// What comes to the switch: writes get numbers.
    fn switch(&mut self, mut bytes: Vec<u8>) {
        if kind(&bytes) != Ok(Kind::Store) {
            if let Ok(Stamp { memory_full, disk_full, now_ms, .. }) = Stamp::parse(&bytes) {
                self.stamp_full = (memory_full, disk_full);
                if now_ms > self.stamp_clock.read(self.now_ms) || self.stamp_clock.is_unset() {
                    self.stamp_clock.note(now_ms, self.now_ms);
                }
            }
            return;
        }
        let mut packet = PacketMut::parse(&mut bytes).unwrap();
        let repr = packet.view().repr();
        match repr.op {
            Op::WriteReply | Op::ReadReply => {
                let text = match repr.status {
                    Status::Ok => String::from_utf8_lossy(packet.view().body()).into_owned(),
                    refused => format!("{refused:?}"),
                };
                self.replies.push((repr.request.0, text));
            }
            Op::Push => self.pushed += 1,
            Op::Write => {
                if repr.flags.has(Flags::INTERNAL) {
                    self.internal += 1;
                    if self.lost_objects.contains(&repr.obj_id.0) {
                        return;
                    }
                }
                self.counter += 1;
                packet.set_seq(Seq::new(SwitchId(1), self.counter));
                if self.protocol == Protocol::NoPaxos {
                    if self.stamp_clock.is_unset() {
                        return;
                    }
                    packet.set_time_ms(self.stamp_clock.read(self.now_ms));
                    packet.set_full(self.stamp_full.0, self.stamp_full.1);
                    for node in self.members.clone() {
                        self.hand(node, &bytes);
                    }
                } else {
                    self.hand(self.orders(), &bytes);
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, flags: Flags, key: &[u8], args: &[&[u8]]) -> u64 {
        self.request += 1;
        let mut command = CommandBuf::new();
        let body: &[u8] = match args {
            [] => &[],
            _ => command.encode(1, args.iter().copied()),
        };
        let repr = Repr {
            flags,
            obj_id: hash::object_id(key),
            session: SESSION,
            request: RequestNumber(self.request),
            client: CLIENT,
            ..Repr::new(Op::Write)
        };
        let mut bytes = Vec::new();
        repr.emit(body, &mut bytes);
        self.wire.push_back((SWITCH, bytes));
        self.request
    }

    /// A write, and its reply.
    fn write(&mut self, line: &str) -> String {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let request = self.send(self.flags, args[1], &args);
        for _ in 0..20 {
            self.pass(1);
            if let Some(at) = self.replies.iter().position(|(r, _)| *r == request) {
                return self.replies.remove(at).1;
            }
        }
        panic!("{:?}: {line} was not answered", self.protocol)
    }

    /// Lets time pass, a millisecond at a time.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.deliver();
            self.now_ms += 1;
            if let Some((to, piece)) = self.pieces.pop_front() {
                self.hand(to.port, &piece);
            }
            for node in 1..=self.nodes.len() as u16 {
                if self.dead.contains(&node) {
                    continue;
                }
                let (now, mut sent) = (self.now(node), Vec::new());
                let own = &mut self.nodes[usize::from(node) - 1];
                if own.deadline().at <= now.instant {
                    own.tick(now, &mut sent);
                }
                own.flush(now, &mut sent);
                self.wire.extend(sent);
            }
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some((to, bytes)) = self.wire.pop_front() {
            let is_piece = matches!(CopyMessage::parse(&bytes), Ok(CopyMessage::Piece { .. }));
            if is_piece {
                self.pieces.push_back((to, bytes));
            } else if to == SWITCH {
                self.switch(bytes);
            } else if usize::from(to.port) <= self.nodes.len() {
                self.hand(to.port, &bytes);
            }
        }
    }

    fn assert_alike(&self) {
        let digests = self.members.iter().map(|n| self.at(*n).engine().digest());
        let digests: Vec<_> = digests.collect();
        assert!(digests.windows(2).all(|d| d[0] == d[1]), "{:?}: {digests:?}", self.protocol);
    }
}

mod memory {
    use super::*;

    /// A group that is full, of which a replica then copies the state while clients go on.
    fn copied_under_a_limit(protocol: Protocol, guards: Guards) -> Group {
        let mut g = Group::new(protocol, 3, 20_000, guards);
        let value = "v".repeat(100);
        let mut refused = 0;
        for n in 0..300 {
            refused += usize::from(g.write(&format!("SET k{n} {value}")).starts_with("-OOM"));
        }
        g.pass(300);
        assert!(refused > 100, "{protocol:?}: {refused} of 300 refused");
        // Replica 3 dies and comes back empty.
        g.dead.push(3);
        g.members = vec![1, 2];
        if !protocol.is_quorum() {
            g.configure();
        }
        g.pass(3 * LEASE_MS);
        for n in 300..340 {
            assert!(g.write(&format!("SET k{n} {value}")).starts_with("-OOM"));
        }
        g.nodes[2] = g.node(3, 20);
        g.ahead_ms[2] = 0;
        g.dead.clear();
        if protocol.is_quorum() {
            g.members = vec![1, 2, 3];
            let own = g.at(3).member().incarnation;
            assert_eq!(own, 20);
            g.tell_founders(3);
        } else {
            g.joining = vec![3];
            g.configure();
        }
        for n in 0..200 {
            // The members refuse these; whoever holds half of the data has room for them.
            g.write(&format!("APPEND k{} {value}", n % 150));
        }
        g.pass(3_000);
        if !protocol.is_quorum() {
            assert_eq!(g.at(3).status(g.now(3)).copied_percent, Some(100), "{protocol:?}");
            g.joining.clear();
            g.members = vec![1, 2, 3];
            g.configure();
            g.pass(3 * LEASE_MS);
        }
        g
    }

    /// A replica that copies executes nothing that the members refused.
    #[test]
    fn bug_15_1_copying_replica_refuses_what_members_refused() {
        for protocol in ALL {
            let g = copied_under_a_limit(protocol, Guards::ALL);
            g.assert_alike();
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn bug_15_1_without_the_record_of_it_a_copy_differs() {
        let guards = Guards::without(concord_core::Guard::RecordedMemory);
        for protocol in ALL {
            let g = copied_under_a_limit(protocol, guards);
            let [one, three] = [1, 3].map(|node| g.at(node).engine().digest());
            assert_ne!(one, three, "{protocol:?}");
        }
    }

    #[test]
    fn bug_15_1_what_makes_room_is_done_and_then_there_is_room() {
        for protocol in ALL {
            let mut g = Group::new(protocol, 3, 2_000, Guards::ALL);
            let value = "v".repeat(1_000);
            let replies: Vec<String> =
                (0..6).map(|n| g.write(&format!("SET k{n} {value}"))).collect();
            assert_eq!(
                (&*replies[0], replies[5].starts_with("-OOM")),
                ("+OK\r\n", true),
                "{protocol:?}"
            );
            for n in 0..6 {
                g.write(&format!("DEL k{n}"));
            }
            g.pass(200);
            assert_eq!(g.write("SET l v"), "+OK\r\n", "{protocol:?}");
            g.pass(60);
            g.assert_alike();
        }
    }
}

mod disk {
    use super::*;

    /// The disks of these nodes have no room: what a write is told, again when it is asked for once
    /// more later, and what the next one is told then.
    fn refused_and_asked_again(protocol: Protocol, short: &[u16]) -> [String; 3] {
        asked_again(protocol, short, Guards::ALL)
    }

    fn asked_again(protocol: Protocol, short: &[u16], guards: Guards) -> [String; 3] {
        let mut g = Group::new(protocol, 3, 0, guards);
        assert_eq!(g.write("INCR k"), ":1\r\n");
        short.iter().for_each(|node| g.nodes[usize::from(*node) - 1].disk_room(true));
        g.pass(100);
        let (size, long) = (g.at(1).log().bytes(), "v".repeat(1_200));
        let refused = g.write(&format!("SET k {long}"));
        let takes_room = g.at(1).log().bytes() >= size + 1_000;
        assert!(!(takes_room && refused.starts_with('-')), "{protocol:?}: it takes room");
        short.iter().for_each(|node| g.nodes[usize::from(*node) - 1].disk_room(false));
        g.pass(100);
        g.request -= 1;
        let again = g.write(&format!("SET k {long}"));
        let next = g.write("INCR k");
        g.pass(60);
        g.assert_alike();
        [refused, again, next]
    }

    /// Where a disk has no room writes are refused by all alike and for good.
    #[test]
    fn t14_full_disk_refuses_alike_at_all() {
        for protocol in ALL {
            let short: &[&[u16]] = match protocol.is_quorum() {
                true => &[&[2, 3], &[1], &[1, 2, 3]],
                false => &[&[1], &[2], &[3]],
            };
            for short in short {
                let [refused, again, next] = refused_and_asked_again(protocol, short);
                assert!(refused.starts_with("-DISKFULL"), "{protocol:?} {short:?}: {refused}");
                assert_eq!((&again, &*next), (&refused, ":2\r\n"), "{protocol:?} {short:?}");
            }
        }
    }

    /// Without the guard a write is taken that no disk has room for.
    #[cfg(feature = "mutants")]
    #[test]
    fn t14_without_the_guard_a_full_disk_accepts_a_write() {
        let guards = Guards::without(concord_core::Guard::DiskRoom);
        for protocol in ALL {
            let [taken, ..] = asked_again(protocol, &[1, 2, 3], guards);
            assert_eq!(taken, "+OK\r\n", "{protocol:?}");
        }
    }

    #[test]
    fn a_majority_that_has_room_goes_on() {
        for protocol in [Protocol::Vr, Protocol::NoPaxos] {
            let [done, again, _] = refused_and_asked_again(protocol, &[3]);
            assert_eq!((&*done, &*again), ("+OK\r\n", "+OK\r\n"), "{protocol:?}");
        }
    }
}

mod expiry {
    use super::*;

    /// How many keys replica 1 holds after so many ms.
    fn left_after(g: &mut Group, ms: u64) -> u64 {
        g.pass(ms);
        g.at(1).engine().keys()
    }

    /// A key that fills a packet expires and stops no other.
    #[test]
    fn bug_15_2_packet_sized_key_expires() {
        for protocol in ALL {
            let mut g = Group::new(protocol, 3, 0, Guards::ALL);
            for n in 0..70 {
                // The SET just fits a packet.
                let long = "x".repeat(BODY_BYTES_MAX - 36);
                g.write(&format!("SET {long}{n:02} v PX 100"));
            }
            g.write("SET short v PX 150");
            assert_eq!(left_after(&mut g, 10), 71, "{protocol:?}");
            assert_eq!(left_after(&mut g, 400), 0, "{protocol:?}");
            g.assert_alike();
        }
    }

    /// 100 keys whose deletions the switch loses, and one that is due after them.
    fn with_stuck_keys(guards: Guards) -> Group {
        let mut g = Group::new(Protocol::Chain, 3, 0, guards);
        for n in 0..100 {
            g.lost_objects.push(hash::object_id(format!("k{n}").as_bytes()).0);
            g.write(&format!("SET k{n} v PX 100"));
        }
        g.write("SET other v PX 100");
        g.pass(2_000);
        g
    }

    /// Keys whose deletion is lost again and again stop no other.
    #[test]
    fn bug_15_2_lost_deletions_stop_no_other_key() {
        let mut g = with_stuck_keys(Guards::ALL);
        assert_eq!(g.at(1).engine().keys(), 100);
        // Nor are they sent in each iteration of the event loop.
        let before = g.internal;
        g.pass(500);
        let sent = g.internal - before;
        assert!((30..2_000).contains(&sent), "{sent} expiries sent in half a second");
        g.lost_objects.clear();
        assert_eq!(left_after(&mut g, 500), 0);
        g.assert_alike();
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn bug_15_2_without_the_skip_they_do() {
        let g = with_stuck_keys(Guards::without(concord_core::Guard::ExpirySkip));
        assert_eq!(g.at(1).engine().keys(), 101);
    }

    #[test]
    fn bug_15_3_expiry_goes_on_as_commits_come_in() {
        for protocol in ALL {
            let mut g = Group::new(protocol, 3, 0, Guards::ALL);
            let at = START_MS + g.now_ms + 12_000;
            for n in 0..3_000 {
                g.write(&format!("SET k{n} v PXAT {at}"));
            }
            let (now, due) = (START_MS + g.now_ms, at);
            assert!(now < due, "{protocol:?}: {} ms late", now - due);
            assert_eq!(left_after(&mut g, due - now - 10), 3_000, "{protocol:?}");
            // 64 in 5 ms would be 1,280 by now.
            assert_eq!(left_after(&mut g, 110), 0, "{protocol:?}");
            g.pass(100);
            g.assert_alike();
        }
    }
}

mod clocks {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    /// Who orders writes dies, and the others go on; each has a wall clock that differs by a day.
    fn replaced(protocol: Protocol, guards: Guards) -> Group {
        let mut g = Group::with_clocks(protocol, vec![0, DAY_MS, -DAY_MS], 0, guards);
        g.write("SET warm v PX 100000");
        g.pass(50);
        g
    }

    impl Group {
        fn kill_leader(&mut self) {
            let leader = self.orders();
            self.dead.push(leader);
            self.members.retain(|node| *node != leader);
            if !self.protocol.is_quorum() {
                self.configure();
            }
            self.pass(3 * LEASE_MS);
        }

        /// How many ms until the last member has so few keys.
        fn until_keys(&mut self, count: u64, at_most_ms: u64) -> u64 {
            let last = *self.members.last().unwrap();
            for ms in 0..at_most_ms {
                if self.at(last).engine().keys() <= count {
                    return ms;
                }
                self.pass(1);
            }
            at_most_ms
        }
    }

    /// A client whose command found nothing in an object waits for it: it is told when the object
    /// goes because its time has come (XREADGROUP BLOCK ends then), whoever the protocol lets
    /// delete it.
    #[test]
    fn bug_23_6_who_waits_for_a_key_hears_that_it_expired() {
        for protocol in ALL {
            let mut g = Group::new(protocol, 3, 0, Guards::ALL);
            g.write("SET k v PX 100");
            // A null reply, as that of a command that waits.
            g.flags = Flags::WAITS;
            assert_eq!(g.write("SET k w NX"), "$-1\r\n", "{protocol:?}");
            g.flags = Flags(0);
            let told = g.pushed;
            g.pass(1_000);
            assert_eq!(g.at(1).engine().keys(), 0, "{protocol:?}");
            assert_eq!(g.pushed, told + 1, "{protocol:?}");
        }
    }

    /// A key lives its time whatever the clock of who orders says.
    #[test]
    fn bug_15_10_ttl_is_independent_of_the_orderers_clock() {
        for protocol in ALL {
            let mut g = replaced(protocol, Guards::ALL);
            g.write("SET k v PX 2000");
            let set_at = g.now_ms;
            g.kill_leader();
            // Two more have it, under one whose clock is a day ahead, or behind, of the first
            // one's.
            g.until_keys(1, 4_000);
            let lived = g.now_ms - set_at;
            assert!((1_960..2_500).contains(&lived), "{protocol:?}: PX 2000 lived {lived} ms");
            // And the lock that is taken now does not stick.
            g.write("SET k v PX 100");
            let lived = g.until_keys(1, 1_000);
            assert!((60..200).contains(&lived), "{protocol:?}: PX 100 lived {lived} ms");
            if protocol.is_quorum() {
                continue;
            }
            g.write("SET k v PX 2000");
            let set_at = g.now_ms;
            g.kill_leader();
            g.until_keys(1, 4_000);
            let lived = g.now_ms - set_at;
            assert!((1_960..2_500).contains(&lived), "{protocol:?}: PX 2000 lived {lived} ms");
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn bug_15_10_without_the_log_s_clock_it_does_not() {
        for protocol in [Protocol::Chain, Protocol::Vr] {
            let mut g = replaced(protocol, Guards::without(concord_core::Guard::LogClock));
            g.write("SET k v PX 2000");
            let set_at = g.now_ms;
            g.kill_leader();
            g.until_keys(1, 4_000);
            let lived = g.now_ms - set_at;
            assert!(!(1_960..2_500).contains(&lived), "{protocol:?}: PX 2000 lived {lived} ms");
        }
    }

    /// Where no key has a time to live the log s time is the clock of who orders.
    #[test]
    fn bug_15_10_without_ttls_log_time_is_the_orderers_clock() {
        for protocol in [Protocol::PrimaryBackup, Protocol::Chain, Protocol::Craq, Protocol::Vr] {
            let mut g = Group::with_clocks(protocol, vec![DAY_MS; 3], 0, Guards::ALL);
            g.write("SET a v");
            // The wall clocks were wrong, and are mended.
            g.ahead_ms = vec![0; 3];
            g.pass(20);
            let at = START_MS + g.now_ms + 500;
            g.write(&format!("SET k v PXAT {at}"));
            g.pass(20);
            let lived = g.until_keys(1, 2_000);
            assert!((440..600).contains(&lived), "{protocol:?}: lived {lived} ms");
        }
    }

    /// The log tells its time while keys have times to live.
    #[test]
    fn bug_15_10_log_tells_its_time_while_keys_have_ttls() {
        for protocol in ALL {
            let mut g = Group::new(protocol, 3, 0, Guards::ALL);
            g.write("SET k v");
            g.pass(3_000);
            assert_eq!(g.internal, 0, "{protocol:?}");
            g.write("SET k v PX 600000");
            g.pass(10_000);
            assert!((8..=12).contains(&g.internal), "{protocol:?}: {}", g.internal);
            g.assert_alike();
        }
    }
}

/// Requests of several objects.
mod several_objects {
    use super::*;

    fn further(keys: &[&[u8]]) -> FurtherIds {
        let ids: Vec<ObjectId> = keys.iter().map(|key| hash::object_id(key)).collect();
        FurtherIds::new(&ids).unwrap()
    }

    /// The keys of a command on several, which is not encoded with one of them.
    fn keys<'a>(args: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let step = if args[0].starts_with(b"MSET") { 2 } else { 1 };
        args[1..].iter().step_by(step).copied().collect()
    }

    fn emit(number: u64, op: Op, line: &str) -> Vec<u8> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let keys = keys(&args);
        let repr = Repr {
            obj_id: hash::object_id(keys[0]),
            further: further(&keys[1..]),
            session: SESSION,
            request: RequestNumber(number),
            client: CLIENT,
            ..Repr::new(op)
        };
        let (mut command, mut bytes) = (CommandBuf::new(), Vec::new());
        repr.emit(command.encode(0, args), &mut bytes);
        bytes
    }

    /// A request, sent to `to`; what came back.
    fn answer(g: &mut Group, to: Addr, op: Op, line: &str) -> String {
        g.request += 1;
        let number = g.request | if op == Op::Read { READ_BIT } else { 0 };
        g.wire.push_back((to, emit(number, op, line)));
        g.pass(20);
        let reply = g.replies.iter().find(|(request, _)| *request == number);
        reply.map_or_else(|| "no reply".into(), |(_, text)| text.clone())
    }

    /// A write of several objects is executed as a whole by all and read as a whole.
    #[test]
    fn several_objects_are_written_and_read_together() {
        for protocol in ALL {
            let mut g = Group::new(protocol, 3, 0, Guards::ALL);
            assert_eq!(
                answer(&mut g, SWITCH, Op::Write, "MSET a 1 b 2 c 3"),
                "+OK\r\n",
                "{protocol:?}"
            );
            assert_eq!(answer(&mut g, SWITCH, Op::Write, "MSETNX d 4 a 5"), ":0\r\n");
            assert_eq!(answer(&mut g, SWITCH, Op::Write, "DEL b nosuch"), ":1\r\n");
            let reader = match protocol {
                Protocol::Chain | Protocol::Craq => 3,
                Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => {
                    g.orders()
                }
            };
            let read = answer(&mut g, addr(reader), Op::Read, "MGET a b c d");
            assert_eq!(read, "*4\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n$-1\r\n", "{protocol:?}");
            g.pass(60);
            g.assert_alike();
        }
    }

    /// A replica copies the state while writes of several objects go on, of which some are here and
    /// some are not; how often its copy began anew for that.
    fn copied_among_writes(protocol: Protocol, guards: Guards, entangled: bool) -> (Group, u64) {
        let mut g = Group::new(protocol, 3, 0, guards);
        let value = "v".repeat(200);
        for n in 0..400 {
            g.write(&format!("SET k{n} {value}"));
        }
        g.dead.push(3);
        g.members = vec![1, 2];
        if !protocol.is_quorum() {
            g.configure();
        }
        g.pass(3 * LEASE_MS);
        // What the leader of a quorum has truncated is copied.
        for n in 0..40 {
            g.write(&format!("SET k{n} {value}"));
        }
        g.nodes[2] = g.node(3, 20);
        g.dead.clear();
        if protocol.is_quorum() {
            g.members = vec![1, 2, 3];
            g.tell_founders(3);
        } else {
            g.joining = vec![3];
            g.configure();
        }
        for n in 0..60 {
            let [a, b, c] = [n % 400, (n * 7 + 20) % 400, (n * 11 + 40) % 400];
            let mut lines =
                vec![format!("MSET k{a} {n} k{b} {n} new{n} {n}"), format!("DEL k{c} k{b} new{n}")];
            if entangled && n % 6 == 5 {
                lines.push(format!("MSETNX x{n} 1 y{n} 2 z{n} 3 u{n} 4 v{n} 5"));
                // Of keys that are there, of which some were copied; twice of the same.
                lines.push(format!("RENAME k{a} k{c}"));
                lines.push(format!("COPY k{c} k{b} REPLACE"));
                lines.push(format!("MSET k{a} again{n}"));
                lines.push(format!("RENAMENX k{b} k{a}"));
            }
            for line in lines {
                g.request += 1;
                g.wire.push_back((SWITCH, emit(g.request, Op::Write, &line)));
                g.pass(1);
            }
        }
        g.pass(3_000);
        let anew = g.at(3).counters().copies_entangled;
        if !protocol.is_quorum() {
            assert_eq!(g.at(3).status(g.now(3)).copied_percent, Some(100), "{protocol:?}");
            g.joining.clear();
            g.members = vec![1, 2, 3];
            g.configure();
            g.pass(3 * LEASE_MS);
        }
        (g, anew)
    }

    /// A replica that copies executes what concerns the objects that are here.
    #[test]
    fn copying_replica_executes_for_present_objects() {
        for protocol in ALL {
            let (g, anew) = copied_among_writes(protocol, Guards::ALL, false);
            assert_eq!(anew, 0, "{protocol:?}");
            g.assert_alike();
        }
    }

    /// Beside a trickle of writes whose effect on one key hangs on others no copy ever ended: it
    /// began anew at each.
    #[test]
    fn bug_22_4_a_copy_survives_entangled_writes() {
        for protocol in ALL {
            let (g, anew) = copied_among_writes(protocol, Guards::ALL, true);
            assert_eq!(anew, 0, "{protocol:?}");
            let early: u64 = (1..=2).map(|n| g.at(n).counters().keys_copied_early).sum();
            assert!(early > 0, "{protocol:?}: no such write came while the state was copied");
            g.assert_alike();
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn several_copied_without_it_a_copy_differs() {
        let guards = Guards::without(concord_core::Guard::SeveralCopied);
        for protocol in ALL {
            let (g, _) = copied_among_writes(protocol, guards, false);
            let [one, three] = [1, 3].map(|node| g.at(node).engine().digest());
            assert_ne!(one, three, "{protocol:?}");
        }
    }
}
