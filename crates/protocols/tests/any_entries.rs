//! Replicas that start from logs whose entries make no sense: nothing panics, and a record whose
//! bytes are not what was written is refused. (Other changes may make a log that a replica could
//! have written, and is taken.) The frames of a log are checked before (`crates/log`); here each
//! entry is well formed by itself, and says what no replica wrote, or stands where none would:
//! changed, dropped, doubled, swapped, of other positions.
//!
//! `CONCORD_ENTRIES` sets another number of logs, `CONCORD_ENTRIES_SEED` the seed.
#![allow(clippy::unwrap_used)]

use concord_core::{
    Addr, Epoch, Instant, MS, Machine as _, Now, ObjectId, Position, RequestNumber, Rng, Seq,
    SessionId, SwitchId,
};
use concord_engine::Shimmed;
use concord_engine::command::CommandBuf;
use concord_engine::memory::Memory;
use concord_log::{Entry, Identity, Marks, Origin, Part, Writer, entries};
use concord_protocols::{DiskState, Node, Phase, ReplicaConfig};
use concord_wire::control::{Config, LogEnd, Member, Membership, Message as _, Program, Protocol};
use concord_wire::record::Record;
use concord_wire::{Flags, GroupId, Status};

const LOGS: u64 = 1_000;
const ME: Member = Member { node: 1, incarnation: 20, addr: Addr { ip: 1, port: 1 } };
const PROTOCOLS: [Protocol; 4] = [Protocol::Chain, Protocol::Vr, Protocol::NoPaxos, Protocol::Raft];

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: ms }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

fn node(protocol: Protocol) -> Node<Shimmed<Memory>> {
    let setup = ReplicaConfig::new(ME, Addr { ip: 1, port: 300 });
    Node::new(protocol, setup, Shimmed::new(Memory::new(0)))
}

/// An entry that owns what it says.
#[derive(Clone, Debug)]
enum Own {
    Record(Vec<u8>),
    Part { number: u64, position: u64, hash: u64, is_first: bool, is_last: bool, bytes: Vec<u8> },
    Reset,
    Committed(u64),
    Cut(LogEnd),
    Origin(Origin),
}

impl Own {
    fn of(entry: &Entry<'_>) -> Option<Own> {
        Some(match entry {
            Entry::Record(bytes) => Own::Record(bytes.to_vec()),
            Entry::Part(p) => Own::Part {
                number: p.number,
                position: p.position,
                hash: p.hash,
                is_first: p.is_first,
                is_last: p.is_last,
                bytes: p.bytes.to_vec(),
            },
            Entry::Reset => Own::Reset,
            Entry::Committed(position) => Own::Committed(*position),
            Entry::Cut(end) => Own::Cut(*end),
            Entry::Origin(origin) => Own::Origin(*origin),
            Entry::Marks(_) => return None,
        })
    }

    fn entry(&self) -> Entry<'_> {
        match self {
            Own::Record(bytes) => Entry::Record(bytes),
            Own::Part { number, position, hash, is_first, is_last, bytes } => Entry::Part(Part {
                snapshot: 1,
                number: *number,
                position: *position,
                hash: *hash,
                is_first: *is_first,
                is_last: *is_last,
                bytes,
            }),
            Own::Reset => Entry::Reset,
            Own::Committed(position) => Entry::Committed(*position),
            Own::Cut(end) => Entry::Cut(*end),
            Own::Origin(origin) => Entry::Origin(*origin),
        }
    }
}

/// A command as records have it.
fn command(words: &str) -> Vec<u8> {
    CommandBuf::new().encode(1, words.split(' ').map(str::as_bytes)).to_vec()
}

/// A record of any kind behind `end`: two sessions register, and write; or whatever else comes to
/// mind.
fn record(rng: &mut Rng, end: &mut LogEnd, registered: &mut u64) -> Own {
    let words =
        ["SET k v", "INCR n", "LPUSH l a", "SET t v PX 100", "HSET h f v", "DEL k", "NOSUCH x"];
    let mut bytes = command(words[rng.below(words.len() as u64) as usize]);
    let is_new = *registered < 2 || rng.chance(1, 10);
    let mut flags = if is_new { Flags::REGISTER } else { Flags::default() };
    if is_new {
        *registered += 1;
        bytes.clear();
    }
    if rng.chance(1, 20) && !bytes.is_empty() {
        let index = rng.below(bytes.len() as u64) as usize;
        bytes[index] ^= 1 << rng.below(8);
    }
    if rng.chance(1, 30) {
        flags = Flags(rng.below(1 << 16) as u16);
    }
    let made = Record {
        position: Position(end.position + 1),
        epoch: Epoch(1),
        flags,
        seq: Seq { switch_id: SwitchId(1), counter: end.position as u32 + 1 },
        session: SessionId(if is_new { *registered } else { 1 + rng.below(*registered) }),
        request: RequestNumber(rng.below(40)),
        now_ms: 1_000 + end.position,
        obj_id: ObjectId(rng.below(8) as u32),
        refused: if rng.chance(1, 30) { Status::Malformed } else { Status::Ok },
        command: &bytes,
        ..Record::EMPTY
    };
    let mut encoded = Vec::new();
    end.hash = made.emit(end.hash, &mut encoded);
    end.position += 1;
    Own::Record(encoded)
}

/// What a replica that has such a log alone writes as a snapshot of it.
fn snapshot(log: &[Own]) -> Vec<Own> {
    let mut replica = node(Protocol::Chain);
    for entry in log {
        let _ = replica.restore(at(1_000), &entry.entry());
    }
    let marks = Marks { run: 2, ..Marks::default() };
    let (storage, is_intact, snapshot_every_bytes) = (7, true, 1 << 20);
    let (owed, acks_early) = (false, false);
    let kept = DiskState { storage, is_intact, marks, snapshot_every_bytes, owed, acks_early };
    if replica.keep(at(1_000), kept, (0, 0)).is_err() {
        return vec![];
    }
    let config = Config {
        group: GroupId(0),
        epoch: 1,
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: Addr { ip: 1, port: 200 },
        kind: Protocol::Chain.into(),
        program: Program::of(Protocol::Chain, true),
        members: vec![ME],
        joining: vec![],
    };
    let mut packet = vec![];
    Membership::Configure(config.into()).emit(&mut packet);
    replica.handle(at(1_001), ME.addr, &mut packet, &mut vec![]);
    let mut writer = Writer::new(Identity { storage, node: ME.node, engine: None }, 1, 1);
    let (mut file, mut snapshot) = (Vec::new(), Vec::new());
    writer.begin_segment(&mut file);
    for ms in 1_001..1_040 {
        if ms == 1_010 {
            assert_eq!(replica.phase(), Phase::Open);
            replica.renew_snapshot();
        }
        replica.tick(at(ms), &mut vec![]);
        replica.flush(at(ms), &mut vec![]);
        while let Some(mut batch) = replica.poll_persist() {
            writer.seal(batch.what.bytes());
            file.extend_from_slice(batch.what.bytes());
            replica.persisted(at(ms), batch.number, &mut vec![]);
        }
    }
    for (_, entry) in entries(storage, 1, &file, 0) {
        snapshot.extend(Own::of(&entry).filter(|own| matches!(own, Own::Part { .. })));
    }
    snapshot
}

/// A position near those that are there, or any.
fn position(rng: &mut Rng, end: u64) -> u64 {
    match rng.below(4) {
        0 => rng.next_u64(),
        1 => u64::MAX - rng.below(3),
        _ => rng.below(end + 3),
    }
}

/// A log: records, perhaps behind a snapshot, and all else that a log has.
fn log(rng: &mut Rng) -> Vec<Own> {
    let (mut end, mut registered) = (LogEnd::default(), 0);
    let mut all: Vec<Own> =
        (0..rng.below(30)).map(|_| record(rng, &mut end, &mut registered)).collect();
    if rng.chance(1, 2) {
        let parts = snapshot(&all);
        if !parts.is_empty() {
            all = parts;
        }
    }
    for _ in 0..rng.below(20) {
        all.push(record(rng, &mut end, &mut registered));
        if rng.chance(1, 5) {
            all.push(Own::Committed(rng.below(end.position + 1)));
        }
    }
    if rng.chance(1, 8) {
        all.push(Own::Origin(Origin { id: 3, end, switch_id: 9 }));
    }
    all
}

/// Makes nonsense of it in one place; whether that is in the bytes of a record.
fn change(rng: &mut Rng, log: &mut Vec<Own>) -> bool {
    let length = log.len() as u64;
    let index = rng.below(length) as usize;
    let is_record = matches!(log[index], Own::Record(_));
    match rng.below(8) {
        0 => drop(log.remove(index)),
        1 => log.insert(rng.below(length) as usize, log[index].clone()),
        2 => log.swap(index, rng.below(length) as usize),
        3 => log.insert(index, Own::Committed(position(rng, length))),
        4 => {
            let end = LogEnd { position: position(rng, length), hash: rng.next_u64() };
            log.insert(index, Own::Cut(end));
        }
        5 => {
            let end = LogEnd { position: position(rng, length), hash: rng.next_u64() };
            log.insert(index, Own::Origin(Origin { id: 5, end, switch_id: rng.next_u64() as u32 }));
        }
        6 => log.insert(index, Own::Reset),
        _ => match &mut log[index] {
            Own::Record(bytes) | Own::Part { bytes, .. }
                if !bytes.is_empty() && rng.chance(2, 3) =>
            {
                let at = rng.below(bytes.len() as u64) as usize;
                match rng.below(3) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, rng.below(256) as u8),
                    _ => bytes[at] ^= 1 << rng.below(8),
                }
                return is_record;
            }
            Own::Part { number, position: at, hash, is_first, is_last, .. } => match rng.below(5) {
                0 => *number = position(rng, length),
                1 => *at = position(rng, length),
                2 => *hash = rng.next_u64(),
                3 => *is_first = !*is_first,
                _ => *is_last = !*is_last,
            },
            _ => {}
        },
    }
    false
}

/// Goes through a log; whether all of it was taken.
fn restore(protocol: Protocol, log: &[Own]) -> bool {
    let mut replica = node(protocol);
    for own in log {
        if replica.restore(at(1_000), &own.entry()).is_err() {
            return false;
        }
    }
    let marks = Marks { run: 2, ..Marks::default() };
    let (owed, acks_early, is_intact) = (false, false, true);
    let kept =
        DiskState { storage: 7, is_intact, marks, snapshot_every_bytes: 1 << 20, owed, acks_early };
    if replica.keep(at(1_000), kept, (0, 0)).is_err() {
        return false;
    }
    // What comes after it: time, and a batch for the disk.
    for ms in [1_001, 1_200, 3_000] {
        replica.tick(at(ms), &mut vec![]);
        replica.flush(at(ms), &mut vec![]);
        while let Some(batch) = replica.poll_persist() {
            replica.persisted(at(ms), batch.number, &mut vec![]);
        }
    }
    true
}

/// Entries that make no sense panic nothing and a damaged record is refused.
#[test]
fn senseless_entries_do_not_panic() {
    let seed = setting("CONCORD_ENTRIES_SEED", 1);
    let (mut taken, mut refused, mut records) = (0u64, 0u64, 0u64);
    for number in 0..setting("CONCORD_ENTRIES", LOGS) {
        let mut rng = Rng::new(seed << 32 | number);
        let original = log(&mut rng);
        for protocol in PROTOCOLS {
            let mut log = original.clone();
            let (changes, mut damaged) = (rng.below(4), 0u64);
            for _ in 0..changes {
                if !log.is_empty() {
                    damaged += u64::from(change(&mut rng, &mut log));
                }
            }
            let whole = std::panic::catch_unwind(|| restore(protocol, &log));
            let whole =
                whole.unwrap_or_else(|_| panic!("log {number} of seed {seed}, {protocol:?}"));
            // Other changes may make a log that a replica could have written.
            if (changes, damaged) == (1, 1) {
                assert!(!whole, "log {number} of seed {seed}, {protocol:?}: a record is damaged");
                records += 1;
            }
            (taken, refused) = (taken + u64::from(whole), refused + u64::from(!whole));
        }
    }
    println!("{taken} logs taken, {refused} refused; {records} with one damaged record");
    assert!(taken > 0 && refused > 0 && records > 0);
}
