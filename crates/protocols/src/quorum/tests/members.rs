//! Raft: who votes is changed (dissertation §4), and what that must not break. Scripts:
//! `tests/raft/*.txt`.

use super::raft::holds;
use super::*;
use crate::quorum::ChangeRefused;
use concord_wire::control::VoterOutcome;

impl Group {
    pub(super) fn change(
        &mut self,
        leader: usize,
        node: usize,
        votes: bool,
    ) -> Result<(), ChangeRefused> {
        let (now, node) = (self.now, NodeId(node as u16 + 1));
        let done = self.nodes[leader].change_voter(now, node, votes);
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        self.nodes[leader].flush(now, &mut sent);
        self.route(leader, sent);
        self.run();
        done
    }

    /// The nodes that vote by the log of `node`.
    pub(super) fn voters(&self, node: usize) -> Vec<usize> {
        let voters = self.nodes[node].group.voters();
        (0..self.nodes.len()).filter(|i| voters >> i & 1 == 1).collect()
    }
}

fn raft(nodes: usize, guards: Guards) -> Group {
    let mut g = Group::founded_as(Protocol::Raft, nodes, guards);
    g.pass(50);
    g
}

#[test]
fn raft_d_4_1_one_voter_less_and_one_more() {
    holds(include_str!("raft/change-voters.txt"));
}

#[test]
fn raft_d_4_1_a_change_is_rolled_back_with_its_record() {
    holds(include_str!("raft/roll-back.txt"));
}

/// A leader that votes no more leads until that is committed.
#[test]
fn raft_d_4_2_2_demoted_leader_leads_until_committed() {
    holds(include_str!("raft/remove-leader.txt"));
}

/// One that votes no more stands as long as it may be needed.
#[test]
fn raft_d_figure_4_6_demoted_member_stands_while_needed() {
    holds(include_str!("raft/still-needed.txt"));
}

#[test]
fn changes_that_could_not_be_committed_are_refused() {
    holds(include_str!("raft/refused.txt"));
}

/// One that does not vote follows and stands for nothing.
#[test]
fn raft_d_4_2_1_non_voter_follows_only() {
    let mut g = raft(3, Guards::ALL);
    assert_eq!(g.change(0, 2, false), Ok(()));
    g.pass(5);
    g.set(0, "k", "v");
    g.pass(60);
    assert_eq!(g.nodes[2].status(g.now).role, "non-voter");
    assert_eq!(g.digests()[0], g.digests()[2]);
    let term = g.nodes[0].view;
    // It hears nobody, and is heard by all.
    g.cuts = vec![(0, 2), (1, 2)];
    g.pass(1_000);
    assert_eq!((g.leader(), g.nodes[0].view, g.nodes[2].view), (Some(0), term, term));
    assert!(!g.nodes[2].holds_lease(g.now));
}

#[test]
fn who_votes_is_in_a_copied_state() {
    let mut g = raft(4, Guards::ALL);
    assert_eq!(g.change(0, 3, false), Ok(()));
    g.isolate(2);
    for n in 0..80 {
        g.set(0, "k", &alloc::format!("{n}"));
        g.pass(1);
    }
    assert!(g.nodes[0].log().base().position > g.nodes[0].group.voters.position().0);
    g.cuts.clear();
    g.pass(300);
    assert!(g.nodes[2].count.copies_whole > 0);
    assert_eq!(g.voters(2), [0, 1, 2]);
    g.restart(1, 901);
    g.pass(500);
    assert_eq!(g.nodes[1].status(g.now).role, "follower");
    assert_eq!(g.voters(1), [0, 1, 2], "of the leader's log, or its state");
}

/// An operator asks any replica who votes and the leader changes it.
#[test]
fn any_replica_names_voters() {
    let mut g = raft(3, Guards::ALL);
    let client = Addr { ip: 7, port: 8 };
    let ask = |g: &mut Group, n: usize, change| {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        let mut packet = vec![];
        Membership::ChangeVoter { client, number: 5, change }.emit(&mut packet);
        g.nodes[n].handle(g.now, &packet, &mut sent);
        let answer = sent.iter().find(|(to, _)| *to == client).unwrap();
        let Ok(Membership::VotersTold(told)) = Membership::parse(&answer.1) else { panic!() };
        assert_eq!((told.number, told.node, told.members.len()), (5, g.nodes[n].setup.me.node, 3));
        (told.outcome, told.voters, told.is_committed)
    };
    let node = g.nodes[2].setup.me.node;
    assert_eq!(ask(&mut g, 1, None), (VoterOutcome::NotLeader, 0b111, true));
    assert_eq!(ask(&mut g, 1, Some((node, false))), (VoterOutcome::NotLeader, 0b111, true));
    assert_eq!(ask(&mut g, 0, Some((99, false))).0, VoterOutcome::NotMember);
    assert_eq!(ask(&mut g, 0, Some((node, false))), (VoterOutcome::Done, 0b011, false));
    assert_eq!(ask(&mut g, 0, Some((node, true))).0, VoterOutcome::NotYet);
    g.pass(60);
    assert_eq!(ask(&mut g, 0, Some((node, false))), (VoterOutcome::Done, 0b011, true));
    assert_eq!(ask(&mut g, 1, None), (VoterOutcome::NotLeader, 0b011, true));
    g.isolate(2);
    g.pass(300);
    assert_eq!(ask(&mut g, 0, Some((node, true))).0, VoterOutcome::Behind);
}

/// docs/internals/bugs.md, 20.11: the controller counts a majority of those who vote.
#[test]
fn controller_learns_voters_by_the_log() {
    let mut g = raft(4, Guards::ALL);
    assert_eq!(g.change(0, 3, false), Ok(()));
    g.set(0, "k", "v");
    g.pass(60);
    for node in &g.nodes {
        let voting = node.voting().unwrap();
        let end = node.log().end().position;
        assert_eq!((voting.voters, voting.last.position), (0b0111, end));
        assert_eq!(voting.last.term, g.nodes[0].view.0);
    }
    // One that copies the state has no log that says so.
    g.isolate(2);
    for n in 0..80 {
        g.set(0, "k", &alloc::format!("{n}"));
        g.pass(1);
    }
    g.no_copies = true;
    g.cuts.clear();
    g.pass(60);
    assert!(g.nodes[2].copying.is_some());
    assert_eq!(g.nodes[2].voting(), None);
    g.no_copies = false;
    g.pass(300);
    assert_eq!(g.nodes[2].voting(), g.nodes[0].voting());
    let vr = Group::founded_as(Protocol::Vr, 3, Guards::ALL);
    assert_eq!(vr.nodes[0].voting(), None, "all do");
}

#[cfg(feature = "mutants")]
mod mutants {
    use concord_core::Guard;

    use super::*;

    /// Whether two replicas call different records committed, or one leads that lacks what another
    /// one calls so.
    fn is_split(g: &Group) -> bool {
        let Some(leader) = g.leader() else { return false };
        let leader = &g.nodes[leader];
        g.nodes.iter().any(|node| {
            let committed = node.log().end_at(node.committed().0);
            committed.is_some_and(|end| leader.log().end_at(end.position) != Some(end))
        })
    }

    /// The group with every guard, and without `guard`: only then it is split.
    fn splits_without(guard: Guard, base: Guards, run: impl Fn(Guards) -> Group) {
        assert!(!is_split(&run(base)));
        assert!(is_split(&run(base.and_without(guard))), "nothing is lost without {guard:?}");
    }

    /// Nodes stand in a term that is new to all, and those that are cut off from them hear nothing
    /// of it.
    fn campaign(g: &mut Group, node: usize) {
        g.nodes.iter_mut().for_each(|node| node.suspicion.hear_leader(Instant(0)));
        let newest = g.nodes.iter().map(|node| node.view).max().unwrap();
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        g.nodes[node].enter_term(g.now, newest, &mut sent);
        g.nodes[node].stand(g.now, false, &mut sent);
        g.route(node, sent);
        g.run();
    }

    /// A leader changes nothing before a record of its term is committed.
    #[test]
    fn raft_2015_no_change_before_a_record_of_the_term_commits() {
        splits_without(Guard::ChangeTerm, Guards::ALL, |guards| {
            let mut g = raft(5, guards);
            assert_eq!(g.change(0, 4, false), Ok(()));
            g.pass(150);
            // Node 0 has node 4 vote again, and nobody hears of it.
            g.isolate(0);
            assert_eq!(g.change(0, 4, true), Ok(()));
            // Node 1 is elected by 2 and 3, and takes node 0's vote. Node 3 hears nothing more of
            // it.
            campaign(&mut g, 1);
            g.pass(40);
            g.mute = vec![1];
            g.pass(80);
            assert_eq!(g.leader(), Some(1));
            g.isolate(3);
            g.isolate(4);
            g.mute.clear();
            let changed = (0..100).any(|_| {
                let changed = g.change(1, 0, false);
                g.pass(1);
                changed == Ok(())
            });
            assert_eq!(changed, !guards.on(Guard::ChangeTerm));
            g.pass(20);
            // Nodes 1 and 2 are gone, and node 0 is back, with 3 and 4.
            g.cuts.clear();
            g.isolate(1);
            g.isolate(2);
            campaign(&mut g, 0);
            g.pass(400);
            g
        });
    }

    #[test]
    fn raft_d_4_1_a_leader_changes_one_voter_at_a_time() {
        let base = Guards::without(Guard::ChangeLease);
        splits_without(Guard::OneChange, base, |guards| {
            let mut g = raft(5, guards);
            (2..5).for_each(|other| g.cut(0, other));
            (2..5).for_each(|other| g.cut(1, other));
            assert_eq!(g.change(0, 2, false), Ok(()));
            let again = g.change(0, 3, false);
            assert_eq!(again.is_ok(), !guards.on(Guard::OneChange));
            g.pass(5);
            campaign(&mut g, 3);
            g.pass(400);
            g
        });
    }

    #[test]
    fn raft_d_4_2_1_who_does_not_vote_is_no_part_of_a_quorum() {
        splits_without(Guard::VoterCount, Guards::ALL, |guards| {
            let mut g = raft(4, guards);
            assert_eq!(g.change(0, 3, false), Ok(()));
            g.pass(150);
            // Nodes 0 and 3 have a record, and 1 and 2 elect one of them.
            g.isolate(0);
            g.isolate(3);
            g.cuts.retain(|way| ![(0, 3), (3, 0)].contains(way));
            g.set(0, "k", "v");
            g.pass(2);
            campaign(&mut g, 1);
            g.pass(300);
            g
        });
    }

    /// Whether a replica may answer reads in a term that is over.
    fn is_leased_beyond(g: &Group) -> bool {
        let begun = g.nodes.iter().filter(|node| node.is_leader()).map(|node| node.view).max();
        g.nodes.iter().any(|node| Some(node.view) < begun && node.holds_lease(g.now))
    }

    /// The leader has another one stand; whether somebody may answer reads in the earlier term
    /// then.
    fn hand_over(g: &mut Group, leader: usize) -> bool {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        g.nodes[leader].hand_over(g.now, &mut sent);
        g.route(leader, sent);
        g.run();
        (0..100).any(|_| {
            g.pass(1);
            is_leased_beyond(g)
        })
    }

    /// Node 2 has heard of no change, and counts nodes 3 and 4, which do not vote any more.
    #[test]
    fn t2_a_follower_that_lags_needs_its_leaders_lease() {
        let is_stale = |guards| {
            let mut g = raft(5, guards);
            [(2, 0), (2, 1), (3, 1), (4, 1)].into_iter().for_each(|(one, other)| g.cut(one, other));
            assert_eq!(g.change(0, 4, false), Ok(()));
            g.pass(110);
            assert_eq!(g.change(0, 3, false), Ok(()));
            g.pass(110);
            assert_eq!((g.voters(0), g.voters(2)), (vec![0, 1, 2], vec![0, 1, 2, 3, 4]));
            [(3, 0), (4, 0)].into_iter().for_each(|(one, other)| g.cut(one, other));
            hand_over(&mut g, 0)
        };
        assert!(!is_stale(Guards::ALL));
        assert!(is_stale(Guards::without(Guard::LeaderGrant)));
    }

    /// Node 3 has a lease of nodes 0 and 4 when the voters are changed, twice at once, and another
    /// term begins without these.
    #[test]
    fn t2_the_voters_are_not_changed_twice_within_a_lease() {
        let is_stale = |guards| {
            let mut g = raft(6, guards);
            assert_eq!(g.change(0, 5, false), Ok(()));
            for one in [3, 4] {
                [1, 2, 5].into_iter().for_each(|other| g.cut(one, other));
            }
            g.pass(110);
            assert!(g.nodes[3].holds_lease(g.now));
            [3, 4].into_iter().for_each(|one| g.cut(one, 0));
            assert_eq!(g.change(0, 4, false), Ok(()));
            let again = g.change(0, 5, true);
            assert_eq!(again.is_ok(), !guards.on(Guard::ChangeLease));
            hand_over(&mut g, 0)
        };
        assert!(!is_stale(Guards::ALL));
        assert!(is_stale(Guards::without(Guard::ChangeLease)));
    }

    /// Node 2 reads with the word of nodes 3 and 4, of which the one knows of a change, and learns
    /// of that before it answers.
    #[test]
    fn a_quorum_read_asks_anew_where_the_voters_were_changed() {
        let read = |guards: Guards| {
            let mut g = raft(5, guards);
            for node in &mut g.nodes {
                node.setup.reads = crate::SlowReads::Quorum;
                node.group.config.as_mut().unwrap().program = Program::Forward;
            }
            g.set(0, "k", "old");
            g.pass(20);
            g.held_way = Some((0, 2));
            g.cuts = vec![(0, 4)];
            assert_eq!(g.change(0, 4, false), Ok(()));
            g.pass(3);
            let first = core::mem::take(&mut g.held);
            g.cuts.push((0, 3));
            g.pass(97);
            assert_eq!(g.change(0, 3, false), Ok(()));
            g.to_client.clear();
            g.set(0, "k", "new");
            g.run();
            assert_eq!(g.to_client.len(), 1, "it is acknowledged");
            g.cuts.push((1, 2));
            assert_eq!(g.get(2, "k", None), None);
            for (_, _, bytes) in first {
                g.deliver(2, &bytes);
                g.run();
            }
            g.to_client.pop().map(|(_, body)| String::from_utf8(body).unwrap())
        };
        assert_eq!(read(Guards::ALL), None);
        let stale = read(Guards::without(Guard::QuorumVoters));
        assert_eq!(stale.as_deref(), Some("$3\r\nold\r\n"));
    }

    /// Nodes 0, 1 and 3 made a configuration committed in which nodes 1 and 2 are no quorum. Node 1
    /// gives its log up, and node 2 has heard of nothing.
    #[test]
    fn truncated_log_votes_for_no_stale_configuration() {
        // What its process was told of what is committed says the same; what is on its disk is the
        // floor alone.
        splits_without(Guard::CopyFloor, Guards::without(Guard::KnownCommitted), |guards| {
            let mut g = raft(4, guards);
            assert_eq!(g.change(0, 3, false), Ok(()));
            g.pass(110);
            g.isolate(2);
            assert_eq!(g.change(0, 3, true), Ok(()));
            g.pass(110);
            g.isolate(1);
            assert_eq!(g.change(0, 2, false), Ok(()));
            for n in 0..80 {
                g.set(0, "k", &alloc::format!("{n}"));
                g.pass(1);
            }
            g.no_copies = true;
            g.cuts.retain(|way| ![(0, 1), (1, 0)].contains(way));
            g.pass(60);
            assert!(g.nodes[1].copying.as_ref().is_some_and(|copying| copying.begun));
            g.cuts.clear();
            g.isolate(0);
            g.isolate(3);
            campaign(&mut g, 2);
            g.pass(400);
            g
        });
    }

    /// Node 1 has a configuration that nobody else has, and stands for election by it, with nodes 3
    /// and 4. Node 3 crashes, and its vote is on its way; it recovers in the term before, of which
    /// nodes 0 and 2 have a record.
    #[test]
    fn recovery_answered_once_the_term_commits() {
        // Its leader hears no quorum.
        let base = Guards::without(Guard::StepAside);
        splits_without(Guard::RecoveryTerm, base, |guards| {
            let mut g = raft(5, guards);
            assert_eq!(g.change(0, 4, false), Ok(()));
            g.pass(110);
            campaign(&mut g, 1);
            g.pass(150);
            assert_eq!(g.leader(), Some(1));
            g.isolate(1);
            assert_eq!(g.change(1, 4, true), Ok(()));
            g.unheard = vec![3, 4];
            campaign(&mut g, 0);
            g.pass(150);
            assert_eq!(g.leader(), Some(0));
            g.cuts.clear();
            [(1, 0), (1, 2), (4, 0), (4, 2), (4, 3)]
                .into_iter()
                .for_each(|(one, other)| g.cut(one, other));
            g.held_way = Some((3, 1));
            campaign(&mut g, 1);
            g.pass(2);
            let vote = core::mem::take(&mut g.held);
            g.held_way = None;
            g.cut(1, 3);
            g.unheard.clear();
            g.restart(3, 900);
            g.pass(130);
            g.set(0, "k", "v");
            g.pass(2);
            for (_, _, bytes) in vote {
                g.deliver(1, &bytes);
            }
            g.pass(5);
            g
        });
    }
}
