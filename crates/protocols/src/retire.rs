//! A replica that is told to end goes in order, so that nobody notices but by its absence.
//!
//! Primary-backup, chain and CRAQ: it says so to the controller, and goes on as before until it hears of an
//! epoch without it. Then it answers nothing any more, and gives back the leases that it held, so that
//! the epoch opens at once (trap T2). What it gives back is its incarnation's for good: it never takes
//! part again. VR and NOPaxos: `vr/retire.rs`.
//!
//! It does not wait for ever: the controller may be down, and it does not take out the last one that has
//! all the data. Then it stops answering, gives its leases back and goes all the same.

use concord_core::{Duration, Instant, MS, Now};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::{LeaseMessage, Member, Standing};

use crate::replica::{ALIVE_NS, Phase, RETRY_NS, Replica};

/// How long a replica that was told to end waits at most until the others go on without it.
pub const RETIRE_NS_MAX: Duration = 800 * MS;
/// How often leases are given back: nobody answers that, and packets get lost.
pub(crate) const RELEASES: u8 = 3;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// The others have gone on without it, and wait for nothing of it.
    InOrder,
    /// It is the only member: nobody can go on.
    Alone,
    /// It has waited for as long as it may: the controller is not reached, or nobody else has all of the
    /// data, or no quorum goes on.
    InVain,
}

/// A replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retiring {
    /// When it stops waiting.
    pub(crate) until: Instant,
    /// How often it has said that it holds no lease any more.
    pub(crate) releases: u8,
    /// When to do the next step.
    pub(crate) next_at: Instant,
}

impl Retiring {
    pub(crate) fn begin(now: Instant) -> Retiring {
        Retiring { until: now.after(RETIRE_NS_MAX), releases: 0, next_at: now }
    }

    /// Whether the next step is due; the one behind it comes as late as what is said again.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_at;
        if is_due {
            self.next_at = now.after(RETRY_NS);
        }
        is_due
    }
}

impl<E: Engine> Replica<E> {
    /// Tells it to end: it leaves, and whoever hosts it lets it go on until [`Replica::retired`] says how
    /// that went.
    pub fn retire(&mut self, now: Now) {
        if self.retiring.is_none() {
            self.retiring = Some(Retiring::begin(now.instant));
            self.next_alive = now.instant;
        }
    }

    /// Whether it has left, if it was told to end.
    #[must_use]
    pub fn retired(&self, now: Now) -> Option<Retired> {
        let retiring = self.retiring.as_ref()?;
        let Some(config) = &self.config else {
            return (self.said == Some(Standing::Leaving)).then_some(Retired::InOrder);
        };
        let (has_place, has_released) = (self.has_place(), retiring.releases >= RELEASES);
        if !has_place && has_released {
            return Some(Retired::InOrder);
        }
        if config.members.len() == 1 && config.joining.is_empty() && has_place {
            return Some(Retired::Alone);
        }
        (has_released && now.instant >= retiring.until).then_some(Retired::InVain)
    }

    /// Whether the configuration that it knows has a place for it.
    fn has_place(&self) -> bool {
        let me = self.setup.me;
        let is_me = |m: &Member| (m.node, m.incarnation) == (me.node, me.incarnation);
        self.config.iter().any(|c| c.members.iter().chain(&c.joining).any(is_me))
    }

    /// How often the controller hears that it lives; of one that goes, sooner.
    pub(crate) fn alive_ns(&self) -> Duration {
        if self.retiring.is_some() { RETRY_NS } else { ALIVE_NS }
    }

    /// Gives back what leases it held, once it can use none any more.
    pub(crate) fn tick_retiring(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.retiring.is_some_and(|r| now >= r.until) {
            self.leave();
        }
        let may_answer = !matches!(self.phase, Phase::Out | Phase::Left);
        let Some(retiring) = &mut self.retiring else { return };
        if !retiring.is_due(now) || may_answer || retiring.releases >= RELEASES {
            return;
        }
        retiring.releases += 1;
        let me = self.setup.me;
        let release = LeaseMessage::Release { from: me.node, incarnation: me.incarnation };
        self.tell_others(&release, sink);
    }
}
