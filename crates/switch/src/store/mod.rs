//! The part that all programs for replicated stores share: the roles of nodes, packets that are
//! only passed on, drop reasons and counters.

use alloc::vec::Vec;

use concord_core::{Seq, SwitchId};
use concord_pisa::hash::SPREADING;
use concord_pisa::{Crc32, Verdict};
use concord_wire::control::Config;
use concord_wire::{Addr, Flags, Op, PacketMut, Reason, Repr, WireError};

use crate::program::Refused;

/// The reason why a packet ends at the switch. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is not one of Harmonia's.
    Malformed(WireError),
    /// The switch does not know its replicas, or no longer does.
    Unconfigured,
    /// A write found no slot (Harmonia §7.2); its client retries.
    TableFull,
    /// The counter is exhausted: the switch needs a new id (trap T20).
    SeqExhausted,
    /// A Pull names a node that is not a member.
    NoSuchNode,
    /// A reply has no client address.
    NoClient,
    /// The sequencer cannot stamp a write: it has not heard the log's time yet (NOPaxos).
    Unstamped,
    /// A write of several objects was recirculated under another switch id than its number's.
    Outlived,
    /// The packet's work is done: a completion, a sweep, or the reply to the switch's own no-op.
    Consumed,
}

concord_core::counters! {
    /// Counts of what a program for replicas did: one for every path and every drop reason. The
    /// counters of paths that a program does not have stay 0.
    pub struct Counters {
        /// Numbered no-ops that the switch's control plane sent, so that reads become fast (trap
        /// T18).
        noops_sent,
        /// Rounds of the sweep for stray entries begun (trap T19).
        sweep_laps,
        /// Writes that got a sequence number and a place in the dirty set.
        writes_tracked,
        /// Writes of several objects that were forwarded once all objects were in the dirty set.
        writes_several,
        /// Writes of several objects that other writes overtook while they were recirculated; they
        /// were forwarded as writes of all keys.
        writes_overtaken,
        /// Writes that found no free slot of the dirty set on several attempts, and were forwarded
        /// as writes of all keys. A rise means that the dirty set is too small.
        writes_overdue,
        /// Writes of all keys that got a sequence number (trap T13).
        writes_wildcard,
        /// No-ops of the control plane that got a sequence number (trap T18).
        writes_noop,
        /// Writes forwarded by a program that has no dirty set.
        writes_unaided,
        /// Writes that found no free slot of the dirty set and were forwarded as no-ops (NOPaxos,
        /// trap T23); their clients send them again.
        writes_as_noop,
        /// Writes forwarded although they found no free slot of the dirty set; only in tests that
        /// remove the guard against it.
        writes_untracked,
        /// Fragments of large writes forwarded to the head.
        write_bodies,
        /// Completions of writes with the current switch id.
        completions,
        /// Completions of writes with another switch's id, ignored (Harmonia §6.3).
        completions_foreign,
        /// Completions with the current switch id and a number that it has not given out, ignored.
        completions_impossible,
        /// Reads sent to a single replica, which answers alone (fast path).
        reads_fast,
        /// Fast-path reads of several objects; they count as fast-path reads, too.
        reads_several,
        /// Reads sent to the normal protocol because a write of their object is in progress.
        reads_slow_dirty,
        /// Reads sent to the normal protocol because no write with the current switch id has
        /// completed yet.
        reads_slow_not_ready,
        /// Reads sent to the normal protocol because a write of all keys is in progress.
        reads_slow_wildcard,
        /// Reads sent to the normal protocol because the group's program has no dirty set.
        reads_slow_unaided,
        /// Reads sent to any replica: one that may not answer alone asks the tail (CRAQ), or
        /// forwards the read to its leader (follower leases).
        reads_spread,
        /// Reads sent to the normal protocol because they read all keys.
        reads_slow_all_keys,
        /// Stray dirty-set entries removed by a read of their object.
        strays_read,
        /// Stray dirty-set entries replaced by a write.
        strays_replaced,
        /// Stray dirty-set entries removed by the sweep.
        strays_swept,
        /// Replies, and fragments of long replies, forwarded to clients.
        replies,
        /// Requests for further fragments of long replies, forwarded to the replicas that hold
        /// them.
        pulls,
        /// Writes dropped because the dirty set had no free slot (Harmonia §7.2); clients send them
        /// again. A rise means that the dirty set is too small.
        dropped_table_full,
        /// Writes dropped because all sequence numbers of the switch id are used up (trap T20).
        dropped_seq_exhausted,
        /// Packets dropped because the switch has no configuration yet.
        dropped_unconfigured,
        /// Requests for fragments dropped because the node that they name is no member.
        dropped_no_such_node,
        /// Replies dropped because they do not contain the address of their client.
        dropped_no_client,
        /// Writes dropped because the switch orders writes and does not know the log's time yet
        /// (NOPaxos).
        unstamped,
        /// Writes of several objects dropped because the switch id changed while they were
        /// recirculated.
        outlived,
        /// Packets that end at the switch by design, such as completions and sweeps.
        consumed,
        /// Packets dropped because they are shorter than their length field says.
        malformed_truncated,
        /// Packets dropped because they do not begin with Concord's magic number.
        malformed_magic,
        /// Packets dropped because they have another version of the wire format.
        malformed_version,
        /// Packets dropped because their operation is unknown.
        malformed_op,
        /// Packets dropped because a field is out of range.
        malformed_field,
    }
}

/// The number of rows in the table by which replicas are chosen, a power of two: a pipeline has no
/// remainder.
pub const CHOICES: usize = 1_024;
/// The hash unit that picks a row of that table.
static CHOICE: Crc32 = Crc32::new(SPREADING);

/// The match-action tables: the address of each role. Only the control plane writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// The switch's own id, the first half of every number given out.
    pub switch_id: SwitchId,
    /// The switch's own address: packets to it end here.
    pub switch: Addr,
    /// The node that orders writes; under NOPaxos the leader.
    pub head: Addr,
    /// The node that answers the reads of the normal protocol.
    pub reader: Addr,
    /// The replicas that may answer fast or spread reads: node number and address. Never empty.
    pub replicas: Vec<(u16, Addr)>,
    /// The nodes that get the writes of a sequencer: the replicas, and members that answer no reads
    /// (yet).
    receivers: Vec<Addr>,
    /// [`CHOICES`] rows of replicas, whose frequencies differ by at most one. Neighbouring rows
    /// differ, the last and the first too.
    choices: Vec<Addr>,
}

impl Routes {
    /// The tables of a configuration; `None` if it has no members.
    #[must_use]
    pub fn of(config: &Config) -> Option<Routes> {
        let replicas: Vec<_> = config.members.iter().map(|m| (m.node, m.addr)).collect();
        let receivers = config.members.iter().chain(&config.joining).map(|m| m.addr).collect();
        Some(Routes {
            switch_id: SwitchId(config.switch_id),
            switch: config.switch,
            head: config.head()?.addr,
            // Workers have no reader.
            reader: config.reader().or(config.head())?.addr,
            choices: choices(&replicas),
            replicas,
            receivers,
        })
    }

    /// The replica that gets a fast or spread read: the row of the table that the request picks.
    #[must_use]
    #[inline]
    pub fn replica(&self, hdr: &Repr, run_bits: u8) -> Addr {
        let choice = choice(hdr, run_bits);
        self.choices.get(choice as usize & (CHOICES - 1)).map_or(self.reader, |addr| *addr)
    }
}

/// The row of a table of choices that a request picks. Harmonia's Algorithm 1, line 12, says
/// "random"; a hash of all but the lowest `run_bits` of the request is used, which every rendering
/// of a program can compute in the same way. Clients number their requests in order, reads from bit
/// 16 on ([`SPREADING`]). The attempt is added instead of hashed, so that a retry is certain to go
/// to another replica (trap T21).
#[inline]
pub(crate) fn choice(hdr: &Repr, run_bits: u8) -> u32 {
    row(hdr, run_bits).wrapping_add(u32::from(hdr.attempt))
}

/// The same before the attempt is added: equal for all attempts.
#[inline]
pub(crate) fn row(hdr: &Repr, run_bits: u8) -> u32 {
    let (session, request) = (hdr.session.0, hdr.request.0 >> run_bits);
    let halves = |word: u64| [(word >> 32) as u32, word as u32];
    let ([a, b], [c, d]) = (halves(session), halves(request));
    CHOICE.of([a, b, c, d])
}

/// The rows of the table: the replicas in turn.
fn choices(replicas: &[(u16, Addr)]) -> Vec<Addr> {
    let addrs: Vec<Addr> = replicas.iter().map(|r| r.1).collect();
    turns(&addrs, CHOICES)
}

/// `rows` of `items` in turn. If the last row would repeat the first, another item takes its place.
pub(crate) fn turns<T: Copy>(items: &[T], rows: usize) -> Vec<T> {
    let mut turns: Vec<T> = items.iter().copied().cycle().take(rows).collect();
    if rows % items.len().max(1) == 1
        && let (Some(last), Some(second)) = (turns.last_mut(), items.get(1))
    {
        *last = *second;
    }
    turns
}

/// The shared part of every program for replicas; by itself it only passes packets on.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// `None` until the control plane fills the tables: until then every packet is dropped.
    pub(crate) routes: Option<Routes>,
    pub(crate) counters: Counters,
}

impl Store {
    /// A store without tables, with all counters zero.
    pub(crate) const EMPTY: Store = Store { routes: None, counters: Counters::ZERO };

    /// The tables, if they are filled.
    #[must_use]
    pub fn routes(&self) -> Option<&Routes> {
        self.routes.as_ref()
    }

    /// The program's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Installs the tables of a configuration, and returns whether its switch id is new: then
    /// registers begin empty (Harmonia §6.3). Under the same id they stay, even if members joined
    /// or left.
    pub(crate) fn install(&mut self, config: &Config) -> Result<bool, Refused> {
        let routes = Routes::of(config).ok_or(Refused)?;
        let is_new = self.routes.as_ref().map(|r| r.switch_id) != Some(routes.switch_id);
        self.routes = Some(routes);
        Ok(is_new)
    }

    /// The verdict on a packet, from its destination or the reason to drop it.
    #[inline]
    pub(crate) fn verdict(
        &mut self,
        to: Result<Addr, DropReason>,
        size_bytes: usize,
    ) -> Verdict<DropReason> {
        match to {
            Ok(to) => Verdict::Forward { to, size_bytes },
            Err(reason) => self.drop(reason),
        }
    }

    /// Drops a packet, and counts the reason.
    pub(crate) fn drop(&mut self, reason: DropReason) -> Verdict<DropReason> {
        self.count_drop(reason);
        Verdict::Drop(reason)
    }

    /// The member at an index of the multicast group of all replicas.
    #[inline]
    pub(crate) fn replica_at(&self, index: usize) -> Option<Addr> {
        self.routes.as_ref()?.receivers.get(index).copied()
    }

    /// The destination of a packet that the switch only passes on.
    #[inline]
    pub(crate) fn pass_on(
        &mut self,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
    ) -> Result<Addr, DropReason> {
        match hdr.op {
            Op::Write => self.on_write(packet),
            Op::Read => self.on_read(hdr, packet, Reason::SlowUnaided),
            Op::WriteReply | Op::WRestAck | Op::ReadReply | Op::Fragment | Op::Push => {
                self.on_reply(hdr)
            }
            Op::WRest => self.on_write_body(),
            Op::Pull => self.on_pull(hdr),
            Op::WriteCompletion => {
                let known = self.routes.as_ref().ok_or(DropReason::Unconfigured);
                known.and(Err(DropReason::Consumed))
            }
            Op::Sweep => Err(DropReason::Consumed),
        }
    }

    fn on_write(&mut self, packet: &mut PacketMut<'_>) -> Result<Addr, DropReason> {
        let routes = self.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        packet.set_seq(Seq::NONE);
        self.counters.writes_unaided += 1;
        Ok(routes.head)
    }

    /// Sends a read on the normal path, and counts the reason.
    #[inline]
    pub(crate) fn on_read(
        &mut self,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
        reason: Reason,
    ) -> Result<Addr, DropReason> {
        let routes = self.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        packet.set_reason(reason);
        packet.set_flags(hdr.flags.without(Flags::FAST));
        let reader = routes.reader;
        self.count_slow(reason);
        Ok(reader)
    }

    #[inline]
    pub(crate) fn on_reply(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        let routes = self.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        if hdr.client.port == 0 {
            return Err(DropReason::NoClient);
        }
        // The reply to the agent's own no-op. If it were forwarded, it would come back here for
        // ever.
        if hdr.client == routes.switch {
            return Err(DropReason::Consumed);
        }
        self.counters.replies += 1;
        Ok(hdr.client)
    }

    fn on_write_body(&mut self) -> Result<Addr, DropReason> {
        let routes = self.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        self.counters.write_bodies += 1;
        Ok(routes.head)
    }

    fn on_pull(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        let routes = self.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        let named = routes.replicas.iter().find(|r| r.0 == hdr.node.0);
        let to = named.ok_or(DropReason::NoSuchNode)?.1;
        self.counters.pulls += 1;
        Ok(to)
    }

    /// Counts a datagram that no parser accepts.
    pub(crate) fn malformed(&mut self, error: WireError) -> Verdict<DropReason> {
        self.drop(DropReason::Malformed(error))
    }

    pub(crate) fn count_slow(&mut self, reason: Reason) {
        let c = &mut self.counters;
        match reason {
            Reason::SlowDirty => c.reads_slow_dirty += 1,
            Reason::SlowNotReady => c.reads_slow_not_ready += 1,
            Reason::SlowWildcard => c.reads_slow_wildcard += 1,
            Reason::SlowUnaided => c.reads_slow_unaided += 1,
            Reason::SlowAllKeys => c.reads_slow_all_keys += 1,
            Reason::None
            | Reason::Fast
            | Reason::RefusedNewer
            | Reason::RefusedLease
            | Reason::RefusedSwitch
            | Reason::Misrouted
            | Reason::RefusedBehind
            | Reason::Clean
            | Reason::AskedTail
            | Reason::SlowUnstable
            | Reason::SlowStaleReply
            | Reason::SlowNoHolder
            | Reason::Leased
            | Reason::RefusedRevoked
            | Reason::Quorum => {}
        }
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        let c = &mut self.counters;
        match reason {
            DropReason::Malformed(WireError::Truncated) => c.malformed_truncated += 1,
            DropReason::Malformed(WireError::Magic) => c.malformed_magic += 1,
            DropReason::Malformed(WireError::Version) => c.malformed_version += 1,
            DropReason::Malformed(WireError::Op) => c.malformed_op += 1,
            DropReason::Malformed(WireError::Field) => c.malformed_field += 1,
            DropReason::Unconfigured => c.dropped_unconfigured += 1,
            DropReason::TableFull => c.dropped_table_full += 1,
            DropReason::SeqExhausted => c.dropped_seq_exhausted += 1,
            DropReason::NoSuchNode => c.dropped_no_such_node += 1,
            DropReason::NoClient => c.dropped_no_client += 1,
            DropReason::Unstamped => c.unstamped += 1,
            DropReason::Outlived => c.outlived += 1,
            DropReason::Consumed => c.consumed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use concord_core::{RequestNumber, SessionId};
    use concord_wire::rpc::READ_BIT;

    use super::*;

    /// A CRC is linear: with another polynomial every client's reads stayed with the even replicas,
    /// or with the odd ones, for long runs.
    #[test]
    fn bug_17_12_clients_reads_spread_evenly() {
        const READS: u64 = 1_024;
        for (count, run_bits) in (2..=16).flat_map(|count| [(count, 0), (count, 4)]) {
            let replicas: Vec<_> =
                (0..count).map(|node| (node, Addr { ip: 1, port: 7_000 + node })).collect();
            let choices = choices(&replicas);
            for session in [7, 0x1234_5678_9abc_def0] {
                let mut got = alloc::vec![0; usize::from(count)];
                for n in 0..READS {
                    let request = RequestNumber(READ_BIT | (5 * READS + n) << 16 | 3);
                    let hdr = Repr { session: SessionId(session), request, ..Repr::new(Op::Read) };
                    let at = choice(&hdr, run_bits) as usize & (CHOICES - 1);
                    got[usize::from(choices[at].port - 7_000)] += 1;
                }
                let fair = READS / u64::from(count);
                assert!(
                    got.iter().all(|n| (fair..=fair + 1).contains(n)),
                    "{count} replicas, {run_bits} bits: {got:?}"
                );
            }
        }
    }

    /// The frequencies of replicas differ by at most one, and neighbouring rows differ, also around
    /// the end.
    #[test]
    fn choices_are_even_and_neighbours_differ() {
        for count in 2..=64 {
            let replicas: Vec<_> =
                (0..count).map(|node| (node, Addr { ip: 1, port: 7_000 + node })).collect();
            let choices = choices(&replicas);
            assert_eq!(choices.len(), CHOICES);
            for (at, choice) in choices.iter().enumerate() {
                assert_ne!(*choice, choices[(at + 1) % CHOICES], "{count} replicas, {at}");
            }
            let each = replicas.iter().map(|r| choices.iter().filter(|c| **c == r.1).count());
            let fair = CHOICES / usize::from(count);
            assert!(
                each.clone().all(|n| n == fair || n == fair + 1),
                "{:?}",
                each.collect::<Vec<_>>()
            );
        }
    }
}
