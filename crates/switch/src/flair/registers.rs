//! The program's register arrays (Table 1), and the accesses of each kind of packet in a pass.

use alloc::vec::Vec;

use concord_core::{Instant, Position};
use concord_pisa::{ArrayReport, Pass, Port, RegisterArray};
use concord_wire::flair::{CaughtUp, Followers, Group, Sid};

use super::layout::KeyGroupSettings;

/// The arrays, in stage order. Those of one cell are the paper's session array: each group of
/// replicas has a program of its own, so there is one entry. The arrays `all_*` are a key group's
/// cells for writes of all keys (trap T13).
#[derive(Clone, Debug)]
pub(super) struct Registers {
    /// session_id; 0 before the first session.
    pub(super) session_id: RegisterArray<u32>,
    /// heartbeat_tstamp: the newest probe of this switch that a heartbeat of the leader echoed, in
    /// ns.
    pub(super) heartbeat_tstamp: RegisterArray<u64>,
    /// is_active: 1 once the upload is complete.
    pub(super) is_active: RegisterArray<u8>,
    /// session_seq_num: the last number given out.
    pub(super) session_seq_num: RegisterArray<u32>,
    /// 1 if a write may be pending: the newest one has no reply yet.
    is_pending: RegisterArray<u8>,
    /// The number of the group's last write; 0 if it had none in this session.
    pub(super) seq_num: RegisterArray<u32>,
    all_seq_num: RegisterArray<u32>,
    /// 1 if no write of the group is in flight.
    is_stable: RegisterArray<u8>,
    all_is_stable: RegisterArray<u8>,
    /// The position up to which a follower must have executed the log to answer reads of the group.
    log_idx: RegisterArray<u64>,
    all_log_idx: RegisterArray<u64>,
    /// The number of groups that are not stable, the cells for all keys included.
    pub(super) unstable: RegisterArray<u32>,
    /// The replicas whose logs equal the leader's up to `log_idx`.
    consistent_followers: RegisterArray<u8>,
    all_consistent_followers: RegisterArray<u8>,
    /// The position up to which the logs of `caught_up_followers` equal the leader's, by the last
    /// heartbeat: it is newer than a key group's own set of replicas.
    caught_up_idx: RegisterArray<u64>,
    caught_up_followers: RegisterArray<u8>,
}

/// The objects that a write or its reply concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerns {
    /// The objects of a key group.
    Group(u32),
    /// All keys.
    All,
    /// No object: the write has a number, and leaves every group unchanged.
    Nothing,
}

impl Concerns {
    const fn group(self) -> Option<u32> {
        match self {
            Concerns::Group(group) => Some(group),
            Concerns::All | Concerns::Nothing => None,
        }
    }
}

/// The session as every packet finds it (steps 1 and 3 of Figure 17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) sid: Sid,
    /// Whether it is active, and its leader was heard recently enough.
    pub(super) is_live: bool,
}

/// What a read, or a reply to one, finds of its group, both in the group's own cells and in those
/// of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadPass {
    pub(super) session: Session,
    /// The higher number of the two. Numbers only rise, so it changes as soon as one of the two
    /// does.
    pub(super) seq_num: u32,
    pub(super) is_stable: bool,
    pub(super) all_is_stable: bool,
    pub(super) is_pending: bool,
    /// The later position of the two.
    pub(super) log_idx: Position,
    /// The replicas that are in both sets, and those that have caught up to that position.
    pub(super) followers: Followers,
}

/// The fate of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequenced {
    /// It got this number.
    Number(Sid, u32),
    /// The session is not live.
    NoSession,
    /// The session has no numbers left.
    Exhausted,
}

/// The effect of a reply to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replied {
    /// The group is stable again.
    Stable,
    /// The group's state is unchanged: a later write of it is in flight, or the write concerns no
    /// group.
    Later,
    /// The reply is of another session, or of none.
    OtherSession,
    /// The number was never given out.
    Impossible,
    /// The session is not live.
    NoSession,
}

impl Registers {
    pub(super) fn new(settings: &KeyGroupSettings) -> Registers {
        let groups = settings.groups() as usize;
        Registers {
            session_id: RegisterArray::new("session_id", 0, 1),
            heartbeat_tstamp: RegisterArray::new("heartbeat_tstamp", 1, 1),
            is_active: RegisterArray::new("is_active", 1, 1),
            session_seq_num: RegisterArray::new("session_seq_num", 2, 1),
            is_pending: RegisterArray::new("is_pending", 3, 1),
            seq_num: RegisterArray::new("seq_num", 3, groups),
            all_seq_num: RegisterArray::new("all_seq_num", 3, 1),
            is_stable: RegisterArray::new("is_stable", 4, groups),
            all_is_stable: RegisterArray::new("all_is_stable", 4, 1),
            log_idx: RegisterArray::new("log_idx", 5, groups),
            all_log_idx: RegisterArray::new("all_log_idx", 5, 1),
            unstable: RegisterArray::new("unstable", 5, 1),
            consistent_followers: RegisterArray::new("consistent_followers", 6, groups),
            all_consistent_followers: RegisterArray::new("all_consistent_followers", 6, 1),
            caught_up_idx: RegisterArray::new("caught_up_idx", 6, 1),
            caught_up_followers: RegisterArray::new("caught_up_followers", 7, 1),
        }
    }

    /// The control plane empties every array.
    pub(super) fn reset(&mut self) {
        for array in [&mut self.session_id, &mut self.session_seq_num, &mut self.unstable] {
            array.reset();
        }
        for array in [&mut self.seq_num, &mut self.all_seq_num] {
            array.reset();
        }
        for array in [&mut self.heartbeat_tstamp, &mut self.log_idx, &mut self.all_log_idx] {
            array.reset();
        }
        self.caught_up_idx.reset();
        for array in [
            &mut self.is_active,
            &mut self.is_pending,
            &mut self.is_stable,
            &mut self.all_is_stable,
            &mut self.consistent_followers,
            &mut self.all_consistent_followers,
            &mut self.caught_up_followers,
        ] {
            array.reset();
        }
    }

    /// The control plane begins a session, which is not active, and without a stable group.
    pub(super) fn begin(&mut self, sid: Sid, all_keys: Group) {
        self.reset();
        put(&mut self.session_id, 0, sid.0);
        put(&mut self.unstable, 0, self.seq_num.size() as u32 + 1);
        self.upload(Concerns::All, all_keys);
    }

    /// The control plane fills a group's cells.
    pub(super) fn upload(&mut self, of: Concerns, group: Group) {
        let (stable, log_idx, followers) = match of {
            Concerns::Group(_) => {
                (&mut self.is_stable, &mut self.log_idx, &mut self.consistent_followers)
            }
            Concerns::All | Concerns::Nothing => {
                (&mut self.all_is_stable, &mut self.all_log_idx, &mut self.all_consistent_followers)
            }
        };
        let at = of.group().unwrap_or(0);
        let unstable = self.unstable.peek(0) + u32::from(stable.peek(at));
        put(stable, at, u8::from(group.is_stable));
        put(log_idx, at, group.log_idx);
        put(followers, at, group.followers.0);
        put(&mut self.unstable, 0, unstable - u32::from(group.is_stable));
    }

    /// The control plane makes the session active.
    pub(super) fn activate(&mut self, probe: Instant) {
        put(&mut self.heartbeat_tstamp, 0, probe.0);
        put(&mut self.is_active, 0, 1);
    }

    /// The number of the last write of a group that is not stable, for the control plane.
    pub(super) fn unstable_since(&self, of: Concerns) -> Option<u32> {
        let (is_stable, seq_num) = match of {
            Concerns::Group(at) => (self.is_stable.peek(at), self.seq_num.peek(at)),
            Concerns::All | Concerns::Nothing => {
                (self.all_is_stable.peek(0), self.all_seq_num.peek(0))
            }
        };
        (is_stable == 0).then_some(seq_num)
    }

    /// A group, as the control plane reads it: the number of its last write, and its other cells.
    pub(super) fn group(&self, of: Concerns) -> (u32, Group) {
        let (seq_num, is_stable, log_idx, followers) = match of {
            Concerns::Group(at) => (
                self.seq_num.peek(at),
                self.is_stable.peek(at),
                self.log_idx.peek(at),
                self.consistent_followers.peek(at),
            ),
            Concerns::All | Concerns::Nothing => (
                self.all_seq_num.peek(0),
                self.all_is_stable.peek(0),
                self.all_log_idx.peek(0),
                self.all_consistent_followers.peek(0),
            ),
        };
        (seq_num, Group { log_idx, followers: Followers(followers), is_stable: is_stable == 1 })
    }

    /// The ports of one packet.
    #[inline]
    pub(super) fn ports(&mut self) -> PacketPorts<'_> {
        PacketPorts {
            session_id: self.session_id.port(),
            heartbeat_tstamp: self.heartbeat_tstamp.port(),
            is_active: self.is_active.port(),
            session_seq_num: self.session_seq_num.port(),
            is_pending: self.is_pending.port(),
            seq_num: self.seq_num.port(),
            all_seq_num: self.all_seq_num.port(),
            is_stable: self.is_stable.port(),
            all_is_stable: self.all_is_stable.port(),
            log_idx: self.log_idx.port(),
            all_log_idx: self.all_log_idx.port(),
            unstable: self.unstable.port(),
            consistent_followers: self.consistent_followers.port(),
            all_consistent_followers: self.all_consistent_followers.port(),
            caught_up_idx: self.caught_up_idx.port(),
            caught_up_followers: self.caught_up_followers.port(),
        }
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        alloc::vec![
            self.session_id.report(),
            self.heartbeat_tstamp.report(),
            self.is_active.report(),
            self.session_seq_num.report(),
            self.is_pending.report(),
            self.seq_num.report(),
            self.all_seq_num.report(),
            self.is_stable.report(),
            self.all_is_stable.report(),
            self.log_idx.report(),
            self.all_log_idx.report(),
            self.unstable.report(),
            self.consistent_followers.report(),
            self.all_consistent_followers.report(),
            self.caught_up_idx.report(),
            self.caught_up_followers.report(),
        ]
    }
}

/// The control plane writes one cell.
fn put<T: concord_pisa::Cell>(array: &mut RegisterArray<T>, index: u32, value: T) {
    array.port().access(&mut Pass::begin(), index, |cell| *cell = value);
}

/// The ports of one packet; each array is accessed at most once.
pub(super) struct PacketPorts<'a> {
    session_id: Port<'a, u32>,
    heartbeat_tstamp: Port<'a, u64>,
    is_active: Port<'a, u8>,
    session_seq_num: Port<'a, u32>,
    is_pending: Port<'a, u8>,
    seq_num: Port<'a, u32>,
    all_seq_num: Port<'a, u32>,
    is_stable: Port<'a, u8>,
    all_is_stable: Port<'a, u8>,
    log_idx: Port<'a, u64>,
    all_log_idx: Port<'a, u64>,
    unstable: Port<'a, u32>,
    consistent_followers: Port<'a, u8>,
    all_consistent_followers: Port<'a, u8>,
    caught_up_idx: Port<'a, u64>,
    caught_up_followers: Port<'a, u8>,
}

/// The time of a packet, and the maximum age of the last heartbeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) now: Instant,
    pub(super) stepdown_ns: u64,
}

impl At {
    const fn is_fresh(self, heartbeat_tstamp: u64) -> bool {
        self.now.0.saturating_sub(heartbeat_tstamp) <= self.stepdown_ns
    }
}

impl PacketPorts<'_> {
    /// A heartbeat's pass (§4.3.6): its age counts from the probe that it echoes, not from its
    /// arrival (trap T26); if a later one overtook it, its caught-up followers are ignored. Returns
    /// the session.
    #[inline]
    pub(super) fn heartbeat(
        self,
        now: Instant,
        (sid, probe): (Sid, Instant),
        caught_up: CaughtUp,
    ) -> Sid {
        let mut pass = Pass::begin();
        let own = Sid(self.session_id.access(&mut pass, 0, |id| *id));
        if own == sid {
            let at = probe.0.min(now.0);
            self.heartbeat_tstamp.access(&mut pass, 0, |tstamp| *tstamp = at.max(*tstamp));
            let is_newest = self.caught_up_idx.access(&mut pass, 0, |idx| {
                let is_newest = caught_up.log_idx.0 >= *idx;
                *idx = caught_up.log_idx.0.max(*idx);
                is_newest
            });
            if is_newest {
                let followers = caught_up.followers.0;
                self.caught_up_followers.access(&mut pass, 0, |set| *set = followers);
            }
        }
        own
    }

    /// A write's pass: it gets a number, and makes the objects that it concerns unstable.
    #[inline]
    pub(super) fn write(self, at: At, concerns: Concerns, counter_max: u32) -> Sequenced {
        let mut pass = Pass::begin();
        let sid = Sid(self.session_id.access(&mut pass, 0, |id| *id));
        let heartbeat = self.heartbeat_tstamp.access(&mut pass, 0, |tstamp| *tstamp);
        let is_active = self.is_active.access(&mut pass, 0, |active| *active == 1);
        if !is_active || !at.is_fresh(heartbeat) {
            return Sequenced::NoSession;
        }
        let next = self.session_seq_num.access(&mut pass, 0, |seq| {
            let is_left = *seq < counter_max;
            *seq += u32::from(is_left);
            is_left.then_some(*seq)
        });
        let Some(next) = next else { return Sequenced::Exhausted };
        self.is_pending.access(&mut pass, 0, |pending| *pending = 1);
        let (seq_num, is_stable, index) = match concerns {
            Concerns::Group(group) => (self.seq_num, self.is_stable, group),
            Concerns::All => (self.all_seq_num, self.all_is_stable, 0),
            Concerns::Nothing => return Sequenced::Number(sid, next),
        };
        seq_num.access(&mut pass, index, |seq| *seq = next);
        let was_stable = is_stable.access(&mut pass, index, core::mem::take);
        if was_stable == 1 {
            self.unstable.access(&mut pass, 0, |n| *n += 1);
        }
        Sequenced::Number(sid, next)
    }

    /// The pass of a reply to a write: the objects that the write concerned are stable if it was
    /// the last one. The session of the number is checked if `checks_session`.
    #[inline]
    pub(super) fn write_reply(
        self,
        at: At,
        concerns: Concerns,
        (sid, counter, checks_session): (Sid, u32, bool),
        (log_idx, followers): (Position, Followers),
    ) -> Replied {
        let mut pass = Pass::begin();
        let own = self.session_id.access(&mut pass, 0, |id| *id);
        let heartbeat = self.heartbeat_tstamp.access(&mut pass, 0, |tstamp| *tstamp);
        if sid.0 != own && checks_session {
            return Replied::OtherSession;
        }
        let is_active = self.is_active.access(&mut pass, 0, |active| *active == 1);
        if !is_active || !at.is_fresh(heartbeat) {
            return Replied::NoSession;
        }
        let last = self.session_seq_num.access(&mut pass, 0, |seq| *seq);
        if counter == 0 || counter > last {
            return Replied::Impossible;
        }
        self.is_pending.access(&mut pass, 0, |pending| *pending = u8::from(counter != last));
        let (seq_num, is_stable, index) = match concerns {
            Concerns::Group(group) => (self.seq_num, self.is_stable, group),
            Concerns::All => (self.all_seq_num, self.all_is_stable, 0),
            Concerns::Nothing => return Replied::Later,
        };
        if seq_num.access(&mut pass, index, |seq| *seq) != counter {
            return Replied::Later;
        }
        let was_stable = is_stable.access(&mut pass, index, |stable| core::mem::replace(stable, 1));
        let (log_idx_of, followers_of) = match concerns {
            Concerns::Group(_) => (self.log_idx, self.consistent_followers),
            Concerns::All | Concerns::Nothing => (self.all_log_idx, self.all_consistent_followers),
        };
        log_idx_of.access(&mut pass, index, |idx| *idx = log_idx.0);
        if was_stable == 0 {
            self.unstable.access(&mut pass, 0, |n| *n -= 1);
        }
        followers_of.access(&mut pass, index, |set| *set = followers.0);
        Replied::Stable
    }

    /// The pass of a read, or of a reply to one. The cells for all keys are included if `with_all`.
    #[inline]
    pub(super) fn read(self, at: At, group: u32, with_all: bool) -> ReadPass {
        let mut pass = Pass::begin();
        let sid = Sid(self.session_id.access(&mut pass, 0, |id| *id));
        let heartbeat = self.heartbeat_tstamp.access(&mut pass, 0, |tstamp| *tstamp);
        let is_active = self.is_active.access(&mut pass, 0, |active| *active == 1);
        let is_pending = self.is_pending.access(&mut pass, 0, |pending| *pending == 1);
        let seq_num = self.seq_num.access(&mut pass, group, |seq| *seq);
        let all_seq_num = self.all_seq_num.access(&mut pass, 0, |seq| *seq);
        let is_stable = self.is_stable.access(&mut pass, group, |stable| *stable == 1);
        let all_is_stable = self.all_is_stable.access(&mut pass, 0, |stable| *stable == 1);
        let log_idx = self.log_idx.access(&mut pass, group, |idx| *idx);
        let all_log_idx = self.all_log_idx.access(&mut pass, 0, |idx| *idx);
        let followers = self.consistent_followers.access(&mut pass, group, |set| Followers(*set));
        let all_followers =
            self.all_consistent_followers.access(&mut pass, 0, |set| Followers(*set));
        let latest = if with_all { log_idx.max(all_log_idx) } else { log_idx };
        let is_passed = self.caught_up_idx.access(&mut pass, 0, |idx| *idx >= latest);
        let caught_up = self.caught_up_followers.access(&mut pass, 0, |set| Followers(*set));
        let caught_up = if is_passed { caught_up } else { Followers::default() };
        let session = Session { sid, is_live: is_active && at.is_fresh(heartbeat) };
        if !with_all {
            let (log_idx, all_is_stable) = (Position(latest), true);
            let followers = followers.or(caught_up);
            let own = ReadPass {
                session,
                seq_num,
                is_stable,
                all_is_stable,
                is_pending,
                log_idx,
                followers,
            };
            return own;
        }
        ReadPass {
            session,
            seq_num: seq_num.max(all_seq_num),
            is_stable,
            all_is_stable,
            is_pending,
            log_idx: Position(latest),
            followers: followers.and(all_followers).or(caught_up),
        }
    }
}
