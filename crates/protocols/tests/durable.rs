//! A replica's messages before and after its disk has their state (trap T7), step by step.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "mutants")]
use concord_core::Guard;
use concord_core::{Addr, Epoch, Guards, Instant, MS, NodeId, Now, Position, SessionId};
use concord_engine::Shimmed;
use concord_engine::memory::Memory;
use concord_log::{Entry, Marks, Origin};
use concord_protocols::{DiskState, Limits, Phase, Replica, ReplicaConfig};
use concord_wire::control::{
    Config, CopyMessage, LogEnd, Member, Membership, Message as _, Program, Protocol, Standing,
};
use concord_wire::link::{Data, Durable};
use concord_wire::record::Record;
use concord_wire::{Flags, GroupId};

const LEASE_MS: u64 = 100;
const CONTROLLER: Addr = Addr { ip: 1, port: 300 };
const HEAD: Member = Member { node: 2, incarnation: 30, addr: Addr { ip: 1, port: 2 } };
const ME: Member = Member { node: 1, incarnation: 20, addr: Addr { ip: 1, port: 1 } };

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: ms }
}

/// A replica whose disk an earlier start may have granted leases on.
fn restarted(guards: Guards, is_new: bool) -> Replica<Shimmed<Memory>> {
    started(guards, is_new, (false, false))
}

/// The same of one that syncs now and then, or did so before and was not ended in order.
fn started(
    guards: Guards,
    is_new: bool,
    (owed, acks_early): (bool, bool),
) -> Replica<Shimmed<Memory>> {
    let mut replica = Replica::new(setup(guards), Shimmed::new(Memory::new(0)));
    let lease_ns = if is_new { 0 } else { LEASE_MS * MS };
    let marks = Marks { run: 2, lease_ns, owes: owed || acks_early, ..Marks::default() };
    let (is_intact, snapshot_every_bytes) = (true, 1 << 20);
    let kept = DiskState { storage: 7, is_intact, marks, snapshot_every_bytes, owed, acks_early };
    replica.keep(at(1_000), kept, (0, lease_ns)).unwrap();
    replica
}

fn setup(guards: Guards) -> ReplicaConfig {
    ReplicaConfig {
        me: ME,
        controller: CONTROLLER,
        lease_ns: LEASE_MS * MS,
        replies_via_switch: true,
        copy_bytes: 4_096,
        records_kept: 32_768,
        weigh_ns: concord_core::SEC,
        reads: concord_protocols::SlowReads::default(),
        replicate_replies: false,
        compare_ns: 0,
        limits: Limits::default(),
        guards,
    }
}

/// Tells it of epoch 1.
fn configure(replica: &mut Replica<Shimmed<Memory>>, ms: u64, members: &[Member]) {
    configure_with(replica, ms, members, &[]);
}

fn configure_with(
    replica: &mut Replica<Shimmed<Memory>>,
    ms: u64,
    members: &[Member],
    joining: &[Member],
) {
    let config = Config {
        group: GroupId(0),
        epoch: 1,
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: Addr { ip: 1, port: 200 },
        kind: Protocol::Chain.into(),
        program: Program::of(Protocol::Chain, true),
        members: members.to_vec(),
        joining: joining.to_vec(),
    };
    let (mut bytes, mut sent) = (vec![], vec![]);
    Membership::Configure(config.into()).emit(&mut bytes);
    replica.handle(at(ms), &bytes, &mut sent);
    replica.flush(at(ms), &mut sent);
}

/// Its disk has all that has gathered by now.
fn sync(replica: &mut Replica<Shimmed<Memory>>, ms: u64) -> u64 {
    let mut batches = 0;
    while let Some(batch) = replica.poll_persist() {
        batches += 1;
        replica.persisted(at(ms), batch.number, &mut vec![]);
    }
    batches
}

fn tick(replica: &mut Replica<Shimmed<Memory>>, ms: u64) {
    replica.tick(at(ms), &mut vec![]);
    replica.flush(at(ms), &mut vec![]);
}

#[test]
fn an_epoch_is_heard_of_once_it_is_on_the_disk() {
    let mut replica = restarted(Guards::ALL, true);
    assert_eq!(replica.standing(at(1_000)), Standing::Returning { intact: true });
    configure(&mut replica, 1_000, &[ME]);
    assert!(replica.config().is_none() && replica.phase() == Phase::Out);
    assert!(sync(&mut replica, 1_001) > 0);
    assert_eq!(replica.config().map(|c| c.epoch), Some(1));
    tick(&mut replica, 1_002);
    assert_eq!(replica.phase(), Phase::Open);
}

/// Where what is kept is damaged another snapshot takes its place.
#[test]
fn damaged_snapshot_is_replaced() {
    let mut replica = restarted(Guards::ALL, true);
    configure(&mut replica, 1_000, &[ME]);
    sync(&mut replica, 1_001);
    tick(&mut replica, 1_002);
    assert_eq!(replica.phase(), Phase::Open);
    let snapshots = |replica: &mut Replica<Shimmed<Memory>>| {
        let (mut begun, mut ended) = (0, 0);
        for ms in 1_003..1_020 {
            tick(replica, ms);
            while let Some(batch) = replica.poll_persist() {
                begun += u64::from(batch.what.begins_snapshot().is_some());
                ended += u64::from(batch.what.ends_snapshot().is_some());
                replica.persisted(at(ms), batch.number, &mut vec![]);
            }
        }
        (begun, ended)
    };
    assert_eq!(snapshots(&mut replica), (0, 0));
    replica.renew_snapshot();
    assert_eq!(snapshots(&mut replica), (1, 1));
    assert_eq!(snapshots(&mut replica), (0, 0));
}

fn opens_at(guards: Guards) -> u64 {
    let mut replica = restarted(guards, false);
    configure(&mut replica, 1_000, &[ME]);
    sync(&mut replica, 1_000);
    let opened = (1_000..2_000).find(|ms| {
        tick(&mut replica, *ms);
        replica.phase() == Phase::Open
    });
    opened.unwrap()
}

/// A replica that starts again opens no epoch before the leases of before are over.
#[test]
fn t2_restart_opens_no_epoch_before_old_leases_end() {
    let opened = opens_at(Guards::ALL);
    assert!((1_000 + LEASE_MS..1_000 + 2 * LEASE_MS).contains(&opened), "{opened}");
}

/// Tells it of epoch 1, in which it joins the head, which has all records that it lacks.
fn joining(guards: Guards) -> Replica<Shimmed<Memory>> {
    let mut replica = restarted(guards, false);
    configure_with(&mut replica, 1_000, &[HEAD], &[ME]);
    sync(&mut replica, 1_000);
    tick(&mut replica, 1_000);
    for attempt in 0..3 {
        let (mut bytes, from) = (vec![], HEAD.node);
        CopyMessage::Resumed { epoch: 1, from, attempt }.emit(&mut bytes);
        replica.handle(at(1_001), &bytes, &mut Vec::<(Addr, Vec<u8>)>::new());
    }
    replica
}

/// Who is made a member earlier has the whole group wait: nobody opens the epoch without it.
#[test]
fn bug_16_20_rejoiner_is_copied_once_old_leases_end() {
    let replica = joining(Guards::ALL);
    assert_eq!(replica.standing(at(1_001)), Standing::Copying);
    assert_eq!(replica.standing(at(1_000 + LEASE_MS)), Standing::Copied);
}

/// One that has copied the state may lack what its epoch committed last, and said that it had all
/// of that: where its members were lost, the state was made anew with it as if it were complete.
#[test]
fn bug_22_103_copied_replica_has_what_preceded_its_epoch() {
    let mut replica = joining(Guards::ALL);
    let now = at(1_000 + LEASE_MS);
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    replica.tick(now, &mut sent);
    // The disk has what it noted, and it says so.
    sync(&mut replica, 1_000 + LEASE_MS);
    replica.tick(at(1_200 + LEASE_MS), &mut sent);
    assert_eq!(replica.standing(now), Standing::Copied);
    let mut said = sent.iter().filter_map(|(_, bytes)| match Membership::parse(bytes) {
        Ok(Membership::ReplicaAlive(alive)) => Some(alive),
        _ => None,
    });
    let alive = said.next_back().unwrap();
    assert_eq!((alive.standing, alive.held.epoch), (Standing::Copied, 0), "it joins epoch 1");
}

#[cfg(feature = "mutants")]
#[test]
fn t2_without_a_quiet_start_it_opens_at_once() {
    assert!(opens_at(Guards::without(Guard::QuietStart)) < 1_000 + LEASE_MS / 2);
}

/// A session registers.
fn first_record() -> Record<'static> {
    Record {
        position: Position(1),
        epoch: Epoch(1),
        flags: Flags::REGISTER,
        session: SessionId(7),
        now_ms: 1,
        ..Record::EMPTY
    }
}

/// Makes it the tail behind node 2, whose log has one record more, and gives it that.
fn tail_with_a_record(mut replica: Replica<Shimmed<Memory>>) -> Replica<Shimmed<Memory>> {
    configure(&mut replica, 1_000, &[HEAD, ME]);
    sync(&mut replica, 1_000);
    let (mut bytes, mut packet) = (vec![], vec![]);
    let end = LogEnd { position: 1, hash: first_record().emit(0, &mut bytes) };
    Membership::Open { epoch: 1, from: HEAD.node, end, waits: true }.emit(&mut packet);
    replica.handle(at(1_001), &packet, &mut vec![]);
    assert_eq!((replica.phase(), replica.is_caught_up()), (Phase::Open, false));
    let data = Data {
        epoch: Epoch(1),
        from: NodeId(HEAD.node),
        stream: 0,
        link_seq: 1,
        committed: Position(0),
        first: true,
        last: true,
        piece: &bytes,
    };
    data.emit(&mut packet);
    replica.handle(at(1_002), &packet, &mut vec![]);
    replica.flush(at(1_002), &mut vec![]);
    replica
}

/// Such a tail: whether it calls itself whole with the record, before and
/// after its disk has it.
fn is_caught_up(guards: Guards) -> (bool, bool) {
    let mut replica = tail_with_a_record(restarted(guards, true));
    let mut packet = vec![];
    assert_eq!((replica.executed(), replica.committed()), (Position(1), Position(0)));
    let before = replica.is_caught_up();
    sync(&mut replica, 1_003);
    replica.flush(at(1_003), &mut vec![]);
    assert_eq!(replica.committed(), Position(0), "the head has not said that its disk has it");
    Durable { epoch: Epoch(1), from: NodeId(HEAD.node), durable: Position(1) }.emit(&mut packet);
    replica.handle(at(1_004), &packet, &mut vec![]);
    replica.flush(at(1_004), &mut vec![]);
    assert_eq!(replica.committed(), Position(1));
    (before, replica.is_caught_up())
}

#[test]
fn t7_a_replica_is_whole_once_its_disk_has_what_was_agreed() {
    assert_eq!(is_caught_up(Guards::ALL), (false, true));
}

#[cfg(feature = "mutants")]
#[test]
fn t7_without_the_guard_it_is_whole_before() {
    assert_eq!(is_caught_up(Guards::without(Guard::DurableCaughtUp)), (true, true));
}

/// What is synced each second is committed before and written within one.
#[test]
fn interval_commits_first_and_writes_within_a_second() {
    let mut replica = started(Guards::ALL, true, (false, true));
    configure(&mut replica, 1_000, &[HEAD, ME]);
    assert!(sync(&mut replica, 1_001) > 0, "the epoch waits for the disk all the same");
    let (mut bytes, mut packet) = (vec![], vec![]);
    let end = LogEnd { position: 1, hash: first_record().emit(0, &mut bytes) };
    Membership::Open { epoch: 1, from: HEAD.node, end, waits: false }.emit(&mut packet);
    replica.handle(at(1_001), &packet, &mut vec![]);
    let (epoch, from, committed) = (Epoch(1), NodeId(HEAD.node), Position(0));
    let (stream, link_seq, first, last, piece) = (0, 1, true, true, &bytes[..]);
    Data { epoch, from, stream, link_seq, committed, first, last, piece }.emit(&mut packet);
    replica.handle(at(1_002), &packet, &mut vec![]);
    replica.flush(at(1_002), &mut vec![]);
    assert_eq!((replica.committed(), replica.is_caught_up()), (Position(1), true));
    // That it is whole is told the disk at once; the next record waits.
    assert!(sync(&mut replica, 1_003) > 0);
    assert_eq!(sync(&mut replica, 1_003), 0);
    let second = Record { position: Position(2), session: SessionId(8), ..first_record() };
    bytes.clear();
    second.emit(end.hash, &mut bytes);
    let (link_seq, piece) = (2, &bytes[..]);
    Data { epoch, from, stream, link_seq, committed, first, last, piece }.emit(&mut packet);
    replica.handle(at(1_004), &packet, &mut vec![]);
    let written = (1_004..3_000).find(|ms| {
        tick(&mut replica, *ms);
        sync(&mut replica, *ms) > 0
    });
    assert!((1_700..2_004).contains(&written.unwrap()), "{written:?}");
}

#[test]
fn one_that_may_owe_records_is_not_intact() {
    let replica = started(Guards::ALL, false, (true, true));
    assert_eq!(replica.standing(at(1_000)), Standing::Returning { intact: false });
    let replica = started(Guards::ALL, false, (true, false));
    assert_eq!(
        replica.standing(at(1_000)),
        Standing::Returning { intact: false },
        "whatever it does from now on"
    );
}

/// A rack begins with a state and without the sessions of before.
#[test]
fn t16_rack_from_a_state_has_no_old_sessions() {
    let setup = ReplicaConfig::new(ME, CONTROLLER);
    let mut replica = Replica::new(setup, Shimmed::new(Memory::new(0)));
    let mut bytes = vec![];
    let end = LogEnd { position: 1, hash: first_record().emit(0, &mut bytes) };
    replica.restore(at(1_000), &Entry::Record(&bytes)).unwrap();
    let (none, one) = (
        Replica::new(ReplicaConfig::new(ME, CONTROLLER), Shimmed::new(Memory::new(0))),
        replica.sessions_digest(),
    );
    assert_ne!(none.sessions_digest(), one);
    let elsewhere = Origin { id: 9, end: LogEnd::default(), switch_id: 4 };
    assert!(replica.restore(at(1_000), &Entry::Origin(elsewhere)).is_err());
    let origin = Origin { id: 9, end, switch_id: 4 };
    replica.restore(at(1_000), &Entry::Committed(1)).unwrap();
    replica.restore(at(1_000), &Entry::Origin(origin)).unwrap();
    assert_ne!(replica.sessions_digest(), one);
    let (marks, is_intact, owed, acks_early) =
        (Marks { run: 1, ..Marks::default() }, true, false, false);
    let kept =
        DiskState { storage: 7, is_intact, marks, snapshot_every_bytes: 1 << 20, owed, acks_early };
    replica.keep(at(1_000), kept, (0, 0)).unwrap();
    assert_eq!(replica.standing(at(1_000)), Standing::Founding { origin: 9, switch_id: 4 });
    configure(&mut replica, 1_001, &[ME]);
    sync(&mut replica, 1_001);
    tick(&mut replica, 1_002);
    assert_eq!((replica.phase(), replica.executed()), (Phase::Open, Position(1)));
}

/// What it sends to the other one about durable logs when time passes, from `ms` on.
fn said_of_durable(
    replica: &mut Replica<Shimmed<Memory>>,
    ms: std::ops::Range<u64>,
) -> Vec<Position> {
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    for ms in ms {
        replica.tick(at(ms), &mut sent);
        replica.flush(at(ms), &mut sent);
    }
    let own = sent.iter().filter(|(to, _)| *to == HEAD.addr);
    own.filter_map(|(_, packet)| Durable::parse(packet).ok()).map(|said| said.durable).collect()
}

/// Another member waits for its disk, and may come back without what it did not say: what counts at
/// the tail is its word, whether the tail has a disk or not.
fn commits_when_told(replica: Replica<Shimmed<Memory>>) {
    let mut replica = tail_with_a_record(replica);
    sync(&mut replica, 1_003);
    assert_eq!(said_of_durable(&mut replica, 1_003..1_200), []);
    assert_eq!((replica.executed(), replica.committed()), (Position(1), Position(0)));
    let mut packet = vec![];
    let durable = Position(u64::MAX);
    Durable { epoch: Epoch(1), from: NodeId(HEAD.node), durable }.emit(&mut packet);
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    replica.handle(at(1_200), &packet, &mut sent);
    replica.flush(at(1_200), &mut vec![]);
    assert_eq!(replica.committed(), Position(1));
    assert_eq!(Durable::parse(&sent[0].1).map(|said| said.durable), Ok(durable));
    assert_eq!(said_of_durable(&mut replica, 1_201..1_400), []);
}

/// A tail commits what members say that do not wait for their disks.
#[test]
fn bug_16_21_tail_commits_what_members_without_disks_say() {
    commits_when_told(restarted(Guards::ALL, true));
}

/// A tail that waits for no disk waits for those of the members before it.
#[test]
fn bug_16_23_diskless_tail_waits_for_earlier_members_disks() {
    commits_when_told(started(Guards::ALL, true, (false, true)));
    commits_when_told(Replica::new(setup(Guards::ALL), Shimmed::new(Memory::new(0))));
}

/// The head of a chain of two, which waits for its disk or not, as the tail does or not: what it
/// says of durable logs by itself until the tail has heard it.
fn told(acks_early: bool, waits: bool) -> Vec<Position> {
    let mut replica = started(Guards::ALL, true, (false, acks_early));
    configure(&mut replica, 1_000, &[ME, HEAD]);
    sync(&mut replica, 1_000);
    let (mut packet, end) = (vec![], LogEnd::default());
    let (epoch, from) = (1, HEAD.node);
    Membership::EpochState { epoch, from, end, ask: true, waits }.emit(&mut packet);
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    replica.handle(at(1_001), &packet, &mut sent);
    let opened = sent.iter().filter_map(|(_, packet)| Membership::parse(packet).ok());
    let opened: Vec<bool> = opened
        .filter_map(|said| match said {
            Membership::Open { waits, .. } => Some(waits),
            _ => None,
        })
        .collect();
    assert!(!opened.is_empty() && opened.iter().all(|said| *said == (waits || !acks_early)));
    let said = said_of_durable(&mut replica, 1_002..1_040);
    if let Some(durable) = said.last().copied() {
        Durable { epoch: Epoch(1), from: NodeId(HEAD.node), durable }.emit(&mut packet);
        replica.handle(at(1_040), &packet, &mut vec![]);
    }
    assert_eq!(said_of_durable(&mut replica, 1_041..1_200), []);
    said
}

/// Where any member waits for its disk all say what is durable.
#[test]
fn bug_16_23_any_waiting_member_makes_all_say_durable() {
    let all = Position(u64::MAX);
    assert!(told(true, true).iter().all(|said| *said == all));
    assert!(!told(true, true).is_empty());
    assert_eq!(told(true, false), [], "nobody waits");
    assert_eq!(told(false, false), [], "nothing is in its log yet");
}
