//! The counters of a replica of any protocol.

use concord_core::counters;
use concord_wire::Status;

use crate::sessions::Verdict;

counters! {
    /// The counters of a replica.
    pub struct ReplicaCounters {
        /// Reads answered alone on the switch's word (fast path).
        reads_fast,
        /// Reads answered by the normal protocol.
        reads_slow,
        /// Fast reads refused because a newer write was applied here.
        refused_newer,
        /// Fast reads refused because no lease was held.
        refused_lease,
        /// Reads that a follower passed to its leader, since a write of their key group was in its
        /// log and not executed (follower leases).
        refused_revoked,
        /// Fast reads refused because they came from another switch than the active one.
        refused_switch,
        /// Reads of the normal protocol passed on because another member answers them.
        reads_misrouted,
        /// Reads dropped because this replica may not answer at the moment.
        reads_dropped,
        /// Reads dropped because the engine is still executing the same request, or because too
        /// many wait for it.
        reads_queued,
        /// Writes dropped because too many operations wait for the engine.
        writes_queued,
        /// Times that the engine was given up because it answered nothing for too long.
        engines_silent,
        /// Requests whose clients were told that an engine is at work.
        put_off,
        /// Reads that waited until a write was committed (primary).
        reads_waited,
        /// Reads answered alone, since no write of their object was in flight (CRAQ).
        reads_clean,
        /// Reads of objects with a write in flight (CRAQ): the tail was asked.
        reads_dirty,
        /// Version queries sent to the tail (CRAQ); one covers all reads of a batch.
        version_queries,
        /// Version queries answered by this replica as the tail (CRAQ).
        version_answers,
        /// Version queries and answers dropped: another epoch, no lease, not the tail (CRAQ).
        version_refused,
        /// Writes ordered (head or primary).
        writes_ordered,
        /// Records applied.
        records_applied,
        /// Digests of parts of the state, made for the comparison of replicas.
        digests_made,
        /// Writes dropped because a newer number was seen before.
        writes_out_of_order,
        /// Writes dropped because they come from another switch than the active one.
        writes_other_switch,
        /// Writes dropped because this replica does not order.
        writes_not_head,
        /// Writes dropped because members lag too far behind.
        writes_log_full,
        /// Retries answered from the client table.
        duplicates,
        /// Clients told that an object for which they wait was written.
        waiting_told,
        /// Requests refused by the client table.
        refused_requests,
        /// Sequence numbers that never arrived at the head: writes lost on the way.
        seq_gaps,
        /// Link packets sent again to a neighbour: gaps that were fetched.
        link_resent,
        /// Link packets that came out of order and were held.
        link_held,
        /// Link packets dropped: another epoch, a duplicate, or no room.
        link_dropped,
        /// Body fragments staged.
        fragments_staged,
        /// Body fragments refused.
        fragments_refused,
        /// Body fragments refused for now: other bodies had all the room.
        bodies_without_room,
        /// Writes whose staged body was not there.
        bodies_missing,
        /// Reply fragments sent on request.
        fragments_pulled,
        /// Requests for fragments of a reply that is gone.
        fragments_gone,
        /// Long read replies refused for now: others had all the room.
        replies_without_room,
        /// Deletes of expired keys sent to the switch to be numbered.
        expiries_sent,
        /// Epochs opened.
        epochs_opened,
        /// Records fetched from a member with a longer log.
        records_fetched,
        /// Fragments of records sent to a head that lacks the records.
        fragments_fetched,
        /// Reads dropped because the log that was agreed when the epoch opened is not executed here
        /// yet.
        reads_not_whole,
        /// Copies of another member's state begun.
        copies_begun,
        /// Times that a joining replica continued from records, without a copy or in the middle of
        /// one.
        copies_resumed,
        /// Copies completed.
        copies_whole,
        /// Copies begun anew because of a write to objects of which only some were copied.
        copies_entangled,
        /// Times that the replica left because a sync of its disk took too long.
        disks_silent,
        /// Times that keys were copied early, for a write whose effect on one key depends on
        /// others.
        keys_copied_early,
        /// Chunks of objects installed.
        chunks_installed,
        /// Parts of the state taken for joining replicas.
        parts_copied,
        /// Snapshots of this replica's state given up because a part was too long to be read again;
        /// the log grows instead.
        snapshots_refused,
        /// Joining replicas that fell too far behind and were told to begin anew.
        feeds_dropped,
        /// Members told that their log does not match this one, or is too short.
        members_apart,
        /// Malformed datagrams dropped.
        malformed,
        /// Packets of no use here dropped.
        unexpected,
    }
}

impl ReplicaCounters {
    /// Counts the client table's verdict on a record.
    pub(crate) fn note(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Execute | Verdict::Nothing => {}
            Verdict::Duplicate => self.duplicates += 1,
            Verdict::Refused(status) => {
                self.refused_requests += 1;
                self.bodies_missing += u64::from(status == Status::BodyMissing);
            }
        }
    }
}
