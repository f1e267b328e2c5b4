//! Files of a log, changed at random from a seed. No input is a panic, nothing is read that was not
//! written, and nothing is lost in silence: what is trusted goes at least as far as the last group
//! that is still as it was, or damage is named.
//!
//! `CONCORD_LOG_INPUTS` sets another number of inputs, `CONCORD_LOG_SEED` the seed; `make fuzz-log`
//! runs many.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Range;

use concord_core::hash::hash64;
use concord_core::{Epoch, ObjectId, Position, RequestNumber, Rng, SessionId};
use concord_log::{
    Batch, Begin, Damage, Entry, Found, HEADER_BYTES, Identity, Marks, Origin, Part, Recovery,
    Writer, entries,
};
use concord_wire::control::LogEnd;
use concord_wire::record::Record;

const INPUTS: u64 = 100_000;
/// Inputs that are made of one log.
const INPUTS_OF_ONE: u64 = 200;
const IDENTITY: Identity = Identity { storage: 0x5707_a6e1, node: 3, engine: None };

type Files = BTreeMap<u64, Vec<u8>>;

/// Where a group stands, and how far the entries of its log go with it.
struct Group {
    segment: u64,
    place: Range<usize>,
    entries: usize,
}

/// A directory as it was written.
struct Original {
    files: Files,
    writer: Writer,
    groups: Vec<Group>,
    entries: Vec<u64>,
    /// What is found if the log ends with each of the groups, and how many entries are read then.
    found: Vec<(Found, usize)>,
    end: LogEnd,
    snapshot: u64,
    /// The part that comes next of a snapshot that is under way.
    part: u64,
    marks: Marks,
}

fn recover(storage: u64, files: &Files) -> Result<Found, Damage> {
    let mut recovery = Recovery::new(storage);
    files.iter().for_each(|(number, bytes)| recovery.segment(*number, bytes));
    recovery.finish()
}

/// A number that another entry does not have.
fn known_by(entry: &Entry<'_>) -> u64 {
    match entry {
        Entry::Record(bytes) => hash64(1, bytes),
        Entry::Part(part) => {
            let place = [part.snapshot, part.number, part.position, part.hash];
            hash64(
                hash64(2, format!("{place:?}{}{}", part.is_first, part.is_last).as_bytes()),
                part.bytes,
            )
        }
        other => hash64(3, format!("{other:?}").as_bytes()),
    }
}

/// The entries that are trusted, from the beginning of the state on.
fn read(storage: u64, files: &Files, found: &Found) -> Vec<u64> {
    let (first, offset) = match found.begin {
        Begin::Start => (0, 0),
        Begin::At { segment, offset, .. } => (segment, offset),
        Begin::Nothing => return vec![],
    };
    let mut all = vec![];
    for (number, bytes) in files.range(first..).filter(|(n, _)| !found.empty.contains(n)) {
        let cut = found.cut.filter(|cut| cut.segment == *number);
        let bytes = &bytes[..cut.map_or(bytes.len(), |cut| cut.offset as usize)];
        let from = if *number == first { offset } else { 0 };
        all.extend(entries(storage, *number, bytes, from).map(|(_, entry)| known_by(&entry)));
    }
    all
}

impl Original {
    fn new(rng: &mut Rng, identity: Identity, garbles: bool) -> Original {
        let mut own = Original {
            files: Files::new(),
            writer: Writer::new(identity, 1, 1),
            groups: vec![],
            entries: vec![],
            found: vec![],
            end: LogEnd::default(),
            snapshot: 0,
            part: 0,
            marks: Marks { run: 1, ..Marks::default() },
        };
        own.begin_segment();
        for _ in 0..rng.between(1, 14) {
            let mut batch = own.batch(rng);
            if garbles {
                garble(rng, batch.bytes());
            }
            own.write(batch);
        }
        own
    }

    fn begin_segment(&mut self) {
        let mut bytes = vec![];
        self.writer.begin_segment(&mut bytes);
        self.files.insert(self.writer.segment(), vec![]);
        self.put(&bytes);
    }

    fn write(&mut self, mut batch: Batch) {
        if batch.begins_snapshot().is_some() {
            self.begin_segment();
        }
        self.writer.seal(batch.bytes());
        self.put(batch.bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        let (segment, storage) = (self.writer.segment(), self.writer.identity().storage);
        let file = self.files.get_mut(&segment).unwrap();
        let start = file.len();
        file.extend_from_slice(bytes);
        let read = entries(storage, segment, file, start as u64);
        self.entries.extend(read.map(|(_, entry)| known_by(&entry)));
        let place = start..file.len();
        self.groups.push(Group { segment, place, entries: self.entries.len() });
    }

    /// Remembers what is found if the log ends with each group.
    fn note_found(&mut self) {
        let (mut files, storage) = (Files::new(), self.writer.identity().storage);
        for group in &self.groups {
            let bytes = &self.files[&group.segment][group.place.clone()];
            files.entry(group.segment).or_default().extend_from_slice(bytes);
            let found = recover(storage, &files).unwrap();
            let count = read(storage, &files, &found).len();
            self.found.push((found, count));
        }
    }

    fn record(&mut self, rng: &mut Rng) -> Vec<u8> {
        let command = vec![rng.below(256) as u8; rng.below(60) as usize];
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
        bytes
    }

    fn put_part(&mut self, rng: &mut Rng, batch: &mut Batch) {
        let is_last = self.part > 0 && rng.chance(1, 2);
        let bytes = vec![7; rng.below(200) as usize];
        if self.part == 0 {
            self.snapshot += 1;
            batch.marks(&self.marks);
        }
        batch
            .part(&Part {
                snapshot: self.snapshot,
                number: self.part,
                position: self.end.position,
                hash: self.end.hash,
                is_first: self.part == 0,
                is_last,
                bytes: &bytes,
            })
            .unwrap();
        self.part = if is_last { 0 } else { self.part + 1 };
    }

    /// A group of anything that a replica writes.
    fn batch(&mut self, rng: &mut Rng) -> Batch {
        let mut batch = Batch::default();
        match rng.below(14) {
            0 => self.begin_segment(),
            1..=3 => self.put_part(rng, &mut batch),
            4 => {
                self.marks.run += 1;
                batch.marks(&self.marks);
            }
            5 => batch.committed(self.end.position),
            6 => batch.origin(&Origin { id: 9, end: self.end, switch_id: 4 }),
            7 if rng.chance(1, 2) => {
                batch.reset();
                batch.marks(&self.marks);
                (self.end, self.part) = (LogEnd::default(), 0);
            }
            _ => {}
        }
        for _ in 0..rng.between(u64::from(batch.is_empty()), 4) {
            let record = self.record(rng);
            batch.record(&record);
        }
        batch
    }

    /// The number of the last group that still is as it was. One that only begins a segment is no
    /// loss.
    fn last_intact(&self, files: &Files) -> u64 {
        let is_intact = |group: &Group| {
            let file = files.get(&group.segment);
            let now = file.and_then(|file| file.get(group.place.clone()));
            now == Some(&self.files[&group.segment][group.place.clone()])
        };
        let is_told = |group: &Group| group.place.start > 0 && is_intact(group);
        self.groups.iter().rposition(is_told).map_or(0, |index| index as u64 + 1)
    }

    /// What is made of changed files is right. Whether they are trusted.
    fn judge(&self, files: &Files) -> bool {
        let storage = self.writer.identity().storage;
        let Ok(found) = recover(storage, files) else { return false };
        let read = read(storage, files, &found);
        let last = found.next_group - 1;
        assert!(last >= self.last_intact(files), "lost in silence: {found:?}");
        let Some(index) = last.checked_sub(1).map(|index| index as usize) else {
            assert!(read.is_empty());
            return true;
        };
        let (expected, count) = &self.found[index];
        assert_eq!(
            (found.node, found.begin, found.end, &found.marks),
            (expected.node, expected.begin, expected.end, &expected.marks)
        );
        let written = &self.entries[..self.groups[index].entries];
        assert_eq!(&written[written.len() - count..], read);
        true
    }
}

/// Changes bodies of frames that are not sealed yet: they become valid frames that make no sense.
fn garble(rng: &mut Rng, frames: &mut [u8]) {
    let mut from = 0;
    while from < frames.len() {
        let length = u32::from_be_bytes(frames[from + 4..from + 8].try_into().unwrap()) as usize;
        let body = &mut frames[from + HEADER_BYTES..from + HEADER_BYTES + length];
        if !body.is_empty() && rng.chance(1, 4) {
            change(rng, body);
        }
        from += (HEADER_BYTES + length).next_multiple_of(8);
    }
}

/// Changes some bytes.
fn change(rng: &mut Rng, bytes: &mut [u8]) {
    let at = rng.below(bytes.len() as u64) as usize;
    let end = (at + rng.between(1, 16) as usize).min(bytes.len());
    match rng.below(5) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.below(256) as u8,
        2 => bytes[at..end].fill(0),
        3 => bytes[at..end].fill(0xff),
        _ => bytes[at..end].iter_mut().for_each(|b| *b = rng.below(256) as u8),
    }
}

/// One thing that disks, and people, do to files.
fn corrupt(rng: &mut Rng, files: &mut Files, groups: &[Group], other: &Files) {
    let numbers: Vec<u64> = files.keys().copied().collect();
    let Some(number) = numbers.get(rng.below(numbers.len().max(1) as u64) as usize) else { return };
    let taken = numbers[rng.below(numbers.len() as u64) as usize];
    let group = &groups[rng.below(groups.len() as u64) as usize];
    let file = files.get_mut(number).unwrap();
    let at = rng.below(file.len() as u64 + 1) as usize;
    match rng.below(12) {
        // A disk that lost the end of what it had synced.
        4 => {
            files.retain(|number, _| *number <= group.segment);
            if let Some(file) = files.get_mut(&group.segment) {
                file.truncate(group.place.end);
            }
        }
        5 => file.truncate(at),
        6 => {
            let more = rng.below(100) as usize;
            file.resize_with(at + more, || rng.below(256) as u8);
        }
        // Bytes of another place, of another file, of another directory.
        7 => {
            let from = rng.below(file.len() as u64 + 1) as usize;
            let bytes = file[from..].to_vec();
            file.truncate(at);
            file.extend_from_slice(&bytes);
        }
        8 => {
            let bytes = files[&taken].clone();
            files.insert(*number, bytes);
        }
        9 => {
            if let Some(bytes) = other.get(number).and_then(|bytes| bytes.get(at..)) {
                file.truncate(at);
                file.extend_from_slice(bytes);
            }
        }
        10 => drop(files.remove(number)),
        11 => {
            let there = files.get_mut(&group.segment);
            if let Some(bytes) = there.and_then(|file| file.get_mut(group.place.clone())) {
                bytes.fill(0);
            }
        }
        _ if file.is_empty() => {}
        _ => change(rng, file),
    }
}

/// How many inputs, and the first seed.
fn inputs() -> (u64, u64) {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    (number("CONCORD_LOG_INPUTS", INPUTS), number("CONCORD_LOG_SEED", 1))
}

#[test]
fn whatever_became_of_the_files_nothing_is_lost_in_silence() {
    let (inputs, first) = inputs();
    let (mut trusted, mut made) = (0, 0);
    for seed in first..first + inputs.div_ceil(INPUTS_OF_ONE) {
        let rng = &mut Rng::new(seed);
        let mut log = Original::new(rng, IDENTITY, false);
        log.note_found();
        let other = Original::new(rng, Identity { storage: 8, node: 2, engine: None }, false).files;
        assert!(log.judge(&log.files));
        for _ in 0..INPUTS_OF_ONE {
            let mut files = log.files.clone();
            for _ in 0..rng.between(1, 3) {
                corrupt(rng, &mut files, &log.groups, &other);
            }
            let judged =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| log.judge(&files)));
            let again = || panic!("again: CONCORD_LOG_SEED={seed} CONCORD_LOG_INPUTS=1");
            trusted += u64::from(judged.unwrap_or_else(|_| again()));
            made += 1;
        }
    }
    println!("{made} inputs, {trusted} trusted, {} damaged", made - trusted);
    assert!(trusted > made / 10 && trusted < made * 9 / 10, "inputs are thin");
}

#[test]
fn frames_that_are_valid_and_make_no_sense_are_no_panic() {
    let (inputs, first) = inputs();
    let mut trusted = 0;
    for seed in first..first + inputs {
        let log = Original::new(&mut Rng::new(seed), IDENTITY, true);
        match recover(IDENTITY.storage, &log.files) {
            Ok(found) => {
                read(IDENTITY.storage, &log.files, &found);
                trusted += 1;
            }
            Err(damage) => assert!(!damage.to_string().is_empty()),
        }
    }
    println!("{inputs} inputs, {trusted} trusted, {} damaged", inputs - trusted);
    assert!(trusted > inputs / 100 && trusted < inputs * 9 / 10, "inputs are thin");
}
