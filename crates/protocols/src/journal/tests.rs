//! Tests of the journal: when it writes, what is late, and snapshots.

use alloc::vec;
use alloc::vec::Vec;

use concord_log::{Entry, Identity, Writer, entries};

use super::*;

const STORAGE: u64 = 7;
pub(super) const EVERY_BYTES: u64 = 1 << 20;
pub(super) const NODE: NodeId = NodeId(1);
pub(super) const NOTHING: LogEnd = LogEnd { position: 1, hash: 2 };

/// Nobody waits for what it writes.
pub(super) fn journal() -> Journal {
    let kept = DiskState {
        storage: STORAGE,
        is_intact: true,
        marks: Marks { owes: true, ..Marks::default() },
        snapshot_every_bytes: EVERY_BYTES,
        owed: false,
        acks_early: true,
    };
    let mut journal = Journal::default();
    journal.keep(NODE, kept, Position(1), EVERY_BYTES);
    journal.log_bytes = journal.due_bytes();
    journal
}

/// The names and numbers of the parts of a batch.
pub(super) fn parts(mut batch: Batch) -> Vec<(u64, u64)> {
    let mut writer = Writer::new(Identity { storage: STORAGE, node: 1, engine: None }, 1, 1);
    let mut file = Vec::new();
    writer.begin_segment(&mut file);
    writer.seal(batch.bytes());
    file.extend_from_slice(batch.bytes());
    let of = |entry| match entry {
        (_, Entry::Part(part)) => Some((part.snapshot, part.number)),
        _ => None,
    };
    entries(STORAGE, 1, &file, 0).filter_map(of).collect()
}

/// A snapshot of the own state was wanted while another's was being copied, and the copy went
/// on under its name: once it was whole all segments went that stood before the other's first
/// part, that of the copy too.
#[test]
fn bug_19_15_a_copy_keeps_its_name_while_a_snapshot_is_wanted() {
    let mut journal = journal();
    journal.copied(&part(NOTHING, PART_TABLE, b"table"));
    journal.renew();
    assert_eq!(journal.part_wanted(), Some(PART_TABLE));
    journal.copied(&part(NOTHING, PART_RESULTS, b"results"));
    let copy = journal.poll(Position(1)).unwrap();
    assert_eq!(parts(copy.what), [(1, PART_TABLE), (1, PART_RESULTS)]);
    journal.persisted(copy.number);
    journal.begin_part(Position(1));
    journal.end_part(NOTHING, b"table", Some(0));
    journal.is_due = true;
    assert_eq!(parts(journal.poll(Position(1)).unwrap().what), [(2, PART_TABLE)]);
}

/// Where no snapshot could be read back, the next one began at once, until the disk was full.
#[test]
fn bug_22_140_snapshots_after_damage_are_apart() {
    let mut journal = journal();
    let snapshot = |journal: &mut Journal| {
        let number = journal.part_wanted()?;
        journal.begin_part(Position(0));
        journal.end_snapshot();
        (journal.is_owed, journal.log_bytes) = (false, 0);
        Some(number)
    };
    journal.renew();
    assert_eq!(snapshot(&mut journal), Some(PART_TABLE), "the first one at once");
    journal.renew();
    assert_eq!(journal.part_wanted(), None);
    let (due, every) = (journal.due_bytes(), EVERY_BYTES);
    assert_eq!(journal.log_bytes, due - every / 8, "an eighth later");
    journal.log_bytes = due;
    assert_eq!(snapshot(&mut journal), Some(PART_TABLE));
    journal.renew();
    assert!(journal.log_bytes >= journal.due_bytes(), "the last one was of the usual kind");
}

/// Where the disk stood still nothing bounded what was acknowledged and on no disk.
#[test]
fn bug_19_23_unwritten_backlog_is_about_a_second() {
    let mut journal = journal();
    let at = |ms: u64| Instant(SEC + ms * MS);
    journal.record(Some(b"a record"));
    journal.pass(at(0));
    journal.pass(at(800));
    let first = journal.poll(Position(2)).unwrap();
    journal.record(Some(b"a record"));
    journal.pass(at(900));
    journal.pass(at(1_999));
    assert!(!journal.is_stuffed() && journal.poll(Position(3)).is_none());
    journal.pass(at(2_000));
    assert!(journal.is_stuffed(), "nothing more is taken");
    journal.persisted(first.number);
    let second = journal.poll(Position(3)).unwrap();
    journal.pass(at(5_000));
    assert!(journal.is_stuffed(), "before that is durable, too");
    journal.persisted(second.number);
    assert!(!journal.is_stuffed());
}

/// A write now and then beside a hung disk: the group that is being written counts from its
/// first record, whatever comes behind it.
#[test]
fn bug_22_146_the_group_that_is_written_counts_too() {
    let mut journal = journal();
    journal.open(true, false);
    let at = |ms: u64| Instant(ms * MS);
    journal.record(Some(b"first"));
    journal.pass(at(1_000));
    journal.pass(at(1_800));
    let handed_out = journal.poll(Position(1)).unwrap().number;
    journal.pass(at(2_999));
    assert!(!journal.is_late(Guards::ALL));
    journal.pass(at(3_000));
    assert!(journal.is_late(Guards::ALL));
    journal.persisted(handed_out);
    assert!(!journal.is_late(Guards::ALL));
    journal.pass(at(9_000));
    assert!(!journal.is_late(Guards::ALL));
}

/// A disk had no limit: as long as it hung, nothing was committed behind it.
#[test]
fn bug_22_5_a_disk_that_owes_a_group_for_too_long_hangs() {
    let mut journal = journal();
    journal.record(Some(b"a record"));
    journal.is_due = true;
    let number = journal.poll(Position(2)).unwrap().number;
    let limit = 10 * SEC;
    let mut at = SEC;
    let pass_to = |journal: &mut Journal, at: &mut u64, end: u64| {
        while *at <= end {
            journal.pass(Instant(*at));
            *at += 50 * MS;
        }
    };
    pass_to(&mut journal, &mut at, 10 * SEC);
    assert!(!journal.is_hung(limit, 0));
    pass_to(&mut journal, &mut at, 11 * SEC);
    assert!(journal.is_hung(limit, 0) && !journal.is_hung(limit, 1), "one after the other");
    pass_to(&mut journal, &mut at, 16 * SEC);
    assert!(journal.is_hung(limit, 1));
    journal.set_short(true);
    journal.pass(Instant(at));
    assert!(!journal.is_hung(limit, 0), "it has no room, and tries again");
    journal.set_short(false);
    pass_to(&mut journal, &mut at, 20 * SEC);
    // A replica that slept did not listen.
    journal.pass(Instant(at + 3_600 * SEC));
    assert!(!journal.is_hung(limit, 0));
    journal.persisted(number);
    journal.pass(Instant(at + 3_700 * SEC));
    assert!(!journal.is_hung(MS, 0));
}

/// Where a sync took 0.4 s every view change and every election was given up before its steps
/// were durable.
#[test]
fn bug_22_6_patience_follows_the_time_that_syncs_take() {
    let (mut journal, lease_ns) = (journal(), SEC);
    let mut at = SEC;
    let sync = |journal: &mut Journal, at: &mut u64, takes: u64| {
        journal.record(Some(b"a record"));
        journal.is_due = true;
        let number = journal.poll(Position(2)).unwrap().number;
        let end = *at + takes;
        while *at <= end {
            journal.pass(Instant(*at));
            *at += 10 * MS;
        }
        journal.persisted(number);
    };
    sync(&mut journal, &mut at, 50 * MS);
    assert_eq!(journal.slow_ns(lease_ns), 0, "as with a fast disk");
    sync(&mut journal, &mut at, 60 * SEC);
    assert_eq!(journal.slow_ns(lease_ns), 0, "it hung once");
    (0..4).for_each(|_| sync(&mut journal, &mut at, 400 * MS));
    assert_eq!(journal.slow_ns(lease_ns), SYNCS * 400 * MS);
    (0..3).for_each(|_| sync(&mut journal, &mut at, 0));
    assert_eq!(journal.slow_ns(lease_ns), 0, "it is fast again");
    (0..4).for_each(|_| sync(&mut journal, &mut at, 60 * SEC));
    assert_eq!(journal.slow_ns(lease_ns), SLOW_NS_MAX);
}

/// What was durable is given up, and other records take its place: how much of them counts as
/// durable before they are written.
fn durable_after(gives_up: fn(&mut Journal, Guards), guards: Guards) -> Position {
    let mut journal = journal();
    journal.kept.as_mut().unwrap().acks_early = false;
    journal.record(Some(b"a record"));
    let number = journal.poll(Position(5)).unwrap().number;
    journal.persisted(number);
    assert_eq!(journal.durable(), Position(5));
    gives_up(&mut journal, guards);
    journal.record(Some(b"another one"));
    journal.durable()
}

/// A follower would acknowledge what its disk does not have.
#[test]
fn t7_records_given_up_are_durable_no_more() {
    let cut: fn(&mut Journal, Guards) = |journal, guards| {
        journal.cut(LogEnd { position: 3, hash: 2 }, guards);
    };
    let reset: fn(&mut Journal, Guards) = |journal, guards| journal.reset(guards);
    assert_eq!(durable_after(cut, Guards::ALL), Position(3));
    assert_eq!(durable_after(reset, Guards::ALL), Position(0));
    #[cfg(feature = "mutants")]
    for gives_up in [cut, reset] {
        assert_eq!(durable_after(gives_up, Guards::without(Guard::DurableCut)), Position(5));
    }
}

/// A snapshot begins once the log has grown enough unless something keeps it.
#[test]
fn snapshot_begins_when_the_log_has_grown() {
    let wanted = |keeps: fn(&mut Journal)| {
        let mut journal = journal();
        journal.log_bytes = journal.due_bytes();
        keeps(&mut journal);
        journal.part_wanted()
    };
    assert_eq!(wanted(|_| ()), Some(PART_TABLE));
    assert_eq!(wanted(|journal| journal.log_bytes -= 1), None);
    assert_eq!(wanted(|journal| journal.is_dead = true), None, "the disk failed");
    assert_eq!(wanted(|journal| journal.is_short = true), None, "there is no space on the disk");
    // One was given up while the engine made a part of it: that one comes first, and is of no
    // use.
    let given_up = |journal: &mut Journal| {
        journal.begin_part(Position(1));
        journal.end_snapshot();
    };
    assert_eq!(wanted(given_up), None);
    let mut journal = journal();
    given_up(&mut journal);
    assert_eq!(journal.part_position(PART_TABLE), None);
    assert_eq!(journal.part_wanted(), Some(PART_TABLE));
}

/// A snapshot waits until what has gathered is written and that is soon.
#[test]
fn snapshot_waits_for_the_backlog() {
    let mut journal = journal();
    journal.begin_part(Position(1));
    journal.end_part(NOTHING, &[0; (EVERY_BYTES / GATHERED_BEFORE_PARTS) as usize], Some(0));
    assert_eq!(journal.part_wanted(), None);
    let batch = journal.poll(Position(1)).unwrap();
    journal.reuse(batch.what);
    journal.persisted(batch.number);
    assert_eq!(journal.part_wanted(), Some(1));
    journal.begin_part(Position(1));
    journal.end_part(NOTHING, b"objects", None);
    journal.is_due = true;
    let last = journal.poll(Position(1)).unwrap().what;
    assert_eq!((parts(last.clone()), last.ends_snapshot()), (vec![(1, 1)], Some(1)));
}
