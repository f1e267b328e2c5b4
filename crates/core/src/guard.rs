//! Checks that guard safety, by name, so that a test can remove one and see that this is caught.
//!
//! Without the feature `mutants` every guard is on and the question costs nothing.

/// Declares [`Guard`] and the list of all of them, so that neither lacks what the other has.
macro_rules! guards {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A check without which linearizability, exactly-once or progress would be lost.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Guard {
            $($(#[$doc])+ $name,)+
        }

        /// Every guard, for tests that remove one after another.
        pub const ALL_GUARDS: [Guard; [$(Guard::$name),+].len()] = [$(Guard::$name),+];
    };
}

guards! {
    /// A write that finds no slot in the dirty set is dropped (Harmonia §7.2).
    DropOnFull,
    /// Writes are processed only in sequence order (Harmonia §6.2, §8 responsibility 1).
    InOrderWrites,
    /// A fast read is refused if a newer write was applied than its last-committed point (§8.2).
    LastCommitted,
    /// A read of an object in the dirty set takes the normal path (Algorithm 1, line 10).
    DirtySet,
    /// A write of several objects goes on when each of them is in the dirty set.
    SeveralEntered,
    /// A write of several objects that is tried again takes no slots: it might never find all of
    /// them.
    TriedAgain,
    /// A read of several objects is fast only if each of them is clean.
    SeveralClean,
    /// A replica notes a write of several objects as the newest of each.
    SeveralNoted,
    /// A replica compares a read of several objects with the newest write of each.
    SeveralNewest,
    /// A replica that copies the state executes of a write of several objects what concerns those
    /// that are here.
    SeveralCopied,
    /// Every numbered write, a retry or a failing one too, completes in its turn (trap T14).
    Prefix,
    /// A replica that answers a read alone holds a lease (trap T2).
    Lease,
    /// A write is executed at most once (trap T16).
    ClientTable,
    /// A replica's own write (an expiry) whose body makes no sense is refused at all replicas
    /// alike, and none of them fails by it.
    OwnWrites,
    /// The log's time goes on from the last record's stamp by the monotonic clock: a node whose
    /// wall clock is wrong neither deletes keys early nor keeps them (trap T12).
    LogClock,
    /// Keys whose deletion was sent are skipped before those to be deleted are counted: else some
    /// whose deletion is lost again and again would stand before all others (trap T12).
    ExpirySkip,
    /// A client process that starts again has a session of its own (trap T16 b).
    FreshSession,
    /// A write names the one before of its connection, and is not executed earlier (trap T22).
    WriteOrder,
    /// A gateway holds a read back until the writes before it of its connection to its key are
    /// answered, and a write until the reads are (trap T22).
    PipelineOrder,
    /// A gateway's replies come in the order of the commands of their connection (trap T22).
    ReplyOrder,
    /// A pop that is in flight when a client's wait ends is awaited: its element is the reply.
    LateElement,
    /// A new switch sends fast reads only after its own first completion (Harmonia §6.3).
    FirstCompletion,
    /// A restarted replica is a stranger until it is admitted (trap T4).
    Incarnation,
    /// Epochs open only when members agree on records and hash (trap T5).
    EpochAgreement,
    /// A fast read is refused beyond what was committed and executed here (Harmonia §8.3, P1).
    Visibility,
    /// A write completes at the switch only once a quorum has executed it (Harmonia §8.3).
    CommitAck,
    /// The effect of a server's script is shown once a quorum knows that it ran to its end: before
    /// that the next leader may abort it (VR).
    ScriptKnown,
    /// Messages of a view are taken in that view alone (VR).
    View,
    /// A number names one stream of records, so that what a late question begins anew ends no
    /// stream (VR).
    StreamOnce,
    /// A leader that no quorum answers leaves its view (VR).
    StepAside,
    /// A leader calls nothing committed before a record of its own term is (Raft §5.4.2, Figure 8).
    OwnTerm,
    /// A replica votes once a term (Raft §5.2).
    OneVote,
    /// A replica votes for no log that ends before its own (Raft §5.4.1).
    UpToDate,
    /// A member without a vote counts in no quorum (Raft, dissertation §4.2.1).
    VoterCount,
    /// The voters are changed once the change before is committed (Raft, dissertation §4.1).
    OneChange,
    /// The voters are changed once a record of the leader's own term is committed (Raft, Ongaro
    /// 2015).
    ChangeTerm,
    /// The voters are changed once all leases are over that count by the ones before the last
    /// (Raft, trap T2).
    ChangeLease,
    /// A follower's lease needs its leader's grant, which those get that have the newest
    /// configuration (Raft, trap T2).
    LeaderGrant,
    /// A quorum read asks again if the voters have changed meanwhile (Raft).
    QuorumVoters,
    /// A leader tells one that recovers where its log ends once a record of its term is committed
    /// (Raft).
    RecoveryTerm,
    /// A replica that gave its log up votes for no candidate that lacks the newest configuration in
    /// it, and after a restart recovers like one that lost everything (Raft).
    CopyFloor,
    /// ReadIndex: a read waits until a quorum has said that its leader still leads, asked after the
    /// read came (Raft §8).
    ReadRound,
    /// Promises of a replica from before a crash do not count once it recovers (DISC 2017).
    CrashVector,
    /// A replica of whose node a higher incarnation is known comes again as a yet higher one (DISC
    /// 2017).
    IncarnationRaised,
    /// A recovering replica hears of the view from so many that no promise escapes it (VR §4.3).
    RecoveryQuorum,
    /// A replica logs what the switch numbered without gaps; what is missing is agreed on
    /// (NOPaxos).
    Gaps,
    /// A configuration exists only after a compare-and-swap (trap T3).
    EpochSwap,
    /// A controller whose state knows less than the members have heard decides nothing (trap T3).
    StateHeard,
    /// A controller that heard no node counts silence from the time at which it could hear again.
    Deaf,
    /// Of two members that do not hear each other the controller removes one.
    CutPair,
    /// A joining replica that asks on, or acknowledges, after its feeder dropped it is told so
    /// again.
    LogMismatchAgain,
    /// A head that lacks records which another member has in its state only is told so, and leaves.
    FetchLogMismatch,
    /// A lease counts from when its holder asked for it, not from when the grant came (trap T2).
    LeaseClock,
    /// A lease is granted to the newest known incarnation of a member, and used by that one alone
    /// (VR).
    LeaseIncarnation,
    /// A lease is given back by the incarnation to which it was granted, and by no other one of its
    /// node (trap T2).
    Release,
    /// A replica that joined answers no reads before all that was agreed is executed there (T4);
    /// one that copies a state votes with nothing, and does not lead, before it has it (VR).
    CaughtUp,
    /// A replica that joined refuses fast reads older than its copy (trap T4).
    Floor,
    /// Whether memory is full is decided by who orders writes, and recorded: a replica that copies
    /// holds less than the members, and would execute what they refused.
    RecordedMemory,
    /// CRAQ: a read of an object with a write in flight asks the tail for the committed position
    /// (§2.3).
    AskTail,
    /// A read of all keys counts as newer than every write that was handed to the engine, finished
    /// or not (trap T6).
    AllKeysSubmitted,
    /// An engine that owes an answer for too long is given up, and its replica with it.
    EngineSilence,
    /// VR: a leader whose engine or disk is silent leaves its view, and does not begin another.
    StepDown,
    /// CRAQ: reads of all keys go to one replica, whose cursors go on where they were.
    OneReader,
    /// CRAQ: the tail's answer counts in its epoch alone (trap T25).
    VersionEpoch,
    /// CRAQ: the tail answers under a lease (trap T25).
    VersionLease,
    /// CRAQ: what is committed is said by the tail alone (trap T25).
    VersionTail,
    /// An acknowledged write is on the disk of the replica that commits it (trap T7).
    DurableCommit,
    /// And on the disks of all members before it in the chain (trap T7).
    DurableBefore,
    /// A backup acknowledges what is on its disk (trap T7).
    DurableAck,
    /// The tail shows what is on every disk (trap T7).
    DurableReads,
    /// A configuration is on the disk before anybody hears that it was heard of.
    DurableEpoch,
    /// A replica is whole once all that was agreed is on its disk.
    DurableCaughtUp,
    /// VR: what a replica promised by a view is on its disk before anybody hears of it.
    DurableView,
    /// Records that replace others are not durable because those were.
    DurableCut,
    /// A member that starts again with its data directory is taken as whole if it is the directory
    /// that it had (trap T4).
    SameStorage,
    /// And if nobody has put an older one in its place.
    NewerRun,
    /// And, where leaders are elected or take turns, if nobody knows more to be committed than the
    /// log has that they begin with: all that voted lack something, so that a directory was put
    /// back or damaged (VR, Raft).
    KnownCommitted,
    /// And if all is there that its node was heard to have on its disk: a copy that was made while
    /// a process ran has as many starts as the directory that went on.
    HeardDurable,
    /// And if all that was ever synced there was found.
    Intact,
    /// After a restart of all members and the controller, the group continues once each member is
    /// heard.
    ColdStart,
    /// Writes are refused while disks have no room.
    DiskRoom,
    /// No record enters the log while the disk is late with those before it: what may be lost was
    /// acknowledged within two seconds, and what waits in memory is bounded.
    JournalRoom,
    /// An epoch opens at a replica once its engine owes no answer: an operation of one epoch does
    /// not belong to another one's log.
    OpensIdle,
    /// A replica that starts again opens no epoch before all leases that it may have granted are
    /// over (trap T2).
    QuietStart,
    /// Falcon: a repair sets add_ptr back in the generation that it was sent for, and in no later
    /// one.
    RepairGeneration,
    /// Falcon: a ticket without a task is skipped only where retrieve_ptr stands.
    SkippedTicket,
    /// Falcon: a worker gives back a task that needs a class that it is not of.
    TaskClass,
    /// Falcon: no task is handed to an executor that waited too long, and asks no more.
    WaitExpiry,
    /// Falcon: what came round from the time of another switch id is dropped.
    RoundSwitch,
    /// Falcon: the answer to one submission says nothing of the tasks of another one.
    SubmissionAnswer,
    /// Falcon: a worker refuses what a switch assigns whose time is over.
    AssignmentSwitch,
    /// Falcon: a worker stops what it has no lease for.
    TaskLease,
    /// Falcon: a task that is never to be run twice begins when its owner says so.
    Claim,
    /// Falcon: a worker that has a key runs what was tagged with it.
    TaskTag,
    /// Falcon: a worker that has a key runs an attempt once.
    TaskRepeat,
    /// Falcon: a worker gives back what the process before its owner had granted only if it did not
    /// begin.
    InquiredRun,
    /// Falcon: of a task's results the first counts, and is told once.
    FirstResult,
    /// FLAIR: reads of an unstable key group go to the leader.
    UnstableGroup,
    /// FLAIR: a follower's reply is checked against its key group.
    StaleReply,
    /// FLAIR: what is of another session says nothing.
    SwitchSession,
    /// FLAIR: those hold a key group whose logs are the leader's up to its last write.
    MatchedPrefix,
    /// FLAIR: a write of all keys concerns every key group (trap T13).
    AllKeysGroup,
    /// FLAIR: key groups are uploaded before their session is active, and not after (trap T28).
    UploadOnce,
    /// FLAIR: a switch that has not heard its leader lately passes nothing.
    SwitchStepDown,
    /// FLAIR: a heartbeat is as old as the probe that it echoes (trap T26).
    HeartbeatProbe,
    /// FLAIR: a key group that stays unstable gets a numbered no-op.
    GroupRepair,
    /// Follower leases: a write is committed once all have it who hold a lease.
    LeaseHolders,
    /// Follower leases: who answers reads holds a lease of the leader that is not over (trap T2).
    ReadLease,
    /// Follower leases: a lease is of no use before its holder's log has what was committed without
    /// it.
    LeaseFloor,
    /// Follower leases: no read of a key group is answered while a write of it is in the log and
    /// not executed.
    GroupRevoked,
    /// Quorum reads: a read waits until all is executed that a quorum had logged when it came.
    QuorumEnd,
    /// Quorum reads: an answer counts for the incarnation that asked, and not for a later one of
    /// its node.
    QuorumIncarnation,
    /// NetCRAQ: an acknowledgement cleans the version that it names, and no other one (hole N1).
    AcknowledgedVersion,
    /// NetCRAQ: a read of a dirty version is asked at the tail (Algorithm 1, line 14; hole N2).
    DirtyRead,
    /// NetCRAQ: a numbered write passes every member (hole N3).
    MemberByMember,
    /// NetCRAQ: the head alone orders writes, wherever they enter (hole N3).
    HeadOrders,
    /// NetCRAQ: a member takes a version that is newer than its own, and no older one.
    NewerVersion,
    /// NetCRAQ: what is of another epoch counts for nothing (hole N5).
    ChainEpoch,
    /// NetCRAQ: the head executes a session's request once (hole N7, trap T31).
    SessionRequest,
    /// NetCRAQ: every member knows a session's last request (hole N7, trap T31).
    ReplicatedRequest,
    /// NetCRAQ: a version that is sent again is still that of its request (hole N7).
    ResentRequest,
    /// NetCRAQ: a write waits until the one before of its cell is committed (holes N4 and N7).
    OneWrite,
    /// NetCRAQ: a write's second pass changes what the first one saw, and nothing that changed
    /// since.
    SecondPass,
    /// NetCRAQ: the tail answers writes, once it has them.
    TailAnswers,
    /// NetCRAQ: a cell is its own name's, and no other one's (hole N8).
    CellName,
    /// NetCRAQ: a switch answers only before the end of the leases that all other members granted
    /// it (holes N5, traps T2 and T31).
    ChainLease,
    /// NetCRAQ: an epoch opens only when no switch outside of it can hold a lease (trap T2).
    ChainOutsiders,
    /// NetCRAQ: an epoch opens only when each member holds what its predecessor holds (hole N6,
    /// trap T5).
    ChainAgreement,
    /// NetCRAQ: a cell takes another name only if the head gave it to the name in this epoch, and
    /// its version is what it was then: no name has two cells (hole N8).
    NameGiven,
    /// NetCRAQ: a name whose cell is another's by now gets a cell only once every member knows that
    /// (hole N8).
    NameDisplaced,
    /// NetCRAQ: a session is the client's whose drawn number the chain has committed for it: what a
    /// head has given, and its successor again, is one client's (hole N7).
    SessionDrawn,
    /// NetCRAQ: a request that was sent ends by its own answer, and by nothing that the head says
    /// of its name later: it may be executed yet.
    SentRequest,
    /// NetCRAQ: a key ends by a write that the head numbers, at no member by itself (trap T12).
    ExpiryNumbered,
    /// NetCRAQ: a new head's time goes on from the old one's, and so do deadlines (hole N9).
    ChainClock,
    /// NetCRAQ: a key's deadline goes wherever its version goes.
    DeadlineKept,
    /// NetCRAQ: whoever holds what ends by itself counts from its question, not from the answer
    /// (hole N9).
    LeaseAsked,
    /// NetCRAQ: a switch that lost its place is a stranger: what it holds is of no chain (trap T4).
    ChainStranger,
    /// Concordia: an event gets a lock once; its copies, and those of events before it, get none
    /// (traps C2 and C4).
    EventOnce,
    /// Concordia: an unlock is executed once (traps C3 and C6).
    UnlockOnce,
    /// Concordia: a request is of a state that its block is in (table 2).
    CheckTable,
    /// Concordia: readers wait for a writer that was refused (trap C14).
    WriterWanted,
    /// Concordia: while the home's value is old, the node that evicts the last copy writes it back
    /// (trap C1).
    HomeStale,
    /// Concordia: a request does not affect a copy that is newer than it (trap C7).
    CopyVersion,
    /// Concordia: an eviction ends once the home has the block (trap C8).
    WrittenBack,
    /// Concordia: who gave its copy away gives it again to the same event (trap C8).
    GivenKept,
    /// Concordia: an answer counts for the event that asked.
    AnswerEvent,
    /// Concordia: a writer waits until every other copy is invalidated.
    AllInvalidated,
    /// Concordia: a miss has its place in the cache before it asks for its block (trap C12).
    RoomFirst,
    /// Concordia: a node has one event in flight for a block.
    OneEvent,
    /// Concordia: a block that is being evicted is not written (trap C8).
    EvictedUnwritten,
    /// Concordia: a home takes a block that is newer than its own, and no older one (trap C8).
    NewerBlock,
    /// Concordia: a home locks a block for the copy of a request that passed the switch first, and
    /// for no other (trap C6).
    FirstCopy,
    /// Concordia: a home locks a block for no request that passed the switch before the block came
    /// back from there (trap C6).
    MovedRequest,
    /// Concordia: a move of a block to the switch or back is executed once (trap C5).
    MoveOnce,
    /// Concordia: a block that moves is locked (trap C5).
    MoveLocked,
    /// Concordia: an unlock is executed if its event holds the lock, and the block has the version
    /// that it found (trap C6).
    UnlockCompared,
    /// Concordia: whoever answers from a cache, or as a home, holds a lease (traps T2, C9).
    MemoryLease,
    /// Concordia: a home is ready once the leases that it granted to nodes outside the epoch are
    /// over (traps T2, C9).
    MemoryOutsiders,
    /// Concordia: a memory does not go on while all its members are silent: they may be alive, with
    /// leases of each other (trap C9).
    MemorySurvivor,
    /// Concordia: what a member has counts only if nobody can have opened a later epoch: some
    /// member of each was not ready for it (trap C10).
    UnopenedEpoch,
    /// Concordia: packets of another epoch are dropped (trap C11).
    CoherenceEpoch,
    /// Concordia: a home rebuilds its range once all members have told what they have (trap C10).
    AllReports,
    /// Concordia: a copy on its way from a member to another one is told, too (trap C10).
    InTransit,
    /// Concordia: what a member that is gone may have changed is lost, and not its old value (trap
    /// C10).
    LostKnown,
    /// GAM: a home grants a write once every other copy is invalidated.
    HomeGathered,
    /// GAM: a fence ends once the writes before it have taken effect.
    FenceWaits,
    /// GAM: a read does not overtake the node's earlier writes of the same block.
    OwnWriteFirst,
    /// Harmony: an `rsvp` opens a slot at the sender once (trap H4).
    GrantOnce,
    /// Harmony: a sender that is late leaves out the phases that it missed (trap H3).
    NoCatchUp,
    /// Harmony: a slot is given back a packet's time after its last packet (trap H1).
    LastPacketHolds,
    /// Harmony: nothing is sent on a reservation whose time is over (trap H12).
    ReservationEnds,
    /// Harmony: once a message was sent to one incarnation of its receiver, no other one gets it
    /// (trap H5).
    ReceiverBound,
    /// Harmony: a request of a message that is over opens nothing (trap H5).
    MessageOnce,
    /// Harmony: a request of an earlier incarnation of its sender opens nothing (trap H5).
    OlderSender,
    /// Harmony: a host that has begun anew waits until the reservations that it forgot are over
    /// (trap H5).
    HostRestart,
    /// Harmony: what closes a grant names it: one before it, or of another incarnation, closes
    /// nothing (trap H4).
    GrantNamed,
    /// Harmony: a rejected further slot does not reject its message (trap H9).
    ExtraRejected,
    /// Harmony: a doubled or late `rsvp` reserves nothing (trap H4).
    RsvpOnce,
    /// Harmony: a virtual link is freed by the reservation that owns it, and by no other (trap H4).
    OwnerFrees,
    /// Harmony: a receiver's slot reserves nothing at a switch that has not yet forgotten the
    /// slot's reservation before (trap H4).
    SlotFreed,
    /// Harmony: a reservation ends by its time if nothing else ends it (trap H4).
    ReservationExpires,
    /// Harmony: a switch that has begun anew reserves nothing until what it forgot is over (trap
    /// H5).
    SwitchRestart,
    /// Harmony: data without a reservation goes on as best effort (trap H4).
    DataReserved,
}

/// Bits in a word of [`Guards`].
#[cfg(feature = "mutants")]
const WORD_BITS: usize = u64::BITS as usize;

/// Words of [`Guards`]: a bit for each guard, however many there are.
#[cfg(feature = "mutants")]
const WORDS: usize = ALL_GUARDS.len().div_ceil(WORD_BITS);

/// Which guards are on: all of them, unless a test built with `mutants` removed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    #[cfg(feature = "mutants")]
    removed: [u64; WORDS],
}

impl Guards {
    /// Every guard on.
    pub const ALL: Guards = Guards {
        #[cfg(feature = "mutants")]
        removed: [0; WORDS],
    };

    /// Whether `guard` is on.
    #[inline]
    #[must_use]
    pub const fn on(self, guard: Guard) -> bool {
        #[cfg(feature = "mutants")]
        {
            let (word, bit) = place(guard);
            self.removed[word] & bit == 0
        }
        #[cfg(not(feature = "mutants"))]
        {
            let _ = guard;
            true
        }
    }

    /// All but `guard`.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub const fn without(guard: Guard) -> Guards {
        Guards::ALL.and_without(guard)
    }

    /// These but `guard`.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub const fn and_without(self, guard: Guard) -> Guards {
        let mut removed = self.removed;
        let (word, bit) = place(guard);
        removed[word] |= bit;
        Guards { removed }
    }
}

/// The word of `guard` in [`Guards`], and its bit there.
#[cfg(feature = "mutants")]
const fn place(guard: Guard) -> (usize, u64) {
    (guard as usize / WORD_BITS, 1 << (guard as usize % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the feature the set of guards takes no room, and every guard is on.
    #[cfg(not(feature = "mutants"))]
    #[test]
    fn guards_cost_nothing_without_mutants() {
        assert_eq!(core::mem::size_of::<Guards>(), 0);
        assert!(ALL_GUARDS.iter().all(|&guard| Guards::ALL.on(guard)));
    }

    /// Each guard is removed alone: no two share a bit, whichever word it is in.
    #[cfg(feature = "mutants")]
    #[test]
    fn guards_have_a_bit_each() {
        for removed in ALL_GUARDS {
            let guards = Guards::without(removed);
            for guard in ALL_GUARDS {
                assert_eq!(guards.on(guard), guard != removed, "{removed:?} and {guard:?}");
            }
        }
        let none = ALL_GUARDS.iter().fold(Guards::ALL, |left, &guard| left.and_without(guard));
        assert!(ALL_GUARDS.iter().all(|&guard| !none.on(guard)));
        assert_eq!(Guards::default(), Guards::ALL);
    }
}
