//! The number of replicas that have what was acknowledged, by the configuration that the controller
//! tells; and clients that wait until they are more (WAIT).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use concord_core::{Duration, Instant, MS, SEC};
use concord_wire::control::{Assembly, Config, ConfigPart};

use crate::blocking::waiters::End;
use crate::connection::id::ConnectionId;

/// The time for which the controller's answer counts.
const FRESH_NS: Duration = SEC;
/// The controller is asked again after that long; twice in vain, and what was told last counts.
const RETRY_NS: Duration = 100 * MS;
const ATTEMPTS_MAX: u32 = 2;

/// A client that waits for more replicas.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    wanted: i64,
    until: Option<Instant>,
}

/// A question to the controller that is not answered.
#[derive(Clone, Copy, Debug)]
struct Question {
    again_at: Instant,
    attempts: u32,
}

/// The known members, and the clients that wait for more.
#[derive(Debug)]
pub(crate) struct Members {
    /// The newest configuration: its rack, its epoch, and the number of replicas beside the
    /// answering one that have every acknowledged write.
    known: Option<(u64, u32, i64)>,
    /// Until then what is known is new enough.
    fresh_until: Instant,
    question: Option<Question>,
    assembly: Assembly,
    /// The connections whose commands wait for the controller's answer.
    askers: BTreeSet<ConnectionId>,
    waiting: BTreeMap<ConnectionId, Waiter>,
    due: BTreeSet<(Instant, ConnectionId)>,
    /// The connections whose waits are over, with an error or the number of replicas.
    ended: VecDeque<(ConnectionId, Result<i64, End>)>,
}

impl Default for Members {
    fn default() -> Members {
        Members {
            known: None,
            fresh_until: Instant(0),
            question: None,
            assembly: Assembly::new(1),
            askers: BTreeSet::new(),
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            ended: VecDeque::new(),
        }
    }
}

/// The number of replicas beside the answering one that have a write when it is answered: all
/// others; if a majority decides, the rest of one.
fn proven(config: &Config) -> i64 {
    let members = config.members.len();
    let others = if config.kind.is_quorum() { members / 2 } else { members.saturating_sub(1) };
    i64::try_from(others).unwrap_or(i64::MAX)
}

impl Members {
    /// The number of replicas beside the answering one that have every acknowledged write; 0 if it
    /// is not known.
    pub(crate) fn count(&self) -> i64 {
        self.known.map_or(0, |(_, _, count)| count)
    }

    /// Whether that is new enough.
    pub(crate) fn are_fresh(&self, now: Instant) -> bool {
        now < self.fresh_until
    }

    /// The number of clients that wait for more replicas.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn has(&self, id: ConnectionId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// A command of `id` needs the number: whether the controller is to be asked now.
    pub(crate) fn ask_for(&mut self, now: Instant, id: ConnectionId) -> bool {
        self.askers.insert(id);
        let is_new = self.question.is_none();
        if is_new {
            self.ask(now);
        }
        is_new
    }

    fn ask(&mut self, now: Instant) {
        let attempts = self.question.map_or(0, |question| question.attempts) + 1;
        self.question = Some(Question { again_at: now.after(RETRY_NS), attempts });
    }

    /// Whether to ask the controller now: again, or since a client waits for a change.
    pub(crate) fn must_ask(&mut self, now: Instant) -> bool {
        let is_due = match self.question {
            Some(question) if now < question.again_at => false,
            Some(question) if question.attempts >= ATTEMPTS_MAX => {
                self.learnt(now);
                false
            }
            Some(_) => true,
            None => !self.waiting.is_empty() && !self.are_fresh(now),
        };
        if is_due {
            self.ask(now);
        }
        is_due
    }

    /// Whether a question to the controller is unanswered.
    pub(crate) fn are_asked(&self) -> bool {
        self.question.is_some()
    }

    /// The controller tells of a configuration, or of a part of it.
    pub(crate) fn told(&mut self, now: Instant, part: ConfigPart) {
        let Some(config) = self.assembly.take(part) else { return };
        let is_older = |(rack, epoch, _)| rack == config.rack && epoch > config.epoch;
        if !self.known.is_some_and(is_older) {
            self.known = Some((config.rack, config.epoch, proven(&config)));
        }
        self.learnt(now);
    }

    /// Notes that the knowledge is up to date.
    fn learnt(&mut self, now: Instant) {
        self.question = None;
        self.fresh_until = now.after(FRESH_NS);
        let count = self.count();
        let enough = self.waiting.iter().filter(|(_, waiter)| waiter.wanted <= count);
        let enough: Vec<ConnectionId> = enough.map(|(id, _)| *id).collect();
        enough.into_iter().for_each(|id| self.end_with(id, Ok(count)));
    }

    /// Removes and returns the connections whose commands waited for the number.
    pub(crate) fn take_askers(&mut self) -> BTreeSet<ConnectionId> {
        match self.question {
            Some(_) => BTreeSet::new(),
            None => core::mem::take(&mut self.askers),
        }
    }

    /// `id` waits for more replicas than there are; `None`: for ever.
    pub(crate) fn wait(
        &mut self,
        now: Instant,
        id: ConnectionId,
        wanted: i64,
        timeout_ns: Option<Duration>,
    ) {
        let until = timeout_ns.map(|ns| now.after(ns));
        self.due.extend(until.map(|until| (until, id)));
        self.waiting.insert(id, Waiter { wanted, until });
    }

    fn end_with(&mut self, id: ConnectionId, how: Result<i64, End>) {
        self.forget_wait(id);
        self.ended.push_back((id, how));
    }

    fn forget_wait(&mut self, id: ConnectionId) {
        let waiter = self.waiting.remove(&id);
        if let Some(until) = waiter.and_then(|waiter| waiter.until) {
            self.due.remove(&(until, id));
        }
    }

    /// The connection is gone.
    pub(crate) fn forget(&mut self, id: ConnectionId) {
        self.forget_wait(id);
        self.askers.remove(&id);
    }

    /// Ends waits whose time has come.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.end_with(id, Ok(self.count()));
        }
    }

    /// CLIENT UNBLOCK; false if there is no such wait.
    pub(crate) fn end(&mut self, id: ConnectionId, end: End) -> bool {
        let has = self.has(id);
        if has {
            self.end_with(id, if end == End::Timeout { Ok(self.count()) } else { Err(end) });
        }
        has
    }

    /// The next wait that is over.
    pub(crate) fn poll_end(&mut self) -> Option<(ConnectionId, Result<i64, End>)> {
        self.ended.pop_front()
    }

    pub(crate) fn deadline(&self) -> Instant {
        let asks_at = match self.question {
            Some(question) => question.again_at,
            None if self.waiting.is_empty() => Instant::NEVER,
            None => self.fresh_until,
        };
        self.due.first().map_or(Instant::NEVER, |(at, _)| *at).min(asks_at)
    }
}

#[cfg(test)]
mod tests {
    use concord_wire::Addr;
    use concord_wire::control::{GroupKind, Member, Program, Protocol};
    use concord_wire::header::GroupId;

    use super::*;

    fn config(epoch: u32, protocol: Protocol, members: usize) -> Config {
        let member = |node| Member { node, incarnation: 1, addr: Addr { ip: 1, port: node } };
        Config {
            epoch,
            group: GroupId(0),
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: Addr::default(),
            kind: GroupKind::Replicas(protocol),
            program: Program::of(protocol, false),
            members: (1..=members as u16).map(member).collect(),
            joining: Vec::new(),
        }
    }

    #[test]
    fn an_acknowledgement_proves_all_other_members_or_a_majority() {
        for (protocol, members, others) in [
            (Protocol::Chain, 3, 2),
            (Protocol::PrimaryBackup, 1, 0),
            (Protocol::Craq, 5, 4),
            (Protocol::Vr, 3, 1),
            (Protocol::NoPaxos, 5, 2),
            (Protocol::Raft, 4, 2),
            (Protocol::Vr, 1, 0),
        ] {
            assert_eq!(proven(&config(1, protocol, members)), others, "{protocol:?} {members}");
        }
    }

    #[test]
    fn the_newest_configuration_counts_and_ends_waits() {
        let (mut members, now) = (Members::default(), Instant(SEC));
        assert!(!members.are_fresh(now) && members.ask_for(now, ConnectionId(1)));
        assert!(!members.ask_for(now, ConnectionId(2)), "it is asked already");
        assert!(members.take_askers().is_empty());
        members.told(now, config(5, Protocol::Chain, 2).into());
        assert_eq!((members.take_askers().len(), members.count()), (2, 1));
        members.told(now, config(4, Protocol::Chain, 3).into());
        assert_eq!(members.count(), 1, "that was an earlier one");
        members.wait(now, ConnectionId(1), 2, None);
        members.wait(now, ConnectionId(2), 3, Some(MS));
        members.told(now, config(6, Protocol::Chain, 3).into());
        assert_eq!(members.poll_end(), Some((ConnectionId(1), Ok(2))));
        members.expire(now.after(MS));
        assert_eq!(members.poll_end(), Some((ConnectionId(2), Ok(2))));
        assert_eq!((members.poll_end(), members.deadline()), (None, Instant::NEVER));
    }

    #[test]
    fn a_controller_that_is_silent_is_asked_twice() {
        let (mut members, now) = (Members::default(), Instant(SEC));
        assert!(members.ask_for(now, ConnectionId(1)));
        let again = members.deadline();
        assert!(!members.must_ask(now) && members.must_ask(again));
        assert!(!members.must_ask(members.deadline()));
        assert!(members.are_fresh(again.after(RETRY_NS)) && members.take_askers().len() == 1);
    }
}
