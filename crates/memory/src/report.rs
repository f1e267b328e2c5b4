//! Reports: members tell homes what they have as an epoch begins, and homes rebuild their ranges
//! from it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use concord_core::{Addr, Sink};
use concord_wire::concordia::{Copyset, Op, Repr, Tag};

use crate::blocks::{Assembly, parts};
use crate::directory::Doubt;
use crate::home::{Block, Range};

/// The maximum number of unacknowledged items sent to a home.
const WINDOW: u32 = 16;

/// An item of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A copy in the member's cache, or on its way into it.
    Copy {
        /// The block.
        tag: Tag,
        /// The version of the copy.
        version: u64,
        /// The content of the copy.
        data: Vec<u8>,
    },
    /// A copy that the member gave to another node's event.
    Given {
        /// The block.
        tag: Tag,
        /// The version of the copy.
        version: u64,
        /// The event: place, lane, number.
        to: (u8, u8, u64),
        /// The content of the copy.
        data: Vec<u8>,
    },
    /// An event of the member that waits for a copy.
    Taking {
        /// The block.
        tag: Tag,
        /// The event: place, lane, number.
        event: (u8, u8, u64),
    },
    /// The member was the home of a range.
    Claim {
        /// The range.
        range: u16,
        /// The epoch in which the range was rebuilt there.
        base: u32,
        /// Whether blocks that the home does not know are lost.
        is_orphan: bool,
        /// Whether the range was reported to another home since, in an epoch that others may have
        /// opened, as far as this member knows.
        is_tainted: bool,
    },
    /// The value of a block at the home.
    Known {
        /// The block.
        tag: Tag,
        /// The content of the block.
        data: Vec<u8>,
    },
    /// A block of which a member that is gone may have had a newer value.
    Doubtful {
        /// The block.
        tag: Tag,
    },
    /// A block that is lost.
    Lost {
        /// The block.
        tag: Tag,
    },
    /// The member was ready for an epoch that it did not open, or only reported to it without being
    /// a member.
    Ready {
        /// The first such epoch after the last one that it opened: other nodes may have opened that
        /// epoch, or a later one.
        from: u32,
    },
    /// The end of the report.
    End {
        /// The last epoch that the member opened: its copies are of that epoch.
        label: u32,
        /// The first epoch in which it was a member.
        since: u32,
    },
}

/// The items of a range, beside the claim to it. `doubts`: the blocks whose value here may not be
/// the newest; `stays`: whether the member that was at a place then reports now.
pub fn of_range<'a>(
    range: u16,
    own: &'a Range,
    doubts: impl Iterator<Item = (&'a Tag, &'a Doubt)> + 'a,
    stays: &'a dyn Fn(u8) -> bool,
) -> impl Iterator<Item = Item> + 'a {
    let doubts =
        doubts.filter(move |(tag, doubt)| tag.range() == range && !doubt.is_certain(stays));
    let doubtful = doubts.map(|(tag, _)| Item::Doubtful { tag: *tag });
    let lost = own.lost.iter().map(|tag| Item::Lost { tag: *tag });
    let known = own.blocks.iter();
    let known = known.map(|(tag, block)| Item::Known { tag: *tag, data: block.data.clone() });
    doubtful.chain(lost).chain(known)
}

/// The kinds of items on the wire, in the field for a packet's data provider.
mod kind {
    pub(super) const COPY: u8 = 0;
    pub(super) const GIVEN: u8 = 1;
    pub(super) const TAKING: u8 = 2;
    pub(super) const CLAIM: u8 = 3;
    pub(super) const KNOWN: u8 = 4;
    pub(super) const DOUBTFUL: u8 = 5;
    pub(super) const LOST: u8 = 6;
    pub(super) const END: u8 = 7;
    pub(super) const READY: u8 = 8;
}

impl Item {
    /// The block of the item; for an item of a range its first block, for others block 0.
    #[must_use]
    pub fn tag(&self) -> Tag {
        match self {
            Item::Copy { tag, .. }
            | Item::Given { tag, .. }
            | Item::Taking { tag, .. }
            | Item::Known { tag, .. }
            | Item::Doubtful { tag }
            | Item::Lost { tag } => *tag,
            Item::Claim { range, .. } => Tag::new(*range, 0),
            Item::Ready { .. } | Item::End { .. } => Tag(0),
        }
    }

    /// The packet of the item, and its data.
    fn packet(&self, base: &dyn Fn(Op) -> Repr) -> (Repr, &[u8]) {
        let head = |op, kind| Repr { tag: self.tag(), provider: Some(kind), ..base(op) };
        let mark = |kind| head(Op::Mark, kind);
        match self {
            Item::Copy { version, data, .. } => {
                (Repr { version: *version, ..head(Op::Tell, kind::COPY) }, data)
            }
            Item::Given { version, to: (place, lane, number), data, .. } => {
                let (place, lane, number, version) = (*place, *lane, *number, *version);
                (Repr { version, place, lane, number, ..head(Op::Tell, kind::GIVEN) }, data)
            }
            Item::Taking { event: (place, lane, number), .. } => {
                let (place, lane, number) = (*place, *lane, *number);
                (Repr { place, lane, number, ..mark(kind::TAKING) }, &[])
            }
            Item::Claim { base, is_orphan, is_tainted, .. } => {
                let (version, is_locked, is_exclusive) =
                    (u64::from(*base), *is_orphan, *is_tainted);
                (Repr { version, is_locked, is_exclusive, ..mark(kind::CLAIM) }, &[])
            }
            Item::Known { data, .. } => (head(Op::Tell, kind::KNOWN), data),
            Item::Doubtful { .. } => (mark(kind::DOUBTFUL), &[]),
            Item::Lost { .. } => (mark(kind::LOST), &[]),
            Item::Ready { from } => (Repr { number: (*from).into(), ..mark(kind::READY) }, &[]),
            Item::End { label, since } => {
                let (version, number) = (u64::from(*label), u64::from(*since));
                (Repr { version, number, ..mark(kind::END) }, &[])
            }
        }
    }

    /// The item of a packet, with all its data.
    fn of(packet: &Repr, data: Vec<u8>) -> Option<Item> {
        let Repr { tag, version, .. } = *packet;
        let event = (packet.place, packet.lane, packet.number);
        let is_tainted = packet.is_exclusive;
        Some(match packet.provider? {
            kind::COPY => Item::Copy { tag, version, data },
            kind::GIVEN => Item::Given { tag, version, to: event, data },
            kind::TAKING => Item::Taking { tag, event },
            kind::CLAIM => {
                let (range, is_orphan) = (tag.range(), packet.is_locked);
                Item::Claim { range, base: version as u32, is_orphan, is_tainted }
            }
            kind::KNOWN => Item::Known { tag, data },
            kind::DOUBTFUL => Item::Doubtful { tag },
            kind::LOST => Item::Lost { tag },
            kind::READY => Item::Ready { from: packet.number as u32 },
            kind::END => Item::End { label: version as u32, since: packet.number as u32 },
            _ => return None,
        })
    }
}

/// A report to one home, and its progress.
#[derive(Clone, Debug, Default)]
pub struct Telling {
    /// The items, in order.
    pub items: Vec<Item>,
    /// The acknowledged items after `first`.
    acknowledged: BTreeSet<u32>,
    /// The index of the first item that was not acknowledged.
    first: u32,
    /// The index of the first item that was never sent.
    unsent: u32,
}

impl Telling {
    /// Sends the items that have come into the window; with `again`, also those in it that are not
    /// acknowledged.
    pub fn send(&mut self, to: Addr, again: bool, base: &dyn Fn(Op) -> Repr, sink: &mut impl Sink) {
        let begin = if again { self.first } else { self.first.max(self.unsent) };
        let end = (self.first + WINDOW).min(self.items.len() as u32);
        for index in begin..end {
            if self.acknowledged.contains(&index) {
                continue;
            }
            let (packet, data) = self.items[index as usize].packet(base);
            let packet = Repr { copyset: Copyset(index), ..packet };
            if data.is_empty() {
                sink.send(to, &packet.packet(&[]));
            }
            for (offset_bytes, part) in parts(data) {
                sink.send(to, &Repr { offset_bytes, ..packet }.packet(part));
            }
        }
        self.unsent = self.unsent.max(end);
    }

    /// Notes that the home has the item.
    pub fn acknowledged(&mut self, index: u32) {
        if (self.first..self.unsent).contains(&index) {
            self.acknowledged.insert(index);
        }
        while self.acknowledged.remove(&self.first) {
            self.first += 1;
        }
    }
}

/// A member's report, as a home receives it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    items: BTreeMap<u32, Item>,
    parts: BTreeMap<u32, Assembly>,
    end: Option<End>,
}

/// The end of a report.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The number of items before it.
    index: u32,
    label: u32,
    since: u32,
}

impl Report {
    /// A complete report: that of a member to itself.
    #[must_use]
    pub fn whole(items: Vec<Item>) -> Report {
        let mut report = Report::default();
        for (index, item) in (0..).zip(items) {
            report.take(index, item);
        }
        report
    }

    fn take(&mut self, index: u32, item: Item) {
        match item {
            Item::End { label, since } => self.end = Some(End { index, label, since }),
            item => drop(self.items.insert(index, item)),
        }
    }

    /// Takes a packet of the report; returns whether its item is complete now.
    pub fn hear(&mut self, packet: &Repr, data: &[u8], block_bytes: usize) -> bool {
        let index = packet.copyset.0;
        if self.items.contains_key(&index) || self.end.is_some_and(|end| end.index == index) {
            return true;
        }
        let whole = if packet.op == Op::Tell {
            let new = || Assembly::new(u64::from(index), block_bytes);
            let assembly = self.parts.entry(index).or_insert_with(new);
            let Some(whole) = assembly.add(packet.offset_bytes, data) else { return false };
            self.parts.remove(&index);
            whole
        } else {
            Vec::new()
        };
        let Some(item) = Item::of(packet, whole) else { return false };
        self.take(index, item);
        true
    }

    /// Whether the report is complete.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.end.is_some_and(|end| self.items.len() == end.index as usize)
    }

    /// Whether the member has opened no epoch before.
    #[must_use]
    pub fn is_newcomers(&self) -> bool {
        self.label() == 0
    }

    /// The last epoch that the member opened.
    fn label(&self) -> u32 {
        self.end.map_or(0, |end| end.label)
    }

    /// The first epoch after that one for which it was ready.
    fn ready_from(&self) -> Option<u32> {
        self.items.values().find_map(|item| match item {
            Item::Ready { from } => Some(*from),
            _ => None,
        })
    }

    /// Whether others may have opened this epoch, which is later than the last that the member
    /// opened, as far as it knows: no member opens an epoch before all are ready.
    fn may_be_opened(&self, epoch: u32) -> bool {
        let was_member = self.end.is_some_and(|end| epoch >= end.since);
        !was_member || self.ready_from().is_some_and(|from| epoch >= from)
    }

    /// The claim of the member to a range, if it was its home.
    fn claim(&self, range: u16) -> Option<Claim> {
        self.items.values().find_map(|item| match *item {
            Item::Claim { range: of, base, is_orphan, is_tainted } if of == range => {
                Some(Claim { base, is_orphan, is_tainted })
            }
            _ => None,
        })
    }
}

/// A claim to a range.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The epoch in which the range was rebuilt there.
    base: u32,
    /// Whether blocks that the home does not know are lost.
    is_orphan: bool,
    is_tainted: bool,
}

/// Whether an epoch between two may have been opened: no report shows that it was not. If there is
/// such an epoch, then the first of them, or the first for which some member was ready, is one.
fn is_one_opened_after(newest: u32, epoch: u32, reports: &[Report]) -> bool {
    let first = newest.saturating_add(1);
    let ready = reports.iter().filter_map(Report::ready_from);
    let may_be = |at: &u32| reports.iter().all(|report| report.may_be_opened(*at));
    ready.chain([first]).filter(|at| (first..epoch).contains(at)).any(|at| may_be(&at))
}

/// Rebuilds a range from the complete reports of all members.
///
/// A member's copies are of the last epoch that it opened. A later epoch has made them stale if any
/// node opened it, even if all nodes that did are gone. But no node opens an epoch before all of
/// its members are ready: a member that was not ready shows that the epoch was not opened.
/// `is_checked`: whether this is checked ([`concord_core::Guard::UnopenedEpoch`]). `epoch` is the
/// one that begins.
#[must_use]
pub fn rebuild(range: u16, epoch: u32, reports: &[Report], is_checked: bool) -> Range {
    let newest = reports.iter().map(Report::label).max().unwrap_or(0);
    let is_last = !is_checked || !is_one_opened_after(newest, epoch, reports);
    let is_of_last = |report: &Report| is_last && report.label() == newest;
    let claims = reports.iter().filter_map(|report| {
        let claim = report.claim(range)?;
        (!claim.is_tainted || is_of_last(report)).then_some((claim, report))
    });
    let claim = claims.max_by_key(|(claim, _)| claim.base);
    // Only copies of the epoch in which the home was last rebuilt count: earlier ones are in its
    // values.
    let counts = |report: &&Report| match claim {
        Some((claim, _)) => report.label() == claim.base,
        None => is_of_last(report),
    };
    let in_range = |item: &&Item| item.tag().range() == range;
    let told: Vec<&Item> =
        reports.iter().filter(counts).flat_map(|r| r.items.values()).filter(in_range).collect();
    let taking: BTreeSet<(Tag, (u8, u8, u64))> = told
        .iter()
        .filter_map(|item| match item {
            Item::Taking { tag, event } => Some((*tag, *event)),
            _ => None,
        })
        .collect();
    let mut newest: BTreeMap<Tag, (u64, &Vec<u8>)> = BTreeMap::new();
    for item in told {
        let (tag, version, data) = match item {
            Item::Copy { tag, version, data } => (*tag, *version, data),
            // The copy is the newest as long as its event is in progress.
            Item::Given { tag, version, to, data } if taking.contains(&(*tag, *to)) => {
                (*tag, *version, data)
            }
            _ => continue,
        };
        if newest.get(&tag).is_none_or(|(known, _)| *known < version) {
            newest.insert(tag, (version, data));
        }
    }
    let is_orphan = claim.is_none_or(|(claim, _)| claim.is_orphan);
    let mut rebuilt = Range { is_orphan, ..Range::default() };
    let home = claim.into_iter().flat_map(|(_, report)| report.items.values());
    for item in home.filter(in_range) {
        match item {
            Item::Known { tag, data } => {
                rebuilt.blocks.insert(*tag, Block { version: 0, data: data.clone() });
            }
            Item::Lost { tag } | Item::Doubtful { tag } => {
                rebuilt.lost.insert(*tag);
            }
            _ => {}
        }
    }
    for (tag, (_, data)) in newest {
        rebuilt.lost.remove(&tag);
        rebuilt.blocks.insert(tag, Block { version: 0, data: data.clone() });
    }
    rebuilt.blocks.retain(|tag, _| !rebuilt.lost.contains(tag));
    rebuilt
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const TAG: Tag = Tag(7);

    /// The report of the home of range 0, which opened epoch `label` last.
    fn home(label: u32, since: u32, ready_from: Option<u32>) -> Report {
        let is_tainted = ready_from.is_some();
        let mut items = vec![
            Item::Claim { range: 0, base: label, is_orphan: false, is_tainted },
            Item::Known { tag: TAG, data: vec![1] },
        ];
        items.extend(ready_from.map(|from| Item::Ready { from }));
        items.push(Item::End { label, since });
        Report::whole(items)
    }

    /// The report of a process that has opened no epoch.
    fn newcomer(since: u32, ready_from: Option<u32>) -> Report {
        let ready = ready_from.map(|from| Item::Ready { from });
        Report::whole(ready.into_iter().chain([Item::End { label: 0, since }]).collect())
    }

    fn is_kept(epoch: u32, reports: &[Report]) -> bool {
        let range = rebuild(0, epoch, reports, true);
        assert_eq!(range.is_orphan, !range.blocks.contains_key(&TAG));
        assert!(rebuild(0, epoch, reports, false).blocks.contains_key(&TAG), "without the guard");
        !range.is_orphan
    }

    /// The home was ready for epoch 3. A member of it that was not ready shows that it was not
    /// opened; a later member does not.
    #[test]
    fn c10_one_that_was_not_ready_shows_that_nobody_opened() {
        assert!(!is_kept(4, &[home(2, 1, Some(3))]));
        assert!(is_kept(4, &[home(2, 1, Some(3)), newcomer(3, None)]));
        assert!(!is_kept(4, &[home(2, 1, Some(3)), newcomer(4, None)]));
        assert!(!is_kept(4, &[home(2, 1, Some(3)), newcomer(3, Some(3))]));
        // Each of several epochs has to be excluded.
        assert!(is_kept(6, &[home(2, 1, Some(4)), newcomer(4, None)]), "nor was the home for 3");
        assert!(!is_kept(6, &[home(2, 1, Some(3)), newcomer(4, None)]));
        assert!(is_kept(6, &[home(2, 1, Some(3)), newcomer(3, Some(4)), newcomer(4, None)]));
    }

    /// A memory begins: the first member was ready for an epoch that the second one held up.
    #[test]
    fn c10_newcomers_one_after_the_other_keep_the_beginning() {
        assert!(is_kept(3, &[home(0, 1, Some(2)), newcomer(2, None), newcomer(3, None)]));
        assert!(!is_kept(3, &[home(0, 1, Some(1)), newcomer(2, None), newcomer(3, None)]));
    }
}
