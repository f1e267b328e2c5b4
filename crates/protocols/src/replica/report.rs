//! Reports to the controller: their content, and when they are due. Which members a replica hears
//! of is part of it: the controller takes one of two that do not hear each other out of the group,
//! for which all writes would wait otherwise.
//!
//! Members hear of each other by what they say anyway: where their logs end while an epoch opens,
//! and requests for leases and their grants from then on. A joining replica asks them.

use alloc::vec::Vec;

use concord_core::{Duration, Instant};
use concord_wire::control::{Member, Standing};

/// What was told last, and what there is to tell.
#[derive(Clone, Debug)]
pub(super) struct Report {
    reach: Reach,
    /// Where it stood when the controller was told last.
    said: Option<Standing>,
    next_alive: Instant,
}

/// When each other member was heard of last, in the epoch in force.
#[derive(Clone, Debug, Default)]
struct Reach {
    heard: Vec<(u16, Option<Instant>)>,
    /// What the controller was told last.
    told: Vec<u16>,
}

impl Default for Report {
    fn default() -> Report {
        Report { reach: Reach::default(), said: None, next_alive: Instant(0) }
    }
}

impl Report {
    /// The controller is to hear something now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next_alive = now;
    }

    /// When to tell it.
    pub(super) fn next_at(&self) -> Instant {
        self.next_alive
    }

    /// What it was told last.
    pub(super) fn said(&self) -> Option<Standing> {
        self.said
    }

    /// Whether it is to be told now where this replica stands, and again `every_ns`.
    pub(super) fn is_due(&mut self, now: Instant, standing: Standing, every_ns: Duration) -> bool {
        let is_due = now >= self.next_alive || self.said != Some(standing);
        if is_due {
            self.next_alive = now.after(every_ns);
            self.said = Some(standing);
        }
        is_due
    }

    /// A new epoch with these other members. They have not said anything yet; among members that is
    /// no silence, one that joins must first hear of them.
    pub(super) fn begin<'a>(
        &mut self,
        now: Instant,
        others: impl Iterator<Item = &'a Member>,
        is_member: bool,
    ) {
        self.reach.heard.clear();
        self.reach.heard.extend(others.map(|m| (m.node, is_member.then_some(now))));
    }

    /// `node` said something. If it was called silent, it is not any more, and the controller hears
    /// of that at once.
    pub(super) fn hear(&mut self, now: Instant, node: u16) {
        let own = self.reach.heard.iter_mut().find(|(other, _)| *other == node);
        let Some((_, heard)) = own else { return };
        *heard = Some(now);
        if self.reach.told.contains(&node) {
            self.next_alive = now;
        }
    }

    /// Who has said nothing for so long, to be told to the controller.
    pub(super) fn unheard(&mut self, now: Instant, silent_ns: Duration) -> Vec<u16> {
        let is_silent = |heard: Option<Instant>| heard.is_none_or(|at| now.since(at) > silent_ns);
        let Reach { heard, told } = &mut self.reach;
        told.clear();
        told.extend(heard.iter().filter(|(_, h)| is_silent(*h)).map(|(node, _)| *node));
        told.clone()
    }
}

#[cfg(test)]
mod tests {
    use concord_wire::Addr;

    use super::*;

    const OTHERS: [Member; 2] = [member(2), member(3)];
    const SILENT_NS: Duration = 100;

    const fn member(node: u16) -> Member {
        Member { node, incarnation: 1, addr: Addr { ip: 1, port: 1 } }
    }

    fn begun(is_member: bool) -> Report {
        let mut report = Report::default();
        report.begin(Instant(50), OTHERS.iter(), is_member);
        report
    }

    #[test]
    fn the_controller_hears_now_and_then_and_at_once_of_what_is_new() {
        let mut report = Report::default();
        assert_eq!(report.said(), None);
        let mut is_due = |at, standing| report.is_due(Instant(at), standing, 10);
        assert!(is_due(0, Standing::Out));
        assert!(!is_due(9, Standing::Out) && is_due(10, Standing::Out));
        assert!(is_due(11, Standing::Leaving) && !is_due(20, Standing::Leaving));
        assert_eq!((report.said(), report.next_at()), (Some(Standing::Leaving), Instant(21)));
        report.hurry(Instant(15));
        assert_eq!(report.next_at(), Instant(15));
        assert!(report.is_due(Instant(15), Standing::Leaving, 10));
    }

    /// A member is silent after a while and to one that joins until it is heard of.
    #[test]
    fn member_silence_and_joiners() {
        let mut report = begun(true);
        assert_eq!(report.unheard(Instant(150), SILENT_NS), []);
        assert_eq!(report.unheard(Instant(151), SILENT_NS), [2, 3]);
        report.hear(Instant(100), 3);
        assert_eq!(report.unheard(Instant(151), SILENT_NS), [2]);
        let mut report = begun(false);
        assert_eq!(report.unheard(Instant(50), SILENT_NS), [2, 3]);
        report.hear(Instant(60), 2);
        report.hear(Instant(60), 9);
        assert_eq!(report.unheard(Instant(60), SILENT_NS), [3]);
        report.begin(Instant(70), OTHERS[1..].iter(), true);
        assert_eq!(report.unheard(Instant(900), SILENT_NS), [3], "of the epoch in force alone");
    }

    /// The controller hears at once that who was called silent is not.
    #[test]
    fn recovered_member_is_reported_at_once() {
        let mut report = begun(true);
        report.hear(Instant(100), 3);
        assert_eq!(report.unheard(Instant(151), SILENT_NS), [2]);
        report.hurry(Instant(999));
        report.hear(Instant(160), 3);
        assert_eq!(report.next_at(), Instant(999), "that one was not");
        report.hear(Instant(161), 2);
        assert_eq!(report.next_at(), Instant(161));
        assert_eq!(report.unheard(Instant(162), SILENT_NS), []);
        report.hurry(Instant(999));
        report.hear(Instant(163), 2);
        assert_eq!(report.next_at(), Instant(999));
    }
}
