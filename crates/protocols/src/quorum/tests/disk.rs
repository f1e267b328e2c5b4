//! State that is on disk before anybody hears of it, and starts from such a disk (trap T7).

use alloc::collections::BTreeMap;

use concord_log::{Identity, Marks, Recovery, Writer, entries};

use super::*;
use crate::journal::DiskState;
use crate::quorum::copy::copying::Copying;

const STORAGE: u64 = 70;

/// The disk of a replica: all that was synced.
#[derive(Clone)]
struct Disk {
    node: u16,
    segment: u64,
    files: BTreeMap<u64, Vec<u8>>,
    writer: Writer,
    /// It is synced now and then.
    acks_early: bool,
}

impl Disk {
    fn new(node: u16) -> Disk {
        let writer = Writer::new(Identity { storage: STORAGE, node, engine: None }, 1, 1);
        Disk { node, segment: 0, files: BTreeMap::new(), writer, acks_early: false }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.files.entry(self.segment).or_default().extend_from_slice(bytes);
    }

    /// A process starts on it.
    fn start(&mut self, now: Now, node: &mut Node) {
        let mut recovery = Recovery::new(STORAGE);
        for (number, bytes) in &self.files {
            recovery.segment(*number, bytes);
        }
        let found = recovery.finish().unwrap();
        for (number, bytes) in &self.files {
            for (_, entry) in entries(STORAGE, *number, bytes, 0) {
                node.restore(now, &entry).unwrap();
            }
        }
        let identity = Identity { storage: STORAGE, node: self.node, engine: None };
        self.writer = Writer::new(identity, found.next_segment, found.next_group);
        self.segment = found.next_segment;
        let mut bytes = vec![];
        self.writer.begin_segment(&mut bytes);
        let before_ns = found.marks.lease_ns;
        let (owed, acks_early) = (found.marks.owes, self.acks_early);
        let (run, owes) = (found.marks.run + 1, owed || acks_early);
        let marks = Marks { run, owes, lease_ns: LEASE_NS, ..found.marks };
        let mut batch = concord_log::Batch::default();
        batch.marks(&marks);
        self.writer.seal(batch.bytes());
        bytes.extend_from_slice(batch.bytes());
        self.append(&bytes);
        let (storage, is_intact, snapshot_every_bytes) = (STORAGE, true, 1 << 20);
        let kept = DiskState { storage, is_intact, marks, snapshot_every_bytes, owed, acks_early };
        node.keep(now, kept, (0, before_ns)).unwrap();
    }
}

/// A group whose replicas have disks.
struct OnDisks {
    g: Group,
    disks: Vec<Disk>,
}

impl OnDisks {
    /// Three founders; node 0 leads, and everything is synced.
    fn founded(guards: Guards) -> OnDisks {
        OnDisks::begun(guards, false)
    }

    fn begun(guards: Guards, acks_early: bool) -> OnDisks {
        OnDisks::begun_as(Protocol::Vr, guards, acks_early)
    }

    fn begun_as(protocol: Protocol, guards: Guards, acks_early: bool) -> OnDisks {
        let g = Group::unconfigured(protocol, 3, guards);
        let mut own = OnDisks { g, disks: (1..=3).map(Disk::new).collect() };
        own.disks.iter_mut().for_each(|disk| disk.acks_early = acks_early);
        for index in 0..3 {
            own.disks[index].start(own.g.now, &mut own.g.nodes[index]);
        }
        own.g.configure(1);
        own.pass(5);
        assert_eq!(own.g.leader(), Some(0));
        let hello = Repr { flags: Flags::REGISTER, ..own.g.request(b"") };
        let to: &[usize] = if protocol.is_sequenced() { &[0, 1, 2] } else { &[0] };
        own.g.cast(to, hello, &[]);
        own.pass(2);
        own.g.to_client.clear();
        own
    }

    /// A replica's disk has all that has gathered.
    fn sync(&mut self, index: usize) {
        let (g, disk) = (&mut self.g, &mut self.disks[index]);
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        while let Some(persist) = g.nodes[index].poll_persist() {
            let mut batch = persist.what;
            disk.writer.seal(batch.bytes());
            let bytes = batch.bytes().to_vec();
            disk.append(&bytes);
            g.nodes[index].persisted(g.now, persist.number, &mut sent);
            g.nodes[index].flush(g.now, &mut sent);
        }
        g.route(index, sent);
    }

    fn sync_all(&mut self) {
        (0..3).for_each(|index| self.sync(index));
        self.g.run();
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.g.pass(1);
            self.sync_all();
        }
    }

    /// The power of a replica goes, and comes back.
    fn restart(&mut self, index: usize, incarnation: u64) {
        let guards = self.g.nodes[index].setup.guards;
        self.g.nodes[index] = node(index, incarnation, guards);
        self.disks[index].start(self.g.now, &mut self.g.nodes[index]);
        self.g.packets.clear();
    }

    /// The power of all goes, and comes back: what was said before is lost.
    fn restart_all(&mut self, incarnation: u64) {
        (0..3).for_each(|index| self.restart(index, incarnation + index as u64));
    }

    fn values(&mut self, keys: &[&str]) -> Vec<String> {
        let leader = self.g.leader().unwrap();
        keys.iter().map(|key| self.g.get(leader, key, None).unwrap().2).collect()
    }
}

/// How many answers a write got before any disk had it, once the first of these had it, and so on.
fn answers(guards: Guards, synced: &[usize]) -> Vec<usize> {
    let mut own = OnDisks::founded(guards);
    own.g.set(0, "k", "v");
    own.g.run();
    let mut answers = vec![own.g.to_client.len()];
    for index in synced {
        own.sync(*index);
        own.g.run();
        answers.push(own.g.to_client.len());
    }
    answers
}

#[test]
fn t7_a_write_is_answered_once_it_is_on_the_disks_of_a_quorum() {
    assert_eq!(answers(Guards::ALL, &[0, 2]), [0, 0, 1]);
    assert_eq!(answers(Guards::ALL, &[1, 2]), [0, 0, 1]);
}

#[cfg(feature = "mutants")]
#[test]
fn t7_without_the_disks_it_is_answered_earlier() {
    assert_eq!(answers(Guards::without(Guard::DurableCommit), &[1]), [0, 1]);
    // Two followers are a quorum.
    assert_eq!(answers(Guards::without(Guard::DurableAck), &[]), [1]);
}

/// What a replica says when it leaves its view, before and after its disk has that.
fn said(guards: Guards) -> [usize; 2] {
    let mut own = OnDisks::founded(guards);
    let (now, next) = (own.g.now, ViewNumber(own.g.nodes[1].view.0 + 1));
    let mut out = vec![];
    own.g.nodes[1].enter_view(now, next, &mut out);
    own.g.nodes[1].held = out;
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    own.g.nodes[1].tick(now, &mut sent);
    let before = sent.len();
    own.g.route(1, sent);
    own.sync(1);
    [before, own.g.packets.len()]
}

/// A replica says nothing of a view before that is on its disk.
#[test]
fn t7_view_is_on_disk_before_it_is_said() {
    let [before, after] = said(Guards::ALL);
    assert!(before == 0 && after >= 2, "{before} {after}");
}

#[cfg(feature = "mutants")]
#[test]
fn t7_without_that_it_says_so_at_once() {
    assert!(said(Guards::without(Guard::DurableView))[0] > 0);
}

/// When the power of all goes nothing is lost that was acknowledged.
#[test]
fn t7_power_cut_of_all_loses_nothing_acknowledged() {
    let mut own = OnDisks::founded(Guards::ALL);
    own.g.set(0, "a", "1");
    own.pass(3);
    own.g.set(0, "b", "2");
    own.pass(3);
    assert_eq!(own.g.to_client.len(), 2);
    own.restart_all(500);
    assert!(own.g.nodes.iter().all(|n| n.executed > Position(0) && n.stage == Stage::Recovering));
    own.pass(6 * LEASE_NS / MS);
    assert_eq!(own.values(&["a", "b"]), ["1", "2"]);
    let leader = own.g.leader().unwrap();
    own.g.to_client.clear();
    own.g.set(leader, "a", "3");
    own.pass(3);
    assert_eq!(own.g.to_client.len(), 1);
    // And again.
    own.restart_all(600);
    own.pass(6 * LEASE_NS / MS);
    assert_eq!(own.values(&["a", "b"]), ["3", "2"]);
}

/// A replica that starts again lacks the records that it missed and no view changes.
#[test]
fn restart_lacks_missed_records_without_view_change() {
    let mut own = OnDisks::founded(Guards::ALL);
    own.g.set(0, "a", "1");
    own.pass(5);
    let view = own.g.nodes[0].view;
    own.g.isolate(2);
    own.g.set(0, "b", "2");
    own.pass(5);
    own.g.cuts.clear();
    own.restart(2, 700);
    own.pass(3 * LEASE_NS / MS);
    let third = &own.g.nodes[2];
    assert_eq!((third.view, third.stage, third.vr_count.recovered), (view, Stage::Normal, 1));
    assert_eq!((third.executed, third.vr_count.records_transferred), (own.g.nodes[0].executed, 1));
    assert_eq!(third.count.copies_begun, 0);
}

/// When a view has begun after the power of all went, in ms.
fn begun_at(guards: Guards) -> u64 {
    let mut own = OnDisks::founded(guards);
    own.restart_all(500);
    // As if others had long waited.
    (0..3).for_each(|index| own.g.leave_at_once(index));
    let begun = (1..1_000).find(|_| {
        own.pass(1);
        own.g.leader().is_some()
    });
    begun.unwrap()
}

impl Group {
    /// A message of a later view arrives, as of another replica.
    fn leave_at_once(&mut self, index: usize) {
        let from = (index + 1) % 3;
        let other = &self.nodes[from];
        let message = other.message(ViewNumber(other.view.0 + 1), VrBody::StartViewChange);
        let mut bytes = vec![];
        message.emit(&mut bytes);
        self.deliver(index, &bytes);
    }
}

#[test]
fn t2_no_view_begins_before_the_leases_of_before_are_over() {
    let begun = begun_at(Guards::ALL);
    assert!(begun >= LEASE_NS / MS, "{begun}");
}

#[test]
fn what_a_view_change_gave_up_is_not_there_after_a_start() {
    let mut own = OnDisks::founded(Guards::ALL);
    own.g.isolate(0);
    own.g.set(0, "lost", "1");
    own.pass(4 * LEASE_NS / MS);
    let leader = own.g.leader().unwrap();
    assert_ne!(leader, 0);
    own.g.set(leader, "kept", "2");
    own.pass(5);
    own.g.cuts.clear();
    own.pass(4 * LEASE_NS / MS);
    let log = own.g.nodes[0].ordered.log.end();
    own.restart(0, 800);
    assert_eq!(own.g.nodes[0].ordered.log.end(), log);
    own.restart_all(900);
    own.pass(6 * LEASE_NS / MS);
    assert_eq!(own.values(&["lost", "kept"]), ["nil", "2"]);
}

/// Raft: whether node 2, which gave its log up for a copy that is not whole, recovers when it
/// starts again.
fn recovers_what_it_gave_up(guards: Guards) -> bool {
    let mut own = OnDisks::begun_as(Protocol::Raft, guards, false);
    own.g.set(0, "k", "v");
    own.pass(5);
    let node = &mut own.g.nodes[2];
    let floor = node.last_record();
    assert!(floor.position > 0);
    node.copying = Some(Copying { begun: true, floor, ..Copying::begin(1, LogEnd::default()) });
    node.promise();
    own.sync(2);
    own.restart(2, 700);
    own.g.nodes[2].recovery.is_from_nothing()
}

/// In the log that it gave up may have been what it helped to commit.
#[test]
fn raft_log_that_was_given_up_is_recovered_after_a_start() {
    assert!(recovers_what_it_gave_up(Guards::ALL));
    #[cfg(feature = "mutants")]
    assert!(!recovers_what_it_gave_up(Guards::without(Guard::CopyFloor)));
}

/// Yesterday's directory is put back at node 2: what was acknowledged since is not in it.
#[test]
fn t4_an_older_directory_is_one_that_lost_what_was_promised() {
    let mut own = OnDisks::founded(Guards::ALL);
    own.pass(5);
    let old = own.disks[2].clone();
    own.restart(2, 700);
    own.pass(3 * LEASE_NS / MS);
    own.g.cut(0, 1);
    own.g.set(0, "k", "v");
    own.pass(5);
    assert_eq!(own.g.to_client.len(), 1, "nodes 0 and 2 have it");
    own.disks[2] = old;
    own.restart(2, 650);
    // Node 0 says nothing but what it knew before, and then no more.
    own.g.cuts.clear();
    own.g.cut(1, 2);
    own.pass(2);
    assert!(own.g.nodes[2].recovery.is_from_nothing(), "it has heard of its later life");
    own.g.cuts.clear();
    own.g.isolate(0);
    own.pass(10 * LEASE_NS / MS);
    assert_eq!(own.g.leader().filter(|leader| *leader != 0), None, "it votes for nothing");
    own.g.cuts.clear();
    own.pass(10 * LEASE_NS / MS);
    assert_eq!(own.values(&["k"]), ["v"]);
    assert!(own.g.nodes.iter().all(|n| n.stage == Stage::Normal));
}

/// Disks are synced each second. Nodes 0 and 2 acknowledge a write, and then the power of node 2
/// goes: whether nodes 1 and 2 go on without node 0, and what is there once it is heard again.
fn goes_on_alone(guards: Guards) -> (bool, Vec<String>) {
    let mut own = OnDisks::begun(guards, true);
    own.pass(2_000);
    own.g.cut(0, 1);
    own.g.set(0, "k", "v");
    own.pass(5);
    assert_eq!(own.g.to_client.len(), 1, "it waits for no disk");
    own.restart(2, 700);
    own.g.cuts.clear();
    own.g.isolate(0);
    own.pass(10 * LEASE_NS / MS);
    let goes_on = own.g.leader().is_some_and(|leader| leader != 0);
    own.g.cuts.clear();
    own.pass(10 * LEASE_NS / MS);
    (goes_on, own.values(&["k"]))
}

/// One that may owe records takes part no sooner than one that lost everything.
#[test]
fn replica_owing_records_waits_like_an_empty_one() {
    assert_eq!(goes_on_alone(Guards::ALL), (false, vec![String::from("v")]));
}

#[cfg(feature = "mutants")]
#[test]
fn one_that_takes_part_all_the_same_loses_what_it_acknowledged() {
    assert_eq!(goes_on_alone(Guards::without(Guard::Intact)), (true, vec![String::from("nil")]));
}

/// One that may owe records lacks these alone and owes none once it has them.
#[test]
fn replica_owing_records_recovers_these_alone() {
    let mut own = OnDisks::begun(Guards::ALL, true);
    own.pass(2_000);
    own.g.set(0, "k", "v");
    own.pass(5);
    let end = own.g.nodes[0].ordered.end();
    own.restart(2, 700);
    assert!(own.g.nodes[2].ordered.end() < end && own.g.nodes[2].journal.is_owed());
    own.pass(10 * LEASE_NS / MS);
    let third = &own.g.nodes[2];
    assert_eq!((third.stage, third.ordered.end()), (Stage::Normal, own.g.nodes[0].ordered.end()));
    assert_eq!((third.count.copies_begun, third.journal.is_owed()), (0, false));
    // It ends in order, and owes nothing at its next start.
    own.g.set(0, "k", "w");
    own.pass(5);
    own.g.nodes[2].close();
    own.sync(2);
    own.restart(2, 800);
    assert!(!own.g.nodes[2].journal.is_owed());
    assert_eq!(own.g.nodes[2].ordered.end(), own.g.nodes[0].ordered.end());
}

/// Raft §5.2: a vote is on the disk before it leaves, and is that of the process that starts there
/// next.
#[test]
fn raft_5_2_a_vote_is_on_disk_before_it_leaves_and_is_kept() {
    let mut d = OnDisks::begun_as(Protocol::Raft, Guards::ALL, false);
    d.pass(60);
    // Nobody else hears of it, and what it granted runs out.
    d.g.isolate(2);
    d.g.held_way = Some((2, 1));
    d.pass(LEASE_NS / MS + 10);
    let term = ViewNumber(d.g.nodes[2].view.0 + 1);
    let votes = |held: &[(usize, usize, Vec<u8>)]| {
        let said = held.iter().filter_map(|(_, _, bytes)| VrMessage::parse(bytes).ok());
        said.filter(|m| matches!(m.body, VrBody::Voted { granted: true, .. })).count()
    };
    let asks = |d: &mut OnDisks, from: usize| {
        let last = d.g.nodes[from].last_record();
        let body = VrBody::RequestVote { last, handed: true };
        let mut bytes = vec![];
        d.g.nodes[from].message(term, body).emit(&mut bytes);
        d.g.deliver(2, &bytes);
    };
    // What others granted to the two is known to be over, since both have left.
    for other in [0, 1] {
        let mut bytes = vec![];
        d.g.nodes[other].message(term, VrBody::StartViewChange).emit(&mut bytes);
        d.g.deliver(2, &bytes);
    }
    asks(&mut d, 1);
    assert_eq!((d.g.nodes[2].ballot.voted_for(), votes(&d.g.held)), (Some(1), 0));
    d.sync(2);
    assert_eq!(votes(&d.g.held), 1);
    d.g.held.clear();
    d.restart(2, 902);
    let node = &d.g.nodes[2];
    assert_eq!((node.view, node.ballot.voted_for()), (term, Some(1)));
    d.pass(LEASE_NS / MS + 10);
    d.g.held_way = Some((2, 0));
    asks(&mut d, 0);
    d.sync(2);
    assert_eq!((d.g.nodes[2].ballot.voted_for(), votes(&d.g.held)), (Some(1), 0));
}

/// The power of all goes: they elect one of them, and go on with what was committed.
#[test]
fn t7_a_raft_group_comes_back_from_a_power_cut_of_all() {
    let mut d = OnDisks::begun_as(Protocol::Raft, Guards::ALL, false);
    d.g.set(0, "k", "v");
    d.pass(5);
    let term = d.g.nodes[0].view;
    for index in 0..3 {
        d.restart(index, 900 + index as u64);
    }
    d.pass(900);
    let leader = d.g.leader().unwrap();
    assert!(d.g.nodes[leader].view > term);
    assert_eq!(d.g.get(leader, "k", None).unwrap().2, "v");
}

/// A replica came back with its disk, heard nothing of its term's leader for three leases, and then
/// where the term began: it cut its log there, and gave up what it had acknowledged. The leader
/// died, and a write was lost that a quorum had.
#[test]
fn bug_20_10_returning_to_its_term_keeps_acknowledged_records() {
    let mut d = OnDisks::begun_as(Protocol::Raft, Guards::ALL, false);
    d.pass(60);
    // Node 1 follows, and hears of no record; nodes 0 and 2 commit one.
    d.g.unheard = vec![1];
    d.g.set(0, "k", "v");
    d.pass(5);
    assert_eq!(d.g.to_client.len(), 1);
    let (term, end) = (d.g.nodes[0].view, d.g.nodes[2].ordered.end());
    assert!(d.g.nodes[1].ordered.end() < end && d.g.nodes[2].executed == end);
    // The leader does not answer, and knows by node 1 that node 2 began anew.
    d.g.cut(0, 2);
    d.restart(2, 700);
    d.pass(3 * LEASE_NS / MS + 30);
    let third = &d.g.nodes[2];
    assert_eq!((third.view, third.stage), (term, Stage::ViewChange));
    assert!(d.g.nodes[0].is_leader() && d.g.nodes[0].view == term);
    // Then it tells of the term, and dies before it has heard that node 2 follows.
    d.g.cuts = vec![(2, 0)];
    (0..100).find(|_| {
        d.pass(1);
        d.g.nodes[2].stage != Stage::ViewChange
    });
    d.g.isolate(0);
    let third = &d.g.nodes[2];
    assert_eq!((third.view, third.stage), (term, Stage::Normal));
    assert_eq!(third.ordered.end(), end);
    d.g.unheard.clear();
    d.pass(10 * LEASE_NS / MS);
    assert_eq!(d.g.leader(), Some(2), "who lacks the record gets no vote");
    assert_eq!(d.values(&["k"]), ["v"]);
    assert_eq!(d.g.digests()[1], d.g.digests()[2]);
}

/// The same where the records at the term's beginning are gone here, and not at the leader: nothing
/// is fetched, and no write is waited for.
#[test]
fn bug_20_10_returning_without_the_terms_beginning_follows() {
    let mut d = OnDisks::begun_as(Protocol::Raft, Guards::ALL, false);
    d.g.nodes[0].setup.records_kept = 1_000;
    for value in 0..70_u32 {
        d.g.set(0, "k", &alloc::format!("{value}"));
        d.pass(5);
    }
    let (term, end) = (d.g.nodes[0].view, d.g.nodes[0].ordered.end());
    d.g.cut(0, 2);
    d.restart(2, 700);
    d.pass(3 * LEASE_NS / MS + 30);
    let (begun, third) = (d.g.nodes[0].leading.view_start(), &d.g.nodes[2]);
    assert_eq!((third.view, third.stage), (term, Stage::ViewChange));
    assert!(third.ordered.log.base().position > begun.0);
    d.g.cuts.clear();
    d.pass(50);
    let third = &d.g.nodes[2];
    assert_eq!((third.view, third.stage, third.executed), (term, Stage::Normal, end));
    assert_eq!((third.vr_count.records_transferred, third.count.copies_begun), (0, 0));
}

/// NOPaxos with a write each millisecond to all three, for four seconds in which the disk of node
/// `hung` stands still: how many records entered its log, and the group thereafter, when the disk
/// goes on.
fn beside_a_hung_disk(guards: Guards, hung: usize) -> (u64, OnDisks) {
    let mut own = OnDisks::begun_as(Protocol::NoPaxos, guards, true);
    own.pass(2_000);
    let before = own.g.nodes[hung].ordered.end().0;
    let mut end = before;
    for _ in 0..4_000 {
        own.g.cast_set(&[0, 1, 2], "k", "v");
        own.g.pass(1);
        (0..3).filter(|index| *index != hung).for_each(|index| own.sync(index));
        own.g.run();
        end = end.max(own.g.nodes[hung].ordered.end().0);
    }
    own.pass(3_000);
    (end - before, own)
}

/// What may be lost was acknowledged within two seconds: NOPaxos passed the journal's bound by, at
/// the leader and at the followers, and with four seconds of a hung disk lost four.
#[test]
fn bug_22_3_nopaxos_takes_no_more_than_its_disk() {
    for hung in [0, 2] {
        let (taken, own) = beside_a_hung_disk(Guards::ALL, hung);
        assert!((1_000..2_000).contains(&taken), "replica {hung}: {taken}");
        // All that came meanwhile is taken once the disk goes on, and no view changed for what was
        // held back.
        let ends: Vec<u64> = own.g.nodes.iter().map(|n| n.executed.0).collect();
        assert!(ends.iter().all(|end| *end == ends[0] && *end > 4_000), "replica {hung}: {ends:?}");
        assert_eq!(own.g.to_client.len(), 4_000, "replica {hung}");
        assert!(own.g.nodes.iter().all(|n| n.stage == Stage::Normal));
        assert!(own.g.nodes.iter().all(|n| n.vr_count.gaps_agreed == 0), "replica {hung}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn bug_22_3_without_the_valve_it_takes_all() {
    for hung in [0, 2] {
        let (taken, _) = beside_a_hung_disk(Guards::without(Guard::JournalRoom), hung);
        assert!(taken >= 4_000, "replica {hung}: {taken}");
    }
}

/// NOPaxos with `fsync`, and 80 MB of writes while the disk of node 2 stands still: what waits for
/// it in memory.
fn waiting_bytes(guards: Guards) -> (usize, OnDisks) {
    let mut own = OnDisks::begun_as(Protocol::NoPaxos, guards, false);
    let value = "v".repeat(1_000);
    for _ in 0..1_200 {
        for _ in 0..64 {
            own.g.cast_set(&[0, 1, 2], "k", &value);
        }
        own.g.pass(1);
        (0..2).for_each(|index| own.sync(index));
        own.g.run();
        own.g.to_client.clear();
    }
    (own.g.nodes[2].journal.waiting_bytes(), own)
}

/// With `fsync` a follower whose disk stands still holds so much in memory, and no more, whatever
/// the others log: under NOPaxos it grew by all that came.
#[test]
fn bug_22_3_what_waits_for_one_hung_disk_is_bounded() {
    let (waiting_bytes, mut own) = waiting_bytes(Guards::ALL);
    assert!(waiting_bytes < 65 << 20, "{waiting_bytes}");
    assert!(own.g.nodes[0].executed.0 >= 64 * 1_200, "the others are a quorum");
    own.pass(100);
    assert_eq!(own.g.nodes[2].executed, own.g.nodes[0].executed);
}

#[cfg(feature = "mutants")]
#[test]
fn bug_22_3_without_the_valve_memory_grows() {
    let (waiting_bytes, _) = waiting_bytes(Guards::without(Guard::JournalRoom));
    assert!(waiting_bytes > 75_000_000, "{waiting_bytes}");
}

const QUORUM: [Protocol; 3] = [Protocol::Vr, Protocol::NoPaxos, Protocol::Raft];

/// How node 2, which lags, and node 1, whose directory was put back, may find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// Node 2 was told up to where the log is committed.
    Leader,
    /// The controller has heard what node 1 had on its disk.
    Controller,
}

/// Nodes 0 and 1 have a write on their disks, and it is acknowledged, while node 2 gets no records.
/// Then node 0 goes, and a copy of node 1's directory is put back that was made before while its
/// process ran. Whether a leader is there without node 0, and the value once that is back.
fn live_copy_put_back(protocol: Protocol, guards: Guards, tells: Tells) -> (bool, Vec<String>) {
    let mut own = OnDisks::begun_as(protocol, guards, false);
    own.pass(60);
    let first = own.g.leader().unwrap();
    let [back, lags] = [(first + 1) % 3, (first + 2) % 3];
    let copy = own.disks[back].clone();
    own.g.unheard = vec![lags];
    let to: Vec<usize> = if protocol.is_sequenced() { vec![first, back] } else { vec![first] };
    own.g.cast_set(&to, "k", "v");
    own.pass(10);
    assert_eq!(own.g.to_client.len(), 1, "{protocol:?}: a quorum has it");
    let had = own.g.nodes[back].held();
    own.g.unheard.clear();
    if tells == Tells::Leader {
        let committed = own.g.nodes[first].commit_point();
        let (now, mut sent): (Now, Vec<(Addr, Vec<u8>)>) = (own.g.now, vec![]);
        own.g.nodes[lags].learn_committed(now, committed, &mut sent);
    }
    own.g.isolate(first);
    own.disks[back] = copy;
    own.restart(back, 700);
    if tells == Tells::Controller {
        let held = own.g.nodes[back].held();
        assert!(held < had, "{protocol:?}: {held:?} {had:?}");
        let mut bytes = vec![];
        let (incarnation, held) = (700, had);
        Membership::WasDurable { incarnation, held }.emit(&mut bytes);
        own.g.deliver(back, &bytes);
    }
    own.pass(15 * LEASE_NS / MS);
    if own.g.leader().is_some_and(|leader| leader != first) {
        return (true, own.values(&["k"]));
    }
    own.g.cuts.clear();
    own.pass(15 * LEASE_NS / MS);
    (false, own.values(&["k"]))
}

/// One directory put back and one replica that lags were a majority without what was acknowledged.
#[test]
fn bug_22_2_one_put_back_and_one_that_lags_wait() {
    for protocol in QUORUM {
        for tells in [Tells::Leader, Tells::Controller] {
            let found = live_copy_put_back(protocol, Guards::ALL, tells);
            assert_eq!(found, (false, vec![String::from("v")]), "{protocol:?} {tells:?}");
        }
    }
}

#[cfg(feature = "mutants")]
#[test]
fn bug_22_2_one_put_back_and_one_that_lags_lose() {
    let told = [(Tells::Leader, Guard::KnownCommitted), (Tells::Controller, Guard::HeardDurable)];
    for protocol in QUORUM {
        for (tells, guard) in told {
            let found = live_copy_put_back(protocol, Guards::without(guard), tells);
            assert_eq!(found, (true, vec![String::from("nil")]), "{protocol:?} {guard:?}");
        }
    }
}

/// A leader that no longer votes hands its term over in the batch in which it hears that this is
/// committed: nobody hears of the next term before that is on its disk.
#[test]
fn bug_22_101_a_term_that_ends_a_batch_is_on_disk_first() {
    let mut own = OnDisks::begun_as(Protocol::Raft, Guards::ALL, false);
    own.pass(60);
    let leader = own.g.leader().unwrap();
    let term = own.g.nodes[leader].view;
    let later = |held: &[(usize, usize, Vec<u8>)]| {
        let said = held.iter().filter_map(|(_, _, bytes)| VrMessage::parse(bytes).ok());
        said.filter(|message| message.view > term.0).count()
    };
    let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
    own.g.change(leader, leader, false).unwrap();
    for to in [one, other] {
        own.g.held_way = Some((leader, to));
        for _ in 0..20 {
            own.g.pass(1);
            [one, other].into_iter().for_each(|index| own.sync(index));
            own.g.run();
        }
    }
    assert!(own.g.nodes[leader].view > term, "it handed its term over");
    assert_eq!(later(&own.g.held), 0);
    own.sync(leader);
    assert!(later(&own.g.held) > 0, "once that is on its disk it says so");
}

/// What is held back while a promise waits for a hung disk was bounded by nothing.
#[test]
fn bug_22_102_what_a_hung_disk_holds_back_is_bounded() {
    let mut own = OnDisks::founded(Guards::ALL);
    let (now, next) = (own.g.now, ViewNumber(own.g.nodes[1].view.0 + 1));
    let mut said: Vec<(Addr, Vec<u8>)> = vec![];
    own.g.nodes[1].enter_view(now, next, &mut said);
    own.g.nodes[1].held = said;
    for _ in 0..120_000 {
        own.g.now.instant = own.g.now.instant.after(MS);
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        own.g.nodes[1].tick(own.g.now, &mut sent);
        assert!(sent.is_empty());
    }
    assert_eq!(own.g.nodes[1].held.len(), super::super::disk::HELD_PACKETS_MAX);
}
