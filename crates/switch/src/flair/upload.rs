//! The tasks of the switch's own processor: it takes the start of a session (§4.3.5) and weights
//! (§4.4.2) from the leader, and repairs groups whose write or reply was lost (§4.3.6, "Packet
//! Loss").

use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Guard, Guards, Instant, ObjectId};
use concord_wire::control::Message as _;
use concord_wire::flair::{GROUPS_OF_CHUNK, REPLICAS_MAX, SessionMessage, Sid, Step, Weights};
use concord_wire::{Addr, Flags, Op, Repr};

use super::forwarding::EVEN;
use super::registers::{Concerns, Registers};
use crate::program::Injection;

/// The number of groups in one step of a scan.
const LOOK: u32 = 512;

/// The upload that is in progress, or was the last one.
#[derive(Clone, Debug)]
pub(super) struct Upload {
    /// The highest session that began here; only a new switch id resets it.
    sid: Sid,
    /// The node of each bit in a set of followers.
    replicas: Vec<u16>,
    /// Which chunks have been uploaded.
    chunks: Vec<bool>,
    is_active: bool,
    /// The weights by which reads are distributed, and the round in which the leader sent them;
    /// even weights and 0 before the first.
    weights: Weights,
    round: u32,
}

impl Default for Upload {
    fn default() -> Upload {
        let (sid, replicas, chunks) = (Sid(0), Vec::new(), Vec::new());
        Upload { sid, replicas, chunks, is_active: false, weights: EVEN, round: 0 }
    }
}

concord_core::counters! {
    /// Counts of the leader's messages by their effect.
    pub struct UploadCounters {
        /// Sessions that leaders began.
        sessions_begun,
        /// Chunks of key groups' states received from leaders.
        chunks_taken,
        /// Sessions that became active.
        sessions_activated,
        /// Messages dropped because they belong to a session that is over or to another view, or
        /// come from a node that is not the leader.
        session_messages_refused,
        /// Requests to activate a session refused because chunks of its key groups are missing.
        activations_early,
        /// Updates of the weights by which reads are shared among replicas.
        weights_taken,
    }
}

impl Upload {
    /// The node of each bit in a set of followers.
    pub(super) fn replicas(&self) -> &[u16] {
        &self.replicas
    }

    /// Forgets the upload: no session is active. Session ids are not used again.
    pub(super) fn forget(&mut self) {
        self.replicas.clear();
        self.chunks.clear();
        self.is_active = false;
        (self.weights, self.round) = (EVEN, 0);
    }

    /// The weights by which reads are distributed.
    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Processes a message of the leader, and returns the step that is done. Weights are taken only
    /// if `load_awareness`.
    pub(super) fn take(
        &mut self,
        message: &SessionMessage,
        registers: &mut Registers,
        (guards, load_awareness): (Guards, bool),
        count: &mut UploadCounters,
    ) -> Option<Step> {
        match message {
            SessionMessage::Begin { sid, replicas, all_keys, .. } => {
                if *sid < self.sid || sid.0 == 0 || replicas.len() > REPLICAS_MAX {
                    return refused(count);
                }
                let groups = registers.seq_num.size();
                if *sid > self.sid {
                    registers.begin(*sid, *all_keys);
                    let chunks = alloc::vec![false; groups.div_ceil(GROUPS_OF_CHUNK)];
                    let replicas = replicas.clone();
                    *self = Upload { sid: *sid, replicas, chunks, ..Upload::default() };
                    count.sessions_begun += 1;
                }
                // A session that was forgotten does not begin again.
                let is_here = !self.chunks.is_empty();
                let begun = Step::Begun { groups: groups as u32, load_awareness };
                is_here.then_some(begun).or_else(|| refused(count))
            }
            SessionMessage::Groups { sid, chunk, groups, .. } => {
                let at = *chunk as usize;
                let is_whole = groups.len() == GROUPS_OF_CHUNK.min(registers.seq_num.size());
                if *sid != self.sid || at >= self.chunks.len() || !is_whole {
                    return refused(count);
                }
                // Once the session is active, a late copy of a chunk would restore an old state.
                if !self.is_active || !guards.on(Guard::UploadOnce) {
                    let first = at * GROUPS_OF_CHUNK;
                    for (group, index) in groups.iter().zip(first..) {
                        registers.upload(Concerns::Group(index as u32), *group);
                    }
                    self.chunks[at] = true;
                    count.chunks_taken += 1;
                }
                Some(Step::Chunk { chunk: *chunk })
            }
            SessionMessage::Activate { sid, probe, .. } => {
                if *sid != self.sid || self.chunks.is_empty() {
                    return refused(count);
                }
                // Trap T28. A group that was not uploaded is unstable: this check serves reads, not
                // safety.
                if !self.chunks.iter().all(|here| *here) {
                    count.activations_early += 1;
                    return None;
                }
                if !self.is_active {
                    registers.activate(Instant(*probe));
                    self.is_active = true;
                    count.sessions_activated += 1;
                }
                Some(Step::Active)
            }
            SessionMessage::Weights { sid, round, weights, .. } => {
                if *sid != self.sid || !self.is_active || !load_awareness {
                    return refused(count);
                }
                // Late weights must not replace newer ones.
                if *round > self.round {
                    (self.weights, self.round) = (*weights, *round);
                    count.weights_taken += 1;
                }
                Some(Step::Weighed { round: *round })
            }
            SessionMessage::Confirmed { .. } => refused(count),
        }
    }

    /// A new switch id: the leader of its group counts sessions from the start.
    pub(super) fn begin_anew(&mut self) {
        *self = Upload::default();
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }
}

fn refused<T>(count: &mut UploadCounters) -> Option<T> {
    count.session_messages_refused += 1;
    None
}

/// The message that confirms a step to the leader.
pub(super) fn confirmation(to: &SessionMessage, step: Step, at: Instant) -> Injection {
    let (from, view) = to.sender();
    let (switch, sid, probe) = (to.switch().0, to.sid(), at.0);
    let (view, from) = (view.0, from.0);
    let confirmed = SessionMessage::Confirmed { view, from, switch, sid, step, probe };
    let mut packet = Vec::new();
    confirmed.emit(&mut packet);
    Injection::new(&packet)
}

/// Repairs groups that stay unstable: if two scans find the same number, the group gets a numbered
/// no-op, whose reply makes it stable.
#[derive(Clone, Debug)]
pub(super) struct Repair {
    addr: Addr,
    interval_ns: Duration,
    /// The number of bits by which an object id is shifted to give its group.
    shift: u32,
    /// The number that each unstable group had at the last scan, all keys last; `None` if it was
    /// stable.
    seen: Vec<Option<u32>>,
    /// The next group to scan.
    next: u32,
    /// The number of groups that are left in this step.
    left: u32,
    /// When the next step is due. Meaningful only while groups are unstable.
    at: Instant,
    waiting: bool,
    /// The number of no-ops sent.
    pub(super) noops: u64,
}

impl Repair {
    pub(super) fn new(addr: Addr, interval_ns: Duration, group_bits: u8) -> Repair {
        let seen = alloc::vec![None; (1usize << group_bits) + 1];
        let shift = 32 - u32::from(group_bits);
        let at = Instant::NEVER;
        Repair { addr, interval_ns, shift, seen, next: 0, left: 0, at, waiting: false, noops: 0 }
    }

    /// Sets the timer from the number of unstable groups.
    #[inline]
    pub(super) fn look(&mut self, now: Instant, repairs: bool, unstable: u32) {
        let waiting = repairs && unstable > 0;
        if waiting && !self.waiting {
            self.at = now.after(self.interval_ns);
            self.left = 0;
            self.seen.fill(None);
        }
        self.waiting = waiting;
    }

    pub(super) fn deadline(&self) -> Deadline {
        if self.waiting {
            Deadline { at: self.at, reason: "repair of unstable groups" }
        } else {
            Deadline::NONE
        }
    }

    /// The next no-op that is due.
    pub(super) fn upkeep(&mut self, now: Instant, registers: &Registers) -> Option<Injection> {
        if !self.waiting {
            return None;
        }
        let all = self.seen.len() as u32 - 1;
        if self.left == 0 {
            if now < self.at {
                return None;
            }
            self.left = LOOK.min(all + 1);
        }
        while self.left > 0 {
            let at = self.next;
            self.next = if at == all { 0 } else { at + 1 };
            self.left -= 1;
            let concerns = if at == all { Concerns::All } else { Concerns::Group(at) };
            let seq_num = registers.unstable_since(concerns);
            let seen = core::mem::replace(&mut self.seen[at as usize], seq_num);
            if seq_num.is_some() && seen == seq_num {
                // The no-op gets a new number, which the next scan is to see first.
                self.seen[at as usize] = None;
                self.noops += 1;
                self.end_look(now);
                return Some(self.noop(concerns));
            }
        }
        self.end_look(now);
        None
    }

    fn end_look(&mut self, now: Instant) {
        if self.left == 0 {
            self.at = now.after(self.interval_ns);
        }
    }

    /// A numbered write that changes no data. Its reply ends at the switch.
    fn noop(&self, concerns: Concerns) -> Injection {
        let (flags, obj_id) = match concerns {
            Concerns::Group(group) => (Flags::NOOP, ObjectId(group << self.shift)),
            Concerns::All | Concerns::Nothing => (Flags::NOOP.with(Flags::WILDCARD), ObjectId(0)),
        };
        let noop = Repr { flags, obj_id, client: self.addr, ..Repr::new(Op::Write) };
        Injection::new(&noop.header(0))
    }
}
