//! A disk: what is synced stays, what is not is torn or gone when the power goes.

use std::collections::BTreeMap;

use concord_core::{MS, Now};
use concord_engine::Shimmed;
use concord_engine::memory::Memory;
use concord_log::{Batch, Begin, Identity, Recovery, Writer, entries};
use concord_protocols::{DiskState, Node};

/// Another snapshot begins after so many bytes of log.
const SNAPSHOT_BYTES: u64 = 20_000;
const LEASE_MS: u64 = 60;

pub struct Disk {
    identity: Identity,
    segments: BTreeMap<u64, Vec<u8>>,
    writer: Writer,
    /// What is being written, the node's number of it, and until when.
    under_way: Option<(Batch, u64, u64)>,
    /// The snapshot that is being written, and its first segment.
    snapshot: Option<(u64, u64)>,
}

impl Disk {
    pub fn new(node: u16) -> Disk {
        let identity = Identity { storage: 900 + u64::from(node), node, engine: None };
        let (segments, writer) = (BTreeMap::new(), Writer::new(identity, 1, 1));
        Disk { identity, segments, writer, under_way: None, snapshot: None }
    }

    pub fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    pub fn write(&mut self, batch: Batch, number: u64, until_ms: u64) {
        self.under_way = Some((batch, number, until_ms));
    }

    /// The number of what is on the disk by now, if it was under way.
    pub fn finish(&mut self, now_ms: u64) -> Option<u64> {
        let (batch, number, _) = self.under_way.take_if(|(.., until_ms)| *until_ms <= now_ms)?;
        self.append(batch, false);
        Some(number)
    }

    /// The power goes: of what is under way a part is there, or nothing.
    pub fn cut(&mut self, is_torn: bool) {
        if let Some((batch, ..)) = self.under_way.take().filter(|_| is_torn) {
            self.append(batch, true);
        }
    }

    fn begin_segment(&mut self) {
        let mut bytes = vec![];
        self.writer.begin_segment(&mut bytes);
        self.segments.insert(self.writer.segment(), bytes);
    }

    fn append(&mut self, mut batch: Batch, is_torn: bool) {
        if let Some(snapshot) = batch.begins_snapshot() {
            self.begin_segment();
            self.snapshot = Some((snapshot, self.writer.segment()));
        }
        self.writer.seal(batch.bytes());
        let bytes = batch.bytes();
        let end = if is_torn { bytes.len() / 2 } else { bytes.len() };
        let segment = self.segments.entry(self.writer.segment()).or_default();
        segment.extend_from_slice(&bytes[..end]);
        let ended = self.snapshot.filter(|(id, _)| batch.ends_snapshot() == Some(*id));
        if let Some((_, first)) = ended.filter(|_| !is_torn) {
            self.segments.retain(|number, _| *number >= first);
            self.snapshot = None;
        }
    }

    /// A node that starts takes what is there.
    pub fn restore(&mut self, now: Now, node: &mut Node<Shimmed<Memory>>) {
        let storage = self.identity.storage;
        let mut recovery = Recovery::new(storage);
        self.segments.iter().for_each(|(number, bytes)| recovery.segment(*number, bytes));
        let found = recovery.finish().unwrap();
        self.segments.retain(|number, _| !found.empty.contains(number));
        if let Some(cut) = found.cut {
            self.segments.get_mut(&cut.segment).unwrap().truncate(cut.offset as usize);
            self.segments.retain(|_, bytes| !bytes.is_empty());
        }
        (self.writer, self.snapshot) =
            (Writer::new(self.identity, found.next_segment, found.next_group), None);
        let first = match found.begin {
            Begin::Start => Some((0, 0)),
            Begin::At { segment, offset, .. } => Some((segment, offset)),
            Begin::Nothing => None,
        };
        for (number, bytes) in self.segments.iter().filter(|_| first.is_some()) {
            let (segment, offset) = first.unwrap();
            let from = if *number == segment { offset } else { 0 };
            if *number >= segment {
                let all = entries(storage, *number, bytes, from);
                all.for_each(|(_, entry)| node.restore(now, &entry).unwrap());
            }
        }
        let mut marks = found.marks;
        let before_ns = marks.lease_ns;
        (marks.run, marks.lease_ns) = (marks.run + 1, LEASE_MS * MS);
        self.begin_segment();
        let mut batch = Batch::default();
        batch.marks(&marks);
        self.append(batch, false);
        let is_intact = found.begin != Begin::Nothing;
        let kept = DiskState {
            storage,
            is_intact,
            marks,
            snapshot_every_bytes: SNAPSHOT_BYTES,
            owed: false,
            acks_early: false,
        };
        node.keep(now, kept, (0, before_ns)).unwrap();
    }
}
