//! Reports to the controller: their content, and when they are due. They include the members that a
//! replica hears: if two do not hear each other, the controller removes one of them from the group,
//! whose writes would otherwise all wait.
//!
//! Members hear each other through regular messages: the ends of logs while an epoch opens, and
//! lease requests and grants from then on. A joining replica asks them.

use alloc::vec::Vec;

use concord_core::{Duration, Instant};
use concord_wire::control::{Member, Standing};

/// The last report, and the data of the next one.
#[derive(Clone, Debug)]
pub(super) struct Report {
    reach: Reach,
    /// The standing in the last report.
    said: Option<Standing>,
    next_alive: Instant,
}

/// For each other member, the time at which it was last heard in the epoch in force.
#[derive(Clone, Debug, Default)]
struct Reach {
    heard: Vec<(u16, Option<Instant>)>,
    /// The silent members in the last report.
    told: Vec<u16>,
}

impl Default for Report {
    fn default() -> Report {
        Report { reach: Reach::default(), said: None, next_alive: Instant(0) }
    }
}

impl Report {
    /// Makes a report due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next_alive = now;
    }

    /// The time at which a report is due.
    pub(super) fn next_at(&self) -> Instant {
        self.next_alive
    }

    /// The standing in the last report.
    pub(super) fn said(&self) -> Option<Standing> {
        self.said
    }

    /// Whether a report is due, given the current standing. The next one is due after `every_ns`.
    pub(super) fn is_due(&mut self, now: Instant, standing: Standing, every_ns: Duration) -> bool {
        let is_due = now >= self.next_alive || self.said != Some(standing);
        if is_due {
            self.next_alive = now.after(every_ns);
            self.said = Some(standing);
        }
        is_due
    }

    /// Begins an epoch with these other members. None has been heard yet; among members that does
    /// not count as silence, while a joining replica must first hear them.
    pub(super) fn begin<'a>(
        &mut self,
        now: Instant,
        others: impl Iterator<Item = &'a Member>,
        is_member: bool,
    ) {
        self.reach.heard.clear();
        self.reach.heard.extend(others.map(|m| (m.node, is_member.then_some(now))));
    }

    /// Notes that `node` was heard. If it was reported as silent, the controller is told at once
    /// that it is not.
    pub(super) fn hear(&mut self, now: Instant, node: u16) {
        let own = self.reach.heard.iter_mut().find(|(other, _)| *other == node);
        let Some((_, heard)) = own else { return };
        *heard = Some(now);
        if self.reach.told.contains(&node) {
            self.next_alive = now;
        }
    }

    /// The nodes that have been silent for so long, to be reported to the controller.
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
