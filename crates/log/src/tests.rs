//! Logs that are written, torn, damaged and read again.

extern crate std;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use concord_core::{Epoch, ObjectId, Position, RequestNumber, Rng, SessionId};
use concord_wire::control::LogEnd;
use concord_wire::record::Record;

use super::*;

const IDENTITY: Identity = Identity { storage: 0x5707_a6e1, node: 3, engine: None };
/// What a disk writes at once.
const SECTOR: usize = 512;

/// An entry, as it was put in and as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Own {
    Record(Vec<u8>),
    Marks(u64),
    Part(u64, u64, Vec<u8>),
    Reset,
    Committed(u64),
    Cut(u64),
    Origin(u64),
}

fn own(entry: &Entry<'_>) -> Own {
    match entry {
        Entry::Record(bytes) => Own::Record(bytes.to_vec()),
        Entry::Marks(marks) => Own::Marks(marks.run),
        Entry::Part(part) => Own::Part(part.snapshot, part.number, part.bytes.to_vec()),
        Entry::Reset => Own::Reset,
        Entry::Committed(position) => Own::Committed(*position),
        Entry::Cut(end) => Own::Cut(end.position),
        Entry::Origin(origin) => Own::Origin(origin.id),
    }
}

/// A directory, and what stands in each group of it.
#[derive(Clone)]
struct Log {
    files: BTreeMap<u64, Vec<u8>>,
    writer: Writer,
    /// Segment, offset and entries of each group.
    groups: Vec<(u64, usize, Vec<Own>)>,
    end: LogEnd,
    /// The end behind each record.
    ends: Vec<LogEnd>,
    snapshot: u64,
}

impl Log {
    fn new() -> Log {
        let mut log = Log {
            files: BTreeMap::new(),
            writer: Writer::new(IDENTITY, 1, 1),
            groups: vec![],
            end: LogEnd::default(),
            ends: vec![LogEnd::default()],
            snapshot: 0,
        };
        log.begin_segment();
        log
    }

    fn begin_segment(&mut self) {
        let mut bytes = vec![];
        self.writer.begin_segment(&mut bytes);
        self.groups.push((self.writer.segment(), 0, vec![]));
        self.files.insert(self.writer.segment(), bytes);
    }

    fn write(&mut self, mut batch: Batch, entries: Vec<Own>) {
        if batch.begins_snapshot().is_some() {
            self.begin_segment();
        }
        let file = self.files.get_mut(&self.writer.segment()).unwrap();
        self.groups.push((self.writer.segment(), file.len(), entries));
        self.writer.seal(batch.bytes());
        file.extend_from_slice(batch.bytes());
        assert_eq!(file.len() as u64, self.writer.segment_bytes());
    }

    fn record(&mut self, rng: &mut Rng) -> Vec<u8> {
        let command = vec![rng.below(256) as u8; rng.below(200) as usize];
        let position = Position(self.end.position + 1);
        let mut bytes = vec![];
        let record = Record {
            position,
            epoch: Epoch(1),
            session: SessionId(7),
            request: RequestNumber(rng.next_u64()),
            now_ms: 1,
            obj_id: ObjectId(rng.next_u64() as u32),
            command: &command,
            ..Record::EMPTY
        };
        let hash = record.emit(self.end.hash, &mut bytes);
        self.end = LogEnd { position: position.0, hash };
        self.ends.push(self.end);
        bytes
    }

    /// A group of anything.
    fn write_some(&mut self, rng: &mut Rng) {
        let (mut batch, mut entries) = (Batch::default(), vec![]);
        match rng.below(12) {
            0 => self.begin_segment(),
            1 => {
                let snapshot = self.snapshot + 1;
                self.snapshot = snapshot;
                let bytes = vec![9; rng.below(3_000) as usize];
                let (position, hash) = (self.end.position, self.end.hash);
                let number = 0;
                let is_first = true;
                let is_last = rng.below(2) == 0;
                let part =
                    Part { snapshot, number, position, hash, is_first, is_last, bytes: &bytes };
                batch.part(&part).unwrap();
                entries.push(Own::Part(snapshot, number, bytes.clone()));
            }
            2 if self.snapshot > 0 => {
                let (snapshot, number, position) = (self.snapshot, 5, self.end.position);
                let bytes = [7; 100];
                let (hash, is_first, is_last) = (0, false, rng.below(2) == 0);
                let part =
                    Part { snapshot, number, position, hash, is_first, is_last, bytes: &bytes };
                batch.part(&part).unwrap();
                entries.push(Own::Part(snapshot, number, bytes.to_vec()));
            }
            3 => {
                let run = rng.below(1_000);
                batch.marks(&Marks { run, ..Marks::default() });
                entries.push(Own::Marks(run));
            }
            4 => {
                batch.committed(self.end.position);
                entries.push(Own::Committed(self.end.position));
            }
            5 if self.snapshot == 0 => {
                let to = rng.below(self.end.position + 1) as usize;
                self.end = self.ends[to];
                self.ends.truncate(to + 1);
                batch.cut(self.end);
                entries.push(Own::Cut(self.end.position));
            }
            _ => {}
        }
        for _ in 0..rng.between(1, 20) {
            let bytes = self.record(rng);
            batch.record(&bytes);
            entries.push(Own::Record(bytes));
        }
        self.write(batch, entries);
    }

    fn of(seed: u64, groups: u64) -> (Log, Rng) {
        let mut rng = Rng::new(seed);
        let mut log = Log::new();
        for _ in 0..groups {
            log.write_some(&mut rng);
        }
        (log, rng)
    }

    fn recover(&self) -> Result<Found, Damage> {
        let mut recovery = Recovery::new(IDENTITY.storage);
        for (number, bytes) in &self.files {
            recovery.segment(*number, bytes);
        }
        recovery.finish()
    }

    /// All entries that can be trusted, from the first segment on.
    fn read(&self, found: &Found) -> Vec<Own> {
        let mut read = vec![];
        for (number, bytes) in &self.files {
            if found.empty.contains(number) {
                continue;
            }
            let cut = found.cut.filter(|cut| cut.segment == *number);
            let end = cut.map_or(bytes.len(), |cut| cut.offset as usize);
            let found = entries(IDENTITY.storage, *number, &bytes[..end], 0);
            read.extend(found.map(|(_, entry)| own(&entry)));
        }
        read
    }

    fn written(&self, groups: usize) -> Vec<Own> {
        self.groups[..groups].iter().flat_map(|(.., entries)| entries.clone()).collect()
    }

    /// The last group gets to the disk in part: any sectors of it, and zeros or nothing elsewhere.
    fn tear(&mut self, rng: &mut Rng) -> bool {
        let (segment, offset, _) = self.groups[self.groups.len() - 1].clone();
        let file = self.files.get_mut(&segment).unwrap();
        let whole = file.clone();
        let kept = rng.between(offset as u64, file.len() as u64) as usize;
        if rng.below(2) == 0 {
            file.truncate(kept);
        }
        for start in (offset..file.len()).step_by(SECTOR) {
            if rng.below(2) == 0 {
                let end = (start + SECTOR).min(file.len());
                file[start..end].fill(0);
            }
        }
        *file == whole
    }
}

#[test]
fn what_was_written_is_read_and_the_log_goes_on_behind_it() {
    for seed in 0..50 {
        let (log, _) = Log::of(seed, 30);
        let found = log.recover().unwrap();
        assert_eq!(log.read(&found), log.written(log.groups.len()));
        assert_eq!((found.node, found.cut, &found.empty), (Some(IDENTITY.node), None, &vec![]));
        assert_eq!(found.end, log.end);
        assert_eq!(found.next_segment, log.writer.segment() + 1);
        assert_eq!(found.next_group, log.groups.len() as u64 + 1);
    }
}

#[test]
fn a_torn_last_group_is_cut_and_every_synced_one_is_there() {
    for seed in 0..2_000 {
        let (mut log, mut rng) = Log::of(seed, 1 + seed % 12);
        let is_whole = log.tear(&mut rng);
        let found = log.recover().unwrap_or_else(|damage| panic!("seed {seed}: {damage:?}"));
        let groups = log.groups.len() - usize::from(!is_whole);
        assert_eq!(log.read(&found), log.written(groups), "seed {seed}");
        assert_eq!(found.next_group, groups as u64 + 1, "seed {seed}");
        // It goes on, and is read again.
        if let Some(Cut { segment, offset }) = found.cut {
            log.files.get_mut(&segment).unwrap().truncate(offset as usize);
            if offset == 0 {
                log.files.remove(&segment);
            }
        }
        log.groups.truncate(groups);
        log.end = found.end;
        log.writer = Writer::new(IDENTITY, found.next_segment, found.next_group);
        log.begin_segment();
        if found.begin != Begin::Nothing {
            let bytes = log.record(&mut rng);
            let mut batch = Batch::default();
            batch.record(&bytes);
            log.write(batch, vec![Own::Record(bytes)]);
        }
        let found = log.recover().unwrap_or_else(|damage| panic!("seed {seed}: {damage:?}"));
        assert_eq!(log.read(&found), log.written(log.groups.len()), "seed {seed}");
    }
}

#[test]
fn damage_before_the_last_group_is_named_and_never_cut() {
    for seed in 0..2_000 {
        let (mut log, mut rng) = Log::of(seed, 12);
        let victim = rng.below(log.groups.len() as u64 - 1) as usize;
        let (segment, offset, _) = log.groups[victim];
        let (next_segment, next_offset, _) = log.groups[victim + 1];
        let file = log.files.get_mut(&segment).unwrap();
        let end = if next_segment == segment { next_offset } else { file.len() };
        let at = rng.between(offset as u64, end as u64 - 1) as usize;
        file[at] ^= 1 << rng.below(8);
        // What it holds besides counts only where a whole snapshot begins behind it.
        let is_behind = |found: &Found| match found.begin {
            Begin::At { segment: begin, .. } => begin > segment,
            Begin::Start | Begin::Nothing => false,
        };
        match log.recover() {
            Ok(found) => assert!(is_behind(&found), "seed {seed}: {found:?}"),
            Err(damage) => {
                assert_eq!(damage.segment, segment, "seed {seed}");
                let place = damage.offset as usize;
                assert!((offset..=at).contains(&place), "seed {seed}: {damage:?} for {at}");
            }
        }
    }
}

#[test]
fn what_is_not_there_is_missed() {
    for seed in 0..500 {
        let (log, mut rng) = Log::of(seed, 20);
        if log.files.len() < 3 {
            continue;
        }
        let numbers: Vec<u64> = log.files.keys().copied().collect();
        let gone = numbers[rng.below(numbers.len() as u64 - 1) as usize];
        let mut lacking = log.clone();
        lacking.files.remove(&gone);
        match lacking.recover() {
            Ok(found) => assert!(
                matches!(found.begin, Begin::At { segment, .. } if segment > gone),
                "seed {seed}: {found:?}"
            ),
            Err(damage) => assert_eq!((damage.segment, damage.what), (gone, What::Missing)),
        }
        // The end of a segment before the last one, at the end of a group.
        let mut lacking = log.clone();
        let ends = log.groups.windows(2).filter(|two| two[0].0 != two[1].0);
        let Some((segment, offset, _)) = ends.map(|two| two[0].clone()).next_back() else {
            continue;
        };
        if offset > 0 {
            lacking.files.get_mut(&segment).unwrap().truncate(offset);
            match lacking.recover() {
                Ok(found) => assert!(
                    matches!(found.begin, Begin::At { segment: begin, .. } if begin > segment),
                    "seed {seed}"
                ),
                Err(damage) => {
                    assert_eq!((damage.segment, damage.what), (segment + 1, What::Group))
                }
            }
        }
    }
}

/// A file of another directory or another place is none of this one.
#[test]
fn foreign_file_is_not_accepted() {
    let (log, _) = Log::of(1, 10);
    let mut other = log.clone();
    other.writer = Writer::new(Identity { storage: 9, ..IDENTITY }, 1, 1);
    other.files.clear();
    other.begin_segment();
    let mut mixed = log.clone();
    let last = *mixed.files.keys().last().unwrap();
    mixed.files.insert(last + 1, other.files[&1].clone());
    let found = mixed.recover().unwrap();
    assert_eq!((found.cut, found.end), (Some(Cut { segment: last + 1, offset: 0 }), log.end));
    let mut twice = log.clone();
    let first = twice.files[&1].clone();
    twice.files.insert(last + 1, first);
    assert_eq!(twice.recover().unwrap().end, log.end);
}

fn part(snapshot: u64, number: u64, end: LogEnd, (is_first, is_last): (bool, bool)) -> Batch {
    let mut batch = Batch::default();
    let (position, hash) = (end.position, end.hash);
    batch
        .part(&Part { snapshot, number, position, hash, is_first, is_last, bytes: b"state" })
        .unwrap();
    batch
}

/// The state begins with the newest whole snapshot and what is before may go.
#[test]
fn state_begins_with_the_newest_complete_snapshot() {
    let (mut log, mut rng) = Log::of(1, 0);
    let write_record = |log: &mut Log, rng: &mut Rng| {
        let bytes = log.record(rng);
        let mut batch = Batch::default();
        batch.record(&bytes);
        log.write(batch, vec![]);
    };
    write_record(&mut log, &mut rng);
    assert_eq!(log.recover().unwrap().begin, Begin::Start);
    let end = log.end;
    log.write(part(1, 0, end, (true, false)), vec![]);
    write_record(&mut log, &mut rng);
    assert_eq!(log.recover().unwrap().begin, Begin::Start, "it is not whole");
    log.write(part(1, 1, end, (false, true)), vec![]);
    let Begin::At { segment: 2, offset, snapshot: 1 } = log.recover().unwrap().begin else {
        panic!("{:?}", log.recover());
    };
    // One that is not whole takes nothing away, and neither does what is before going.
    log.write(part(2, 0, log.end, (true, false)), vec![]);
    log.files.remove(&1);
    let found = log.recover().unwrap();
    assert_eq!(found.begin, Begin::At { segment: 2, offset, snapshot: 1 });
    assert_eq!(found.end, log.end);
    log.write(part(3, 0, log.end, (true, false)), vec![]);
    log.write(part(2, 9, log.end, (false, true)), vec![]);
    let at = log.recover().unwrap().begin;
    assert_eq!(at, Begin::At { segment: 2, offset, snapshot: 1 }, "parts of two make none");
}

#[test]
fn what_was_given_up_is_nothing_until_a_copy_is_whole() {
    let (mut log, _) = Log::of(3, 20);
    let mut batch = Batch::default();
    batch.marks(&Marks { held_epoch: 4, ..Marks::default() });
    batch.reset();
    log.write(batch, vec![]);
    let found = log.recover().unwrap();
    assert_eq!((found.begin, found.marks.held_epoch), (Begin::Nothing, 0));
    let behind = LogEnd { position: 1_000, hash: 77 };
    log.write(part(99, 0, behind, (true, false)), vec![]);
    log.end = behind;
    log.write_some(&mut Rng::new(1));
    assert_eq!(log.recover().unwrap().begin, Begin::Nothing);
    log.write(part(99, 1, log.end, (false, true)), vec![]);
    let found = log.recover().unwrap();
    assert!(matches!(found.begin, Begin::At { snapshot: 99, .. }));
    assert_eq!(found.end, log.end);
}

/// A copy was not whole when the power went, and what came then were records from the first one on.
#[test]
fn bug_19_2_state_may_begin_with_the_first_record_after_a_cut() {
    let (mut log, mut rng) = Log::of(3, 20);
    let mut batch = Batch::default();
    batch.reset();
    log.write(batch, vec![]);
    log.write(part(7, 0, LogEnd { position: 12, hash: 5 }, (true, false)), vec![]);
    let mut batch = Batch::default();
    batch.reset();
    log.write(batch, vec![]);
    log.end = LogEnd::default();
    for _ in 0..3 {
        let bytes = log.record(&mut rng);
        let mut batch = Batch::default();
        batch.record(&bytes);
        log.write(batch, vec![]);
    }
    let found = log.recover().unwrap();
    assert!(matches!(found.begin, Begin::At { snapshot: 0, .. }), "{found:?}");
    assert_eq!((found.end.position, found.end), (3, log.end));
}

/// A state without a record may begin behind what was given up.
#[test]
fn bug_19_20_empty_state_may_begin_after_a_cut() {
    let (mut log, _) = Log::of(3, 20);
    let mut batch = Batch::default();
    batch.reset();
    log.write(batch, vec![]);
    assert_eq!(log.recover().unwrap().begin, Begin::Nothing);
    let mut batch = Batch::default();
    batch.cut(LogEnd::default());
    log.write(batch, vec![]);
    log.end = LogEnd::default();
    let found = log.recover().unwrap();
    assert!(matches!(found.begin, Begin::At { snapshot: 0, .. }), "{found:?}");
    assert_eq!(found.end, log.end);
}

/// Random bytes anywhere: no panic, and what is read is what was written. `CONCORD_LOG_FUZZ` says
/// how many logs.
#[test]
fn fuzz_no_bytes_make_it_panic_or_read_what_was_never_written() {
    let rounds =
        std::env::var("CONCORD_LOG_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    for seed in 0..rounds {
        let (mut log, mut rng) = Log::of(seed, 1 + seed % 9);
        for _ in 0..rng.between(1, 4) {
            let numbers: Vec<u64> = log.files.keys().copied().collect();
            let number = numbers[rng.below(numbers.len() as u64) as usize];
            let file = log.files.get_mut(&number).unwrap();
            let at = rng.below(file.len() as u64 + 1) as usize;
            match rng.below(6) {
                0 => file.truncate(at),
                1 => file.extend_from_slice(&[rng.next_u64() as u8; 40]),
                2 => {
                    let bytes: Vec<u8> = (0..rng.below(64)).map(|_| rng.next_u64() as u8).collect();
                    file.splice(at..at, bytes);
                }
                3 => {
                    let end = (at + SECTOR).min(file.len());
                    file[at..end].fill(0);
                }
                4 => {
                    let (from, to) = (at / 2, at);
                    let copy = file[from..to].to_vec();
                    file.extend_from_slice(&copy);
                }
                _ => {
                    if let Some(byte) = file.get_mut(at) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
            }
            if file.is_empty() {
                log.files.remove(&number);
            }
            if log.files.is_empty() {
                break;
            }
        }
        let Ok(found) = log.recover() else { continue };
        let all = log.written(log.groups.len());
        let mut at = all.iter();
        for entry in log.read(&found) {
            assert!(at.any(|written| *written == entry), "seed {seed}: {entry:?} is not in order");
        }
    }
}

#[test]
fn t5_a_record_that_does_not_follow_by_its_hash_is_damage() {
    let (mut log, mut rng) = Log::of(4, 0);
    let write = |log: &mut Log, rng: &mut Rng| {
        let bytes = log.record(rng);
        let mut batch = Batch::default();
        batch.record(&bytes);
        log.write(batch, vec![]);
    };
    write(&mut log, &mut rng);
    assert_eq!(log.recover().unwrap().end, log.end);
    // The next one is of another history.
    log.end.hash ^= 1;
    let offset = log.writer.segment_bytes();
    write(&mut log, &mut rng);
    assert_eq!(log.recover(), Err(Damage { segment: 1, offset, what: What::Record }));
}

#[test]
fn marks_of_earlier_versions_are_read_and_what_is_owed_is_known() {
    let marks = Marks { run: 7, lease_ns: 3, held_epoch: 4, ..Marks::default() };
    let bytes = marks.to_bytes();
    assert_eq!(Marks::parse(&bytes), Some(marks.clone()));
    assert_eq!(Marks::parse(&bytes[..bytes.len() - 1]), Some(marks.clone()), "without a view");
    let (view, owes) = (Some(ViewMarks { view: 5, ..ViewMarks::default() }), true);
    for marks in [Marks { owes, ..marks.clone() }, Marks { view, owes, ..marks }] {
        assert_eq!(Marks::parse(&marks.to_bytes()), Some(marks));
    }
}

#[test]
fn an_origin_stands_where_the_log_ends_or_it_is_damage() {
    for is_there in [true, false] {
        let (mut log, mut rng) = Log::of(3, 4);
        let mut batch = Batch::default();
        batch.record(&log.record(&mut rng));
        let end = if is_there { log.end } else { LogEnd { position: 1, hash: 1 } };
        batch.origin(&Origin { id: 9, end, switch_id: 2 });
        log.write(batch, vec![]);
        match (is_there, log.recover()) {
            (true, Ok(found)) => assert_eq!(log.read(&found).last(), Some(&Own::Origin(9))),
            (false, Err(damage)) => assert_eq!(damage.what, What::Record),
            (_, other) => panic!("{other:?}"),
        }
    }
}

/// Segments of a directory with that identity, one after the other.
fn segments_of(identities: &[Identity]) -> Vec<Vec<u8>> {
    let mut files = vec![];
    for (number, identity) in (1..).zip(identities) {
        let mut writer = Writer::new(*identity, number, number);
        let mut file = vec![];
        writer.begin_segment(&mut file);
        files.push(file);
    }
    files
}

/// Each segment names the engine of the state, so that another engine does not try to read it. One
/// of an earlier version, which names none, is of any; two engines are not one directory's.
#[test]
fn bug_24_6_segments_name_their_engine() {
    let of = |engine| Identity { engine, ..IDENTITY };
    let (memory, redis) = (Some(EngineKind::Memory), Some(EngineKind::Redis));
    for engine in [None, memory, redis] {
        let file = &segments_of(&[of(engine)])[0];
        assert_eq!(identity(IDENTITY.storage, 1, file), Some(of(engine)));
        assert_eq!(identity(IDENTITY.storage, 2, file), None, "of another segment");
        assert_eq!(identity(7, 1, file), None, "of another directory");
        let mut damaged = file.clone();
        damaged[HEADER_BYTES] ^= 1;
        assert_eq!(identity(IDENTITY.storage, 1, &damaged), None);
    }
    let found = |engines: &[Option<EngineKind>]| {
        let identities: Vec<Identity> = engines.iter().map(|engine| of(*engine)).collect();
        let mut recovery = Recovery::new(IDENTITY.storage);
        for (number, file) in (1..).zip(segments_of(&identities)) {
            recovery.segment(number, &file);
        }
        recovery.finish().map(|found| found.engine)
    };
    assert_eq!(found(&[None, None]), Ok(None));
    assert_eq!(found(&[None, redis, redis]), Ok(redis));
    assert_eq!(found(&[redis, None]), Ok(redis));
    let damage = found(&[redis, memory]).unwrap_err();
    assert_eq!((damage.segment, damage.what), (2, What::Stranger));
}

/// A part of more than 1 GiB was written, and no start could read it: everything behind it was
/// lost. The writer refuses what the reader would.
#[test]
fn bug_22_1_no_frame_is_written_that_could_not_be_read() {
    let mut batch = Batch::default();
    batch.committed(7);
    let before = batch.clone().bytes().to_vec();
    let part = |bytes| Part {
        snapshot: 1,
        number: 0,
        position: 7,
        hash: 0,
        is_first: true,
        is_last: true,
        bytes,
    };
    // Never touched: the system does not have to find that much memory.
    let long = vec![0; PART_BYTES_MAX + 1];
    assert_eq!(batch.part(&part(&long)), Err(TooLong { bytes: long.len() }));
    assert_eq!((batch.clone().bytes().to_vec(), batch.begins_snapshot()), (before, None));
    assert_eq!(batch.part(&part(b"short")), Ok(()));
    assert_eq!(batch.ends_snapshot(), Some(1));
}
