//! The leader's state in its view: the members as it knows them, the completions and answers that
//! it still has to send, and when.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, ObjectId, Position, Seq};

use super::follower::Follower;
use super::group::MEMBERS_MAX;

/// The largest number of reads that wait at the leader.
const WAITING_MAX: usize = 65_536;

/// A write whose completion is sent to the switch once a quorum has executed up to `position`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) position: Position,
    pub(super) seq: Seq,
    pub(super) obj_id: ObjectId,
}

/// A leader's view.
#[derive(Clone, Debug)]
pub(super) struct Leading {
    /// All members by index, with this replica; empty if it does not lead.
    pub(super) followers: Vec<Follower>,
    /// The end of the log when the view began. Slow reads wait until it is executed.
    view_start: Position,
    /// The time at which the view began.
    begun_at: Instant,
    /// Executed writes whose completions were not sent, oldest first.
    uncompleted: VecDeque<Completion>,
    /// Slow reads that wait for the lease or for `view_start`, with the times of their arrival.
    waiting_reads: VecDeque<(Instant, Vec<u8>)>,
    /// ReadIndex: the time of the last round that asked whether this replica still leads.
    asked_at: Option<Instant>,
    /// The time at which a commit point that no PREPARE carried is sent alone.
    commit_due: Instant,
    next_switch: Instant,
    /// NOPaxos: the position up to which followers lack bodies and are sent records.
    staged_end: Position,
    /// NOPaxos: whether the last message to the switch said that memory is full.
    told_full: bool,
    /// Raft: the time of the last change of voters in this term.
    changed_at: Option<Instant>,
    /// Raft: the voters with which the session at a switch that checks replies began.
    session_voters: Option<u64>,
}

impl Default for Leading {
    fn default() -> Leading {
        Leading {
            followers: Vec::new(),
            view_start: Position(0),
            begun_at: Instant(0),
            uncompleted: VecDeque::new(),
            waiting_reads: VecDeque::new(),
            asked_at: None,
            commit_due: Instant::NEVER,
            next_switch: Instant(0),
            staged_end: Position(0),
            told_full: false,
            changed_at: None,
            session_voters: None,
        }
    }
}

impl Leading {
    /// Begins a view of `members` with a log that ends at `end`.
    pub(super) fn begin(&mut self, now: Instant, members: usize, end: Position) {
        self.followers = alloc::vec![Follower::default(); members];
        self.view_start = end;
        self.begun_at = now;
        self.next_switch = now;
        (self.changed_at, self.session_voters) = (None, None);
    }

    /// Ends the view: clients' reads are dropped, and they ask another member.
    pub(super) fn end_view(&mut self) {
        self.followers.clear();
        self.uncompleted.clear();
        self.waiting_reads.clear();
        self.asked_at = None;
        self.commit_due = Instant::NEVER;
    }

    /// Forgets the positions of an earlier group's log.
    pub(super) fn forget_positions(&mut self) {
        (self.view_start, self.staged_end) = (Position(0), Position(0));
    }

    /// The end of the log when the view began.
    pub(super) fn view_start(&self) -> Position {
        self.view_start
    }

    /// The highest position that a quorum of the members in `counted` has reached.
    pub(super) fn quorum_has(
        &self,
        (quorum, counted): (usize, u64),
        has: impl Fn(&Follower) -> Position,
    ) -> Position {
        let mut all = [Position(0); MEMBERS_MAX];
        let followers = self.followers.iter().enumerate().take(MEMBERS_MAX);
        let followers = followers.filter(|(index, _)| counted >> index & 1 == 1);
        let mut count = 0;
        for (slot, (_, follower)) in all.iter_mut().zip(followers) {
            *slot = has(follower);
            count += 1;
        }
        all[..count].sort_unstable();
        all[..count].get(count.saturating_sub(quorum)).copied().unwrap_or_default()
    }

    /// Raft: notes a change of voters.
    pub(super) fn note_change(&mut self, now: Instant) {
        self.changed_at = Some(now);
    }

    /// Raft: the time of the last change of voters in this term.
    pub(super) fn changed_at(&self) -> Option<Instant> {
        self.changed_at
    }

    /// Raft: begins a session with these voters.
    pub(super) fn begin_session(&mut self, voters: u64) {
        self.session_voters = Some(voters);
    }

    /// Raft: whether a session was begun with other voters than these.
    pub(super) fn has_session_of_others(&self, voters: u64) -> bool {
        self.session_voters.is_some_and(|told| told != voters)
    }

    /// The time at which the view began.
    pub(super) fn begun_at(&self) -> Instant {
        self.begun_at
    }

    /// Queues the completion of an executed write, to send once a quorum has executed it.
    pub(super) fn push_completion(&mut self, completion: Completion) {
        self.uncompleted.push_back(completion);
    }

    /// Drops all completions: they were sent, or are not needed.
    pub(super) fn forget_completions(&mut self) {
        self.uncompleted.clear();
    }

    /// Removes the completions of writes up to `executed`, which a quorum has executed. Returns the
    /// last one.
    pub(super) fn pop_completions(&mut self, executed: Position) -> Option<Completion> {
        let mut last = None;
        while let Some(first) = self.uncompleted.pop_front_if(|c| c.position <= executed) {
            last = Some(first);
        }
        last
    }

    /// Queues a slow read that arrived at `at`, as its packet. Returns whether there was room.
    pub(super) fn push_read(&mut self, at: Instant, packet: impl FnOnce() -> Vec<u8>) -> bool {
        let has_room = self.waiting_reads.len() < WAITING_MAX;
        if has_room {
            self.waiting_reads.push_back((at, packet()));
        }
        has_room
    }

    /// Removes the oldest waiting read, if it arrived by `upto`.
    pub(super) fn pop_read(&mut self, upto: Instant) -> Option<(Instant, Vec<u8>)> {
        self.waiting_reads.pop_front_if(|(at, _)| *at <= upto)
    }

    /// ReadIndex: whether to begin a round now: a read arrived after the last round began, and that
    /// one is `confirmed`, or was unanswered for `again_ns`.
    pub(super) fn is_round_due(
        &mut self,
        now: Instant,
        confirmed: Option<Instant>,
        again_ns: Duration,
    ) -> bool {
        let Some((newest, _)) = self.waiting_reads.back() else { return false };
        let is_open = self.asked_at.is_some_and(|asked| {
            confirmed.is_none_or(|confirmed| confirmed < asked) && now.since(asked) < again_ns
        });
        let is_due = !is_open && confirmed.is_none_or(|confirmed| confirmed < *newest);
        if is_due {
            self.asked_at = Some(now);
        }
        is_due
    }

    /// Whether to send the commit point alone now: some follower lacks it (`is_untold`), and it has
    /// waited for `delay_ns`.
    pub(super) fn is_commit_due(
        &mut self,
        now: Instant,
        is_untold: bool,
        delay_ns: Duration,
    ) -> bool {
        if !is_untold {
            self.commit_due = Instant::NEVER;
            return false;
        }
        self.commit_due = self.commit_due.min(now.after(delay_ns));
        let is_due = now >= self.commit_due;
        if is_due {
            self.commit_due = Instant::NEVER;
        }
        is_due
    }

    /// The time at which the commit point is sent alone.
    pub(super) fn commit_due(&self) -> Instant {
        self.commit_due
    }

    /// Makes the message to the switch, with the leader and the readers, due now.
    pub(super) fn hurry_switch(&mut self, now: Instant) {
        self.next_switch = now;
    }

    /// The time of the next message to the switch.
    pub(super) fn next_switch(&self) -> Instant {
        self.next_switch
    }

    /// Whether a message to the switch is due. Sets the next time, `every_ns` later.
    pub(super) fn is_switch_due(&mut self, now: Instant, every_ns: Duration) -> bool {
        let is_due = now >= self.next_switch;
        if is_due {
            self.next_switch = now.after(every_ns);
        }
        is_due
    }

    /// NOPaxos: notes that followers lack the bodies of records up to `end`.
    pub(super) fn stage_up_to(&mut self, end: Position) {
        self.staged_end = end;
    }

    /// NOPaxos: the position up to which a follower is sent records; this log ends at `end`.
    pub(super) fn stream_upto(&mut self, now: Instant, index: usize, end: Position) -> Position {
        let staged = self.staged_end;
        let Some(follower) = self.followers.get_mut(index) else { return end };
        follower.stream_upto = follower.stream_upto.max(staged);
        follower.note_lag(now, end);
        follower.stream_upto
    }

    /// NOPaxos: the time at which a follower that lags is sent records.
    pub(super) fn lag_deadline(&self) -> Instant {
        self.followers.iter().map(Follower::lag_deadline).min().unwrap_or(Instant::NEVER)
    }

    /// NOPaxos: whether the switch was told that memory is full.
    pub(super) fn is_told_full(&self) -> bool {
        self.told_full
    }

    /// NOPaxos: notes that the switch is told whether memory is full.
    pub(super) fn tell_full(&mut self, is_full: bool) {
        self.told_full = is_full;
    }
}

#[cfg(test)]
mod tests {
    use concord_core::SwitchId;

    use super::*;

    /// A leader of a view whose members have acknowledged so much.
    fn leading<const N: usize>(acked: [u64; N]) -> Leading {
        let mut leading = Leading::default();
        leading.begin(Instant(10), N, Position(4));
        for (follower, acked) in leading.followers.iter_mut().zip(acked) {
            follower.acked = Position(acked);
        }
        leading
    }

    fn completion(position: u64) -> Completion {
        let seq = Seq::new(SwitchId(1), position as u32);
        Completion { position: Position(position), seq, obj_id: ObjectId(0) }
    }

    #[test]
    fn a_quorum_has_what_so_many_of_the_counted_have() {
        let has = |acked: [u64; 5], quorum, counted| {
            leading(acked).quorum_has((quorum, counted), |f| f.acked).0
        };
        let acked = [9, 5, 7, 1, 8];
        assert_eq!([1, 2, 3, 4, 5].map(|quorum| has(acked, quorum, 0b11111)), [9, 8, 7, 5, 1]);
        assert_eq!(has(acked, 2, 0b01110), 5, "of those with 5, 7 and 1");
        assert_eq!(Leading::default().quorum_has((2, 0b111), |f| f.acked), Position(0));
        let mut all = [3; MEMBERS_MAX];
        all[MEMBERS_MAX - 1] = 6;
        assert_eq!(leading(all).quorum_has((1, u64::MAX), |f| f.acked), Position(6));
    }

    /// The switch is told of the last write that a quorum has executed.
    #[test]
    fn switch_learns_what_a_quorum_executed() {
        let mut l = leading([0; 3]);
        (5..=9).for_each(|position| l.push_completion(completion(position)));
        let pop = |l: &mut Leading, executed| {
            l.pop_completions(Position(executed)).map(|completion| completion.seq.counter)
        };
        assert_eq!([4, 7, 7].map(|executed| pop(&mut l, executed)), [None, Some(7), None]);
        l.forget_completions();
        assert_eq!(pop(&mut l, 9), None);
    }

    #[test]
    fn reads_wait_in_order_and_no_more_than_there_is_room_for() {
        let mut l = leading([0; 3]);
        assert!((0..WAITING_MAX as u64).all(|at| l.push_read(Instant(at), Vec::new)));
        assert!(!l.push_read(Instant(9), || unreachable!("there is no room")));
        assert_eq!(l.pop_read(Instant(0)), Some((Instant(0), Vec::new())));
        assert_eq!(l.pop_read(Instant(0)), None, "the next one came later");
        assert!(l.push_read(Instant(9), Vec::new));
    }

    /// A round is asked for reads that came after the last and again if it is lost.
    #[test]
    fn raft_6_4_read_round_is_asked_and_repeated() {
        let mut l = leading([0; 3]);
        let due = |l: &mut Leading, now, confirmed: Option<u64>| {
            l.is_round_due(Instant(now), confirmed.map(Instant), 5)
        };
        assert!(!due(&mut l, 10, None), "no read waits");
        l.push_read(Instant(10), Vec::new);
        assert!(due(&mut l, 20, None));
        assert!(!due(&mut l, 24, None) && !due(&mut l, 24, Some(9)), "it is under way");
        assert!(due(&mut l, 25, None), "it was lost");
        assert!(!due(&mut l, 26, Some(25)), "it confirms that read");
        l.push_read(Instant(26), Vec::new);
        assert!(due(&mut l, 26, Some(25)));
        assert!(!due(&mut l, 27, Some(25)));
        assert!(!due(&mut l, 27, Some(26)), "it was asked as the read came");
        l.end_view();
        l.push_read(Instant(27), Vec::new);
        assert!(due(&mut l, 27, None), "what was asked before was of another view");
    }

    #[test]
    fn a_commit_point_that_nobody_carried_is_sent_after_a_while() {
        let mut l = leading([0; 3]);
        let due = |l: &mut Leading, now, is_untold| l.is_commit_due(Instant(now), is_untold, 5);
        assert!(!due(&mut l, 10, true) && l.commit_due() == Instant(15));
        assert!(!due(&mut l, 14, true) && l.commit_due() == Instant(15), "since the first of them");
        assert!(due(&mut l, 15, true) && l.commit_due() == Instant::NEVER);
        assert!(!due(&mut l, 16, true) && l.commit_due() == Instant(21));
        assert!(!due(&mut l, 30, false) && l.commit_due() == Instant::NEVER, "all know");
        due(&mut l, 31, true);
        l.end_view();
        assert_eq!(l.commit_due(), Instant::NEVER);
    }

    #[test]
    fn the_switch_is_told_at_once_and_then_now_and_again() {
        let mut l = leading([0; 3]);
        assert!(!l.is_switch_due(Instant(9), 50) && l.is_switch_due(Instant(10), 50));
        assert!(!l.is_switch_due(Instant(59), 50) && l.next_switch() == Instant(60));
        l.hurry_switch(Instant(20));
        assert!(l.is_switch_due(Instant(20), 50));
    }

    #[test]
    fn what_was_known_of_a_view_ends_with_it() {
        let mut l = leading([7; 3]);
        assert_eq!((l.begun_at(), l.view_start()), (Instant(10), Position(4)));
        l.push_completion(completion(5));
        l.push_read(Instant(11), Vec::new);
        l.note_change(Instant(12));
        l.begin_session(0b011);
        assert!(l.has_session_of_others(0b111) && !l.has_session_of_others(0b011));
        assert_eq!(l.changed_at(), Some(Instant(12)));
        l.end_view();
        assert!(l.followers.is_empty());
        assert!(l.pop_completions(Position(9)).is_none() && l.pop_read(Instant(99)).is_none());
        l.begin(Instant(20), 3, Position(8));
        assert_eq!(
            (l.begun_at(), l.view_start(), l.changed_at()),
            (Instant(20), Position(8), None)
        );
        assert!(!l.has_session_of_others(0b111), "no session has begun");
        assert!(l.followers.len() == 3 && l.followers[0].acked == Position(0));
        l.forget_positions();
        assert_eq!(l.view_start(), Position(0));
    }

    #[test]
    fn nopaxos_a_follower_is_sent_the_records_whose_bodies_it_lacks() {
        let mut l = leading([0; 3]);
        assert_eq!(l.stream_upto(Instant(10), 1, Position(9)), Position(0));
        l.stage_up_to(Position(6));
        assert_eq!(l.stream_upto(Instant(10), 1, Position(9)), Position(6));
        l.forget_positions();
        assert_eq!(l.stream_upto(Instant(10), 1, Position(9)), Position(6), "it was to be sent");
        assert_eq!(l.stream_upto(Instant(10), 2, Position(9)), Position(0));
        assert_eq!(l.lag_deadline(), Instant::NEVER, "nobody follows");
        assert!(!l.is_told_full());
        l.tell_full(true);
        assert!(l.is_told_full());
    }
}
