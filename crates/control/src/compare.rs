//! The comparison of the replicas' states: digests that replicas made of one part, at one position
//! of one log, are equal, or the states are not.
//!
//! If most of the replicas agree, the others are the ones that differ; otherwise nobody knows which
//! state is right. A difference is reported until all that differed have left or been started anew:
//! then they have copied the state. Equal digests later do not end it: of a large value each digest
//! has another part. The controller only reports it: clients' data is not dropped on the word of a
//! digest.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_wire::control::{Compared, Member};

use crate::{Controller, Problem};

/// The largest number of digests of a replica that are remembered.
const HEARD_MAX: usize = 32;
/// The largest number of differences that are remembered.
const FOUND_MAX: usize = 16;

/// The digests that a group's replicas reported, and the differences that they show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparisons {
    /// By node: its incarnation, and its newest digests.
    heard: BTreeMap<u16, (u64, VecDeque<Compared>)>,
    found: Vec<Difference>,
}

/// A part in which replicas differ.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    first: u16,
    end: u16,
    position: u64,
    /// The replicas that differ from most of the others, each with its incarnation; all of them if
    /// no value has a majority.
    nodes: Vec<(u16, u64)>,
    has_majority: bool,
}

/// The outcome of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The number of digests that were compared with those of other replicas, and of those among
    /// them that showed a difference.
    pub compared: u64,
    pub unequal: u64,
}

impl Comparisons {
    /// Takes the digests of a member.
    pub(crate) fn hear(&mut self, node: u16, incarnation: u64, made: &[Compared]) -> Outcome {
        let own = self.heard.entry(node).or_default();
        if own.0 != incarnation {
            *own = (incarnation, VecDeque::new());
        }
        let mut outcome = Outcome::default();
        for digest in made {
            let Some((_, known)) = self.heard.get_mut(&node) else { continue };
            if known.contains(digest) {
                continue;
            }
            if known.len() == HEARD_MAX {
                known.pop_front();
            }
            known.push_back(*digest);
            self.compare(digest, &mut outcome);
        }
        outcome
    }

    /// Hears of a node: if it was started anew it has copied the state, and what differed is over.
    pub(crate) fn meet(&mut self, node: &Member, members: &[Member]) {
        self.hear(node.node, node.incarnation, &[]);
        self.retain(members);
    }

    /// Forgets nodes that are not these members, and the differences that only such nodes had.
    pub(crate) fn retain(&mut self, members: &[Member]) {
        let is_member = |node: u16| members.iter().any(|m| m.node == node);
        self.heard.retain(|node, _| is_member(*node));
        let heard = &self.heard;
        self.found.retain_mut(|difference| {
            let stays = |(node, incarnation): &(u16, u64)| {
                heard.get(node).is_some_and(|(own, _)| own == incarnation)
            };
            difference.nodes.retain(stays);
            difference.nodes.len() > usize::from(!difference.has_majority)
        });
    }

    /// Compares what all replicas have reported of one part at one position.
    fn compare(&mut self, digest: &Compared, outcome: &mut Outcome) {
        let is_same = |other: &&Compared| {
            (other.position, other.hash, other.first)
                == (digest.position, digest.hash, digest.first)
        };
        let said: Vec<((u16, u64), Compared)> = self
            .heard
            .iter()
            .filter_map(|(node, (own, known))| Some(((*node, *own), *known.iter().find(is_same)?)))
            .collect();
        if said.len() < 2 {
            return;
        }
        outcome.compared += 1;
        let votes = |value: &Compared| said.iter().filter(|(_, other)| other == value).count();
        let Some((_, most)) = said.iter().max_by_key(|(_, value)| votes(value)) else { return };
        let nodes = |is: &dyn Fn(&Compared) -> bool| -> Vec<(u16, u64)> {
            said.iter().filter(|(_, value)| is(value)).map(|(node, _)| *node).collect()
        };
        if votes(most) == said.len() {
            return;
        }
        outcome.unequal += 1;
        let has_majority = 2 * votes(most) > said.len();
        let differing = nodes(&|value| !has_majority || value != most);
        let end = said.iter().map(|(_, value)| value.end).max().unwrap_or(digest.end);
        let (first, position) = (digest.first, digest.position);
        self.found.retain(|known| known.first != first);
        if self.found.len() < FOUND_MAX {
            let nodes = differing;
            self.found.push(Difference { first, end, position, nodes, has_majority });
        }
    }

    /// The difference to report.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let Difference { first, end, position, nodes, has_majority } = self.found.first()?;
        let (first, end, position) = (*first, *end, *position);
        match (nodes.as_slice(), *has_majority) {
            ([(node, _), ..], true) => Some(Problem::Differs { node: *node, position, first, end }),
            ([(one, _), (other, _), ..], false) => {
                Some(Problem::Differ { one: *one, other: *other, position, first, end })
            }
            _ => None,
        }
    }
}

impl Controller {
    /// A part in which the replicas of some group differ, even where [`Controller::problem`] says
    /// something worse.
    #[must_use]
    pub fn difference(&self) -> Option<Problem> {
        self.groups.iter().find_map(|group| group.comparisons.problem())
    }

    /// Takes the digests that a member made of its state.
    pub(crate) fn on_compared(&mut self, index: usize, from: (u16, u64), made: &[Compared]) {
        let group = &mut self.groups[index];
        let members = self.state.config(group.id()).map_or(&[][..], |config| &config.members);
        let (node, incarnation) = from;
        // VR, NOPaxos and Raft name their members by the incarnations with which they began.
        let is_member = members.iter().any(|m| m.node == node)
            && group.nodes.get(&node).is_some_and(|n| n.member.incarnation == incarnation);
        if !is_member {
            self.count.unexpected += 1;
            return;
        }
        let outcome = group.comparisons.hear(node, incarnation, made);
        group.comparisons.retain(members);
        self.count.digests_compared += outcome.compared;
        self.count.digests_unequal += outcome.unequal;
    }
}

#[cfg(test)]
mod tests {
    use concord_wire::Addr;

    use super::*;

    fn digest(position: u64, (first, end): (u16, u16), digest: u64) -> Compared {
        Compared { position, hash: position, first, end, keys: 9, digest }
    }

    fn member(node: u16) -> Member {
        Member { node, incarnation: 1, addr: Addr { ip: 1, port: node } }
    }

    /// Reports of several nodes about one position and part.
    fn all(c: &mut Comparisons, position: u64, range: (u16, u16), digests: &[u64]) -> Outcome {
        let mut sum = Outcome::default();
        for (at, value) in digests.iter().enumerate() {
            let Outcome { compared, unequal } =
                c.hear(at as u16 + 1, 1, &[digest(position, range, *value)]);
            sum.compared += compared;
            sum.unequal += unequal;
        }
        sum
    }

    /// The one of three that differs is named, with the part, whatever is equal later.
    #[test]
    fn the_one_that_differs_is_named() {
        let mut c = Comparisons::default();
        assert_eq!(all(&mut c, 5, (0, 40), &[7, 7, 7]), Outcome { compared: 2, unequal: 0 });
        assert_eq!(c.problem(), None);
        assert_eq!(all(&mut c, 6, (40, 90), &[7, 8, 7]), Outcome { compared: 2, unequal: 2 });
        let expected = Problem::Differs { node: 2, position: 6, first: 40, end: 90 };
        assert_eq!(c.problem(), Some(expected));
        all(&mut c, 7, (90, 4096), &[1, 1, 1]);
        all(&mut c, 8, (40, 90), &[3, 3, 3]);
        assert_eq!(c.problem(), Some(expected));
    }

    /// Of two that differ, or of three that all do, nobody knows which is right.
    #[test]
    fn without_a_majority_nobody_is_named() {
        let mut c = Comparisons::default();
        all(&mut c, 6, (0, 90), &[7, 8]);
        let differ = Problem::Differ { one: 1, other: 2, position: 6, first: 0, end: 90 };
        assert_eq!(c.problem(), Some(differ));
        all(&mut c, 7, (0, 90), &[1, 2, 3]);
        let differ = Problem::Differ { one: 1, other: 2, position: 7, first: 0, end: 90 };
        assert_eq!(c.problem(), Some(differ));
    }

    /// Digests of different positions, logs or parts are not compared, and none twice.
    #[test]
    fn only_the_same_position_log_and_part_count() {
        let mut c = Comparisons::default();
        let own = digest(6, (0, 90), 7);
        assert_eq!(c.hear(1, 1, &[own, own]), Outcome::default());
        for other in [
            Compared { position: 7, digest: 1, ..own },
            Compared { hash: 9, digest: 1, ..own },
            Compared { first: 1, digest: 1, ..own },
        ] {
            assert_eq!(c.hear(2, 1, &[other]), Outcome::default());
        }
        assert_eq!(c.problem(), None);
        // Another number of keys, or another end, is a difference as well.
        let outcome = c.hear(2, 1, &[Compared { end: 91, ..own }]);
        assert_eq!(outcome, Outcome { compared: 1, unequal: 1 });
        assert_eq!(c.hear(2, 1, &[Compared { end: 91, ..own }]), Outcome::default());
    }

    /// A replica that left, or was started anew, has copied the state since.
    #[test]
    fn a_difference_ends_with_its_replica() {
        let three = [member(1), member(2), member(3)];
        let mut c = Comparisons::default();
        all(&mut c, 6, (0, 90), &[7, 7, 8]);
        c.retain(&three);
        assert!(c.problem().is_some());
        let mut without = c.clone();
        without.retain(&three[..2]);
        assert_eq!(without.problem(), None);
        c.meet(&three[2], &three);
        assert!(c.problem().is_some());
        c.meet(&Member { incarnation: 2, ..three[2] }, &three);
        assert_eq!(c.problem(), None);
    }

    /// What is remembered is bounded.
    #[test]
    fn comparisons_are_bounded() {
        let mut c = Comparisons::default();
        for n in 0..1_000 {
            all(&mut c, u64::from(n), (n, n + 1), &[1, 2, 1]);
        }
        assert_eq!(c.found.len(), FOUND_MAX);
        assert!(c.heard.values().all(|(_, known)| known.len() == HEARD_MAX));
    }
}
