//! NOPaxos: numbered writes as they come from the switch, and which number is missed ([`super::gaps`]).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, MS, Position, Seq, SwitchId, US};

/// Most writes that wait for a missing one before them.
const EARLY_MAX: usize = 4_096;
/// Most missing writes that the leader asks for at once.
pub(super) const LACKS_MAX: u64 = 64;
/// How long a number may be late before the leader asks for it.
const REORDER_NS: Duration = 500 * US;
/// How often it asks.
const ASK_NS: Duration = 2 * MS;
/// How long it is missed before the replicas agree that it is lost.
const LOST_NS: Duration = 8 * MS;

/// What comes from the switch.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// Writes whose turn has not come, by number.
    early: BTreeMap<Seq, Vec<u8>>,
    /// Numbers up to there are not waited for.
    floor: Seq,
    /// Leader: the number that others are known to come behind, and which is not here.
    missed: Option<Missed>,
}

/// A number that the leader lacks.
#[derive(Clone, Copy, Debug)]
struct Missed {
    number: Seq,
    since: Instant,
    /// When to ask for it, or to give it up.
    ask_at: Instant,
}

/// What the leader does about a number that is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// Nothing now.
    None,
    /// It asks the others for so many writes.
    Ask(u16),
    /// It has all agree that the write is lost.
    Lost,
}

/// The number after `numbered`.
pub(super) fn after(numbered: Seq) -> Seq {
    Seq::new(numbered.switch_id, numbered.counter.saturating_add(1))
}

impl Sequence {
    /// The number up to which a view of switch `switch_id` has all writes, or does without them, whose log
    /// has `last_seq`.
    pub(super) fn numbered(&self, last_seq: Seq, switch_id: u32) -> Seq {
        let session = Seq::new(SwitchId(switch_id), 0);
        last_seq.max(self.floor).max(session)
    }

    pub(super) fn floor(&self) -> Seq {
        self.floor
    }

    /// The floor of a view whose leader said so.
    pub(super) fn set_floor(&mut self, floor: Seq) {
        self.floor = floor;
    }

    /// Draws the floor of a view that begins with all up to `numbered`, were there no floor: what nobody who
    /// voted has logged is given up, up to the first write that is here.
    pub(super) fn draw_floor(&mut self, numbered: Seq) {
        let first = self.early.keys().find(|seq| **seq > numbered);
        let of_switch = first.filter(|seq| seq.switch_id == numbered.switch_id);
        let below = |seq: &Seq| Seq::new(seq.switch_id, seq.counter - 1);
        self.floor = of_switch.map_or(numbered, below);
    }

    /// Holds a write until its turn comes, if there is room.
    pub(super) fn hold(&mut self, seq: Seq, packet: &[u8]) -> bool {
        let has_room = self.early.len() < EARLY_MAX;
        if has_room {
            self.early.insert(seq, packet.to_vec());
        }
        has_room
    }

    /// The held write with the lowest number.
    pub(super) fn first(&self) -> Option<(Seq, &[u8])> {
        self.early.first_key_value().map(|(seq, packet)| (*seq, &packet[..]))
    }

    /// Takes it.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.early.pop_first().map(|(_, packet)| packet)
    }

    /// The held write that will stand at `position` of a log that ends at `end` with all up to `numbered`:
    /// within a view positions rise as numbers do.
    pub(super) fn at(&self, position: Position, end: Position, numbered: Seq) -> Option<&[u8]> {
        let next = after(numbered);
        let ahead = position.0 - end.0 - 1;
        let counter = u64::from(next.counter).saturating_add(ahead).min(u32::MAX.into());
        let number = Seq::new(next.switch_id, counter as u32);
        self.early.get(&number).map(|packet| &packet[..])
    }

    /// Leader: whether the number `next` is missed: later ones are here, or somebody's log is longer
    /// (`is_behind`). True if that is news.
    pub(super) fn note_missed(
        &mut self,
        now: Instant,
        next: Seq,
        is_behind: impl FnOnce() -> bool,
    ) -> bool {
        let later = self.early.keys().next().is_some_and(|first| *first > next);
        if !(later || is_behind()) {
            self.missed = None;
            return false;
        }
        let is_news = self.missed.is_none_or(|missed| missed.number != next);
        if is_news {
            self.missed = Some(Missed { number: next, since: now, ask_at: now.after(REORDER_NS) });
        }
        is_news
    }

    /// Nothing is missed.
    pub(super) fn miss_nothing(&mut self) {
        self.missed = None;
    }

    /// Whatever is missed is so from now on: there is nobody to ask yet.
    pub(super) fn wait(&mut self, now: Instant) {
        if let Some(missed) = &mut self.missed {
            *missed = Missed { since: now, ask_at: now.after(ASK_NS), ..*missed };
        }
    }

    /// When something is to be done about a missing number.
    pub(super) fn ask_at(&self) -> Instant {
        self.missed.map_or(Instant::NEVER, |missed| missed.ask_at)
    }

    /// What is to be done now, where `next` is the number that the log needs.
    pub(super) fn gap(&mut self, now: Instant, next: Seq) -> Gap {
        let Some(missed) = self.missed.as_mut().filter(|m| now >= m.ask_at) else {
            return Gap::None;
        };
        if now.since(missed.since) >= LOST_NS {
            return Gap::Lost;
        }
        missed.ask_at = now.after(ASK_NS);
        // Within a view positions rise as numbers do.
        let first_here = self.early.keys().next();
        let lacked =
            first_here.map_or(1, |seq| u64::from(seq.counter).saturating_sub(next.counter.into()));
        Gap::Ask(lacked.clamp(1, LACKS_MAX) as u16)
    }
}
