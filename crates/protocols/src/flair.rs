//! A leader's messages to a switch that runs FLAIR (the paper's lflair module, §4.3.5, §4.3.6): the
//! upload with which a session starts, each step of which is confirmed, the heartbeats that keep it
//! going, and the weights by which it shares reads (§4.4.2).
//!
//! A session begins once all that the leader's term began with is committed, so that no write of an
//! earlier session is under way, and every key group is stable at one position (trap T28). The
//! switch drops all packets until the session is active, so that this stays as it is.

use alloc::vec::Vec;

use concord_core::{Duration, Epoch, Instant, MS, NodeId, Position, SwitchId};
use concord_wire::GroupId;
use concord_wire::control::Message as _;
use concord_wire::flair::{
    CaughtUp, GROUPS_OF_CHUNK, Group, Heartbeat, SessionMessage, Sid, Step, Weights,
};

use crate::flair_weights::Balance;
use crate::setup::RETRY_NS;

/// The interval of heartbeats. A heartbeat echoes the answer to the one before, so that the echo is
/// one interval old when it arrives. The switch survives the loss of two heartbeats, or of their
/// answers.
pub const HEARTBEAT_NS: Duration = 25 * MS;
/// A replica keeps up if it has what was committed one to two of these intervals ago. One with a
/// long queue acknowledges late, and still keeps up.
const KEEP_UP_NS: Duration = 125 * MS;
/// The largest number of chunks in flight.
const CHUNKS_AT_ONCE: usize = 64;
/// The largest number of chunks of a switch.
const CHUNKS_MAX: usize = 1 << 16;

/// The progress of a session's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is no session.
    #[default]
    None,
    /// The switch has to end the earlier session.
    Beginning,
    /// The switch has to take the key groups.
    Uploading,
    /// The switch has all key groups and has to activate the session.
    Activating,
    /// The session is active.
    Active,
}

/// A session, as its leader knows it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    stage: Stage,
    switch: SwitchId,
    sid: Sid,
    /// The node of each bit.
    replicas: Vec<u16>,
    /// The state of every key group at the start, and of writes of all keys.
    group: Group,
    /// By chunk: whether the switch has confirmed it.
    confirmed: Vec<bool>,
    /// Chunks before this one that are not confirmed are in flight.
    under_way_to: usize,
    /// The newest time of the switch's clock that is known, in ns.
    probe: u64,
    next_at: Instant,
    /// Whether the switch shares reads by weights (`load_awareness`).
    is_weighed: bool,
    /// The queues and weights, once the session is active.
    balance: Option<Balance>,
    /// The newest weights with their ordinal, until the switch has confirmed them.
    untold: Option<Weights>,
    round: u32,
    marks: Marks,
}

/// Two earlier values of the committed position.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The time of the newer one.
    at: Instant,
    newer: Position,
    older: Position,
}

impl Default for Session {
    fn default() -> Session {
        Session {
            stage: Stage::None,
            switch: SwitchId(0),
            sid: Sid(0),
            replicas: Vec::new(),
            group: Group::default(),
            confirmed: Vec::new(),
            under_way_to: 0,
            probe: 0,
            next_at: Instant::NEVER,
            is_weighed: false,
            balance: None,
            untold: None,
            round: 0,
            marks: Marks::default(),
        }
    }
}

/// The sender's part of a message: the leader, its view, its group, and what it reports of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker {
    pub(crate) node: NodeId,
    pub(crate) view: Epoch,
    pub(crate) group: GroupId,
    /// The interval at which it computes weights, in ns.
    pub(crate) weigh_ns: Duration,
    /// The replicas that keep up with its log.
    pub(crate) caught_up: CaughtUp,
}

impl Session {
    /// Begins session `sid` at `switch`. `replicas` has the node of each bit, and `group` is the
    /// state of every key group.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        (switch, sid): (SwitchId, Sid),
        replicas: Vec<u16>,
        group: Group,
    ) {
        let start = Position(group.log_idx);
        *self = Session {
            stage: Stage::Beginning,
            switch,
            sid,
            replicas,
            group,
            next_at: now,
            marks: Marks { at: now, newer: start, older: start },
            ..Session::default()
        };
    }

    /// Ends the session: its leader does not lead any more.
    pub(crate) fn end(&mut self) {
        *self = Session::default();
    }

    /// Whether a session was begun, active or not.
    pub(crate) fn is_begun(&self) -> bool {
        self.stage != Stage::None
    }

    /// The next time at which [`Session::tell`] has a message to send.
    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Handles the switch's confirmation of a step.
    pub(crate) fn on_confirmed(&mut self, now: Instant, message: &SessionMessage) {
        let SessionMessage::Confirmed { switch, sid, step, probe, .. } = message else { return };
        if (SwitchId(*switch), *sid) != (self.switch, self.sid) || self.stage == Stage::None {
            return;
        }
        self.probe = self.probe.max(*probe);
        match (*step, self.stage) {
            (Step::Begun { groups, load_awareness }, Stage::Beginning) => {
                let chunks = (groups as usize).div_ceil(GROUPS_OF_CHUNK);
                if !(1..=CHUNKS_MAX).contains(&chunks) {
                    return;
                }
                self.confirmed = alloc::vec![false; chunks];
                self.is_weighed = load_awareness;
                self.go_on(now, Stage::Uploading);
            }
            (Step::Chunk { chunk }, Stage::Uploading) => {
                let Some(confirmed) = self.confirmed.get_mut(chunk as usize).filter(|c| !**c)
                else {
                    return;
                };
                *confirmed = true;
                let are_there = |chunks: &[bool]| chunks.iter().all(|confirmed| *confirmed);
                if are_there(&self.confirmed) {
                    self.go_on(now, Stage::Activating);
                } else if are_there(&self.confirmed[..self.under_way_to]) {
                    // The next chunks are sent at once: the switch drops all packets meanwhile.
                    self.go_on(now, Stage::Uploading);
                }
            }
            (Step::Active, Stage::Activating) => self.go_on(now, Stage::Active),
            (Step::Weighed { round }, Stage::Active) if round == self.round => self.untold = None,
            // A confirmation of an earlier step.
            (Step::Begun { .. } | Step::Chunk { .. } | Step::Active | Step::Weighed { .. }, _) => {}
        }
    }

    fn go_on(&mut self, now: Instant, stage: Stage) {
        (self.stage, self.next_at) = (stage, now);
    }

    /// The position that a replica has to have to keep up; `committed` is the present one.
    pub(crate) fn kept_up_to(&mut self, now: Instant, committed: Position) -> Position {
        if now.since(self.marks.at) >= KEEP_UP_NS {
            self.marks = Marks { at: now, newer: committed, older: self.marks.newer };
        }
        self.marks.older
    }

    /// Handles the switch's answer to a heartbeat.
    pub(crate) fn on_probe(&mut self, heard: &Heartbeat) {
        if (heard.switch, heard.sid) == (self.switch, self.sid) {
            self.probe = self.probe.max(heard.probe.0);
        }
    }

    /// Notes the number of packets that wait at the host of `bit`.
    pub(crate) fn note_queue(&mut self, bit: usize, packets: u32) {
        if let Some(balance) = &mut self.balance {
            balance.note(bit, packets);
        }
    }

    /// Passes each message that is due to `send`.
    pub(crate) fn tell(
        &mut self,
        now: Instant,
        by: Speaker,
        out: &mut Vec<u8>,
        mut send: impl FnMut(&[u8]),
    ) {
        if now < self.next_at {
            return;
        }
        let (view, from, switch, sid) = (by.view.0, by.node.0, self.switch.0, self.sid);
        let mut say = |message: &SessionMessage| {
            message.emit_in(by.group, out);
            send(out);
        };
        self.next_at = now.after(RETRY_NS);
        match self.stage {
            Stage::None => self.next_at = Instant::NEVER,
            Stage::Beginning => {
                let (replicas, all_keys) = (self.replicas.clone(), self.group);
                say(&SessionMessage::Begin { view, from, switch, sid, replicas, all_keys });
            }
            Stage::Uploading => {
                let missing = self.confirmed.iter().enumerate().filter(|(_, here)| !**here);
                for (chunk, _) in missing.take(CHUNKS_AT_ONCE) {
                    let groups = alloc::vec![self.group; GROUPS_OF_CHUNK];
                    self.under_way_to = chunk + 1;
                    let chunk = chunk as u32;
                    say(&SessionMessage::Groups { view, from, switch, sid, chunk, groups });
                }
            }
            Stage::Activating => {
                let probe = self.probe;
                say(&SessionMessage::Activate { view, from, switch, sid, probe });
            }
            Stage::Active => {
                self.next_at = now.after(HEARTBEAT_NS);
                let (group, from, view, switch) = (by.group, by.node, by.view, self.switch);
                let (probe, caught_up) = (Instant(self.probe), by.caught_up);
                Heartbeat { group, from, view, sid, switch, probe, caught_up }.emit(out);
                send(out);
                if self.is_weighed {
                    let every_ns = by.weigh_ns;
                    let balance = self.balance.get_or_insert_with(|| Balance::new(now, every_ns));
                    if let Some(weights) = balance.weigh(now) {
                        (self.untold, self.round) = (Some(weights), self.round + 1);
                    }
                }
                if let Some(weights) = self.untold {
                    let (view, from, switch, round) = (view.0, from.0, switch.0, self.round);
                    SessionMessage::Weights { view, from, switch, sid, round, weights }
                        .emit_in(group, out);
                    send(out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_wire::flair::Followers;

    use super::*;

    const SID: Sid = Sid(7);
    const SWITCH: SwitchId = SwitchId(3);

    fn begun() -> Session {
        let mut session = Session::default();
        let group = Group { log_idx: 9, followers: Followers(0b11), is_stable: true };
        session.begin(Instant(0), (SWITCH, SID), vec![1, 2, 3], group);
        session
    }

    fn told(session: &mut Session, at_ms: u64) -> Vec<Vec<u8>> {
        let (mut packets, mut out) = (vec![], vec![]);
        let (node, view, group) = (NodeId(1), Epoch(7), GroupId(2));
        let caught_up = CaughtUp { log_idx: Position(at_ms), followers: Followers(0b101) };
        let by = Speaker { node, view, group, weigh_ns: 100 * MS, caught_up };
        session.tell(Instant(at_ms * MS), by, &mut out, |packet| packets.push(packet.to_vec()));
        packets
    }

    fn said(session: &mut Session, at_ms: u64) -> Vec<SessionMessage> {
        let packets = told(session, at_ms);
        packets.iter().map(|packet| SessionMessage::parse(packet).unwrap()).collect()
    }

    fn confirm(session: &mut Session, at_ms: u64, sid: Sid, step: Step) {
        let probe = at_ms + 1_000;
        let (view, from, switch) = (7, 1, SWITCH.0);
        let confirmed = SessionMessage::Confirmed { view, from, switch, sid, step, probe };
        session.on_confirmed(Instant(at_ms * MS), &confirmed);
    }

    /// Each step is said until it is confirmed and the next one not before.
    #[test]
    fn t28_steps_are_confirmed_in_order() {
        let mut s = begun();
        for at_ms in [0, 20, 40] {
            assert!(matches!(said(&mut s, at_ms)[..], [SessionMessage::Begin { sid: SID, .. }]));
            assert!(told(&mut s, at_ms + 19).is_empty());
        }
        confirm(&mut s, 45, Sid(6), Step::Begun { groups: 256, load_awareness: false });
        confirm(&mut s, 45, SID, Step::Active);
        assert!(matches!(said(&mut s, 60)[..], [SessionMessage::Begin { .. }]));
        confirm(&mut s, 65, SID, Step::Begun { groups: 256, load_awareness: false });
        let chunks = |said: &[SessionMessage]| {
            let of = |m: &SessionMessage| match m {
                SessionMessage::Groups { chunk, groups, .. } if groups.len() == 64 => *chunk,
                other => panic!("{other:?}"),
            };
            said.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(chunks(&said(&mut s, 65)), [0, 1, 2, 3]);
        for chunk in [0, 3, 1, 9, 1] {
            confirm(&mut s, 70, SID, Step::Chunk { chunk });
        }
        assert_eq!(chunks(&said(&mut s, 85)), [2]);
        confirm(&mut s, 86, SID, Step::Chunk { chunk: 2 });
        let (view, from, switch, sid) = (7, 1, SWITCH.0, SID);
        let activate = SessionMessage::Activate { view, from, switch, sid, probe: 1_086 };
        assert_eq!(said(&mut s, 86), [activate]);
        confirm(&mut s, 90, SID, Step::Active);
        let beat = Heartbeat::parse(&told(&mut s, 90)[0]).unwrap();
        assert_eq!((beat.sid, beat.probe, beat.group), (SID, Instant(1_090), GroupId(2)));
        assert_eq!((beat.caught_up.log_idx, beat.caught_up.followers.0), (Position(90), 0b101));
        s.on_probe(&Heartbeat { probe: Instant(2_000), ..beat });
        s.on_probe(&Heartbeat { probe: Instant(9_000), sid: Sid(8), ..beat });
        s.on_probe(&Heartbeat { probe: Instant(9_000), switch: SwitchId(2), ..beat });
        assert!(told(&mut s, 114).is_empty());
        let beat = Heartbeat::parse(&told(&mut s, 115)[0]).unwrap();
        assert_eq!(beat.probe, Instant(2_000));
        s.end();
        assert!(told(&mut s, 1_000).is_empty() && !s.is_begun());
        assert_eq!(s.next_at(), Instant::NEVER);
    }

    /// Who keeps up has what was committed between one and two intervals ago.
    #[test]
    fn follower_that_keeps_up_lags_by_two_intervals() {
        let mut s = begun();
        let mut mark = |at_ms, committed| s.kept_up_to(Instant(at_ms * MS), Position(committed)).0;
        assert_eq!([mark(0, 9), mark(124, 40), mark(125, 50), mark(249, 90)], [9; 4]);
        assert_eq!([mark(250, 100), mark(374, 150)], [50; 2]);
        assert_eq!([mark(900, 200), mark(1_024, 250), mark(1_025, 300)], [100, 100, 200]);
    }

    fn active(load_awareness: bool) -> Session {
        let mut s = begun();
        confirm(&mut s, 1, SID, Step::Begun { groups: 64, load_awareness });
        confirm(&mut s, 1, SID, Step::Chunk { chunk: 0 });
        confirm(&mut s, 1, SID, Step::Active);
        told(&mut s, 1);
        s
    }

    fn weights(s: &mut Session, at_ms: u64) -> Option<(u32, Weights)> {
        let told = told(s, at_ms);
        let mut messages = told.iter().filter_map(|packet| SessionMessage::parse(packet).ok());
        match messages.next()? {
            SessionMessage::Weights { sid: SID, round, weights, .. } => Some((round, weights)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn section_4_4_2_weights_are_said_until_they_are_confirmed() {
        let mut s = active(true);
        s.note_queue(2, 100);
        s.note_queue(0, 0);
        assert_eq!(weights(&mut s, 76), None);
        let (round, first) = weights(&mut s, 101).unwrap();
        assert!(round == 1 && first[2] < first[1] && first[0] > first[1], "{first:?}");
        assert_eq!(weights(&mut s, 126), Some((1, first)));
        // Of others, or of another session.
        confirm(&mut s, 127, SID, Step::Weighed { round: 0 });
        confirm(&mut s, 127, Sid(6), Step::Weighed { round: 1 });
        s.note_queue(2, 100);
        s.note_queue(0, 0);
        let (round, second) = weights(&mut s, 226).unwrap();
        assert!(round == 2 && second[2] < first[2], "{second:?}");
        confirm(&mut s, 227, SID, Step::Weighed { round: 1 });
        assert_eq!(weights(&mut s, 251), Some((2, second)));
        confirm(&mut s, 252, SID, Step::Weighed { round: 2 });
        assert_eq!(weights(&mut s, 276), None);
    }

    #[test]
    fn a_switch_that_does_not_balance_by_load_is_told_no_weights() {
        let mut s = active(false);
        for round in 1..20 {
            s.note_queue(0, 1_000);
            s.note_queue(1, 0);
            assert_eq!(weights(&mut s, 100 * round), None);
        }
    }

    /// The most that a rack file may ask for. Before it waited 20 ms for each 64 chunks.
    #[test]
    fn bug_20_7_upload_proceeds_as_chunks_are_confirmed() {
        let mut s = begun();
        told(&mut s, 0);
        confirm(&mut s, 1, SID, Step::Begun { groups: 131_072, load_awareness: false });
        for round in 0..2_048 / 64 {
            let said = said(&mut s, 1);
            assert_eq!(said.len(), 64, "round {round}");
            for message in &said {
                let SessionMessage::Groups { chunk, .. } = *message else { panic!("{message:?}") };
                assert!(told(&mut s, 1).is_empty(), "no more than so many are under way");
                confirm(&mut s, 1, SID, Step::Chunk { chunk });
            }
        }
        assert!(matches!(said(&mut s, 1)[..], [SessionMessage::Activate { .. }]));
    }

    #[test]
    fn a_switch_without_key_groups_or_with_too_many_gets_none() {
        let mut s = begun();
        for groups in [0, u32::MAX] {
            confirm(&mut s, 5, SID, Step::Begun { groups, load_awareness: false });
            assert!(matches!(
                said(&mut s, 20 + u64::from(groups % 2) * 20)[..],
                [SessionMessage::Begin { .. }]
            ));
        }
    }
}
