//! The counters of a replica of any protocol.

use concord_core::counters;
use concord_wire::Status;

use crate::sessions::Verdict;

counters! {
    /// The counters of a replica.
    pub struct ReplicaCounters {
        /// Reads that this replica answered alone (fast path).
        reads_fast,
        /// Reads that this replica answered by the normal protocol.
        reads_slow,
        /// Fast reads refused because a newer write of their object was executed here; the normal
        /// protocol answers them.
        refused_newer,
        /// Fast reads refused because this replica held no lease; the normal protocol answers them.
        refused_lease,
        /// Reads that a follower passed to its leader because a write of their key group was in its
        /// log and not executed (follower leases).
        refused_revoked,
        /// Fast reads refused because they came from a switch that is not the active one.
        refused_switch,
        /// Reads of the normal protocol passed on to the member that answers them.
        reads_misrouted,
        /// Reads dropped because this replica may not answer now, for example without a lease or
        /// before its epoch is open.
        reads_dropped,
        /// Reads dropped because the engine is still executing the same request, or because too
        /// many wait for it.
        reads_queued,
        /// Writes dropped because too many operations wait for the engine.
        writes_queued,
        /// Times that the storage engine was given up because it did not answer for too long.
        engines_silent,
        /// Requests whose clients were told that the storage engine is working on a long operation.
        put_off,
        /// Reads that waited until a pending write of their object was committed (primary).
        reads_waited,
        /// Reads answered alone because no write of their object was pending (CRAQ).
        reads_clean,
        /// Reads of objects with a pending write, for which the tail was asked (CRAQ).
        reads_dirty,
        /// Version queries sent to the tail (CRAQ); one covers all reads of a batch.
        version_queries,
        /// Version queries answered by this replica as the tail (CRAQ).
        version_answers,
        /// Version queries and answers dropped because of another epoch, a missing lease, or
        /// because this replica is not the tail (CRAQ).
        version_refused,
        /// Writes that this replica ordered, as head, primary or leader.
        writes_ordered,
        /// Records executed.
        records_applied,
        /// Digests of parts of the state, computed to compare replicas.
        digests_made,
        /// Writes dropped because a write with a higher sequence number arrived before.
        writes_out_of_order,
        /// Writes dropped because they came from a switch that is not the active one.
        writes_other_switch,
        /// Writes dropped because this replica does not order writes.
        writes_not_head,
        /// Writes dropped because members lag too far. A steady rise means that a member is too
        /// slow.
        writes_log_full,
        /// Repeated requests answered from the client table.
        duplicates,
        /// Notifications to clients that an object for which they wait was written.
        waiting_told,
        /// Requests refused by the client table.
        refused_requests,
        /// Sequence numbers that did not arrive at the head: writes lost on the way from the
        /// switch.
        seq_gaps,
        /// Link packets sent again to a neighbour that lacked them.
        link_resent,
        /// Link packets that arrived out of order and were held.
        link_held,
        /// Link packets dropped because of another epoch, as duplicates, or for want of room.
        link_dropped,
        /// Fragments of large writes staged.
        fragments_staged,
        /// Fragments of large writes refused.
        fragments_refused,
        /// Fragments of large writes refused for now, because other writes used all the room.
        bodies_without_room,
        /// Large writes whose staged body was not there.
        bodies_missing,
        /// Fragments of long replies sent on request.
        fragments_pulled,
        /// Requests for fragments of a reply that this replica no longer has.
        fragments_gone,
        /// Long replies refused for now, because others used all the room.
        replies_without_room,
        /// Deletions of expired keys sent to the switch to get a sequence number.
        expiries_sent,
        /// Epochs that this replica opened.
        epochs_opened,
        /// Records fetched from a member with a longer log.
        records_fetched,
        /// Fragments of records sent to a head that lacked the records.
        fragments_fetched,
        /// Reads dropped because this replica has not executed the log with which its epoch began.
        reads_not_whole,
        /// Copies of another member's state begun.
        copies_begun,
        /// Times that a joining replica continued from records, without a copy or in the middle of
        /// one.
        copies_resumed,
        /// Copies completed.
        copies_whole,
        /// Copies begun anew because a write accessed objects of which only some had been copied.
        copies_entangled,
        /// Times that this replica left its group because a sync of its disk took too long.
        disks_silent,
        /// Times that keys were copied early because the effect of a write on one key depends on
        /// others.
        keys_copied_early,
        /// Chunks of objects installed from a copy.
        chunks_installed,
        /// Parts of the state sent to joining replicas.
        parts_copied,
        /// Snapshots of this replica's state abandoned because a part was too long to be read
        /// again; the log grows instead.
        snapshots_refused,
        /// Joining replicas that fell too far behind and were told to copy anew.
        feeds_dropped,
        /// Members told that their log does not match this one (log mismatch), or is too short.
        members_apart,
        /// Datagrams dropped because they are malformed.
        malformed,
        /// Packets dropped because their kind or operation is not for a replica.
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
