//! Raft's elections and its log, as scripts: `tests/raft/*.txt`. A line is a command, or begins
//! with `#`; what is expected stands behind it, each line after `> `.

use super::*;

/// A group that a script drives.
struct Script {
    g: Group,
    said: String,
}

impl Script {
    fn run(text: &str, guards: Guards) -> Script {
        let mut script =
            Script { g: Group::founded_as(Protocol::Raft, 1, guards), said: String::new() };
        for line in text.lines().filter(|line| !line.starts_with("> ")) {
            script.said += line;
            script.said.push('\n');
            if !line.starts_with('#') && !line.is_empty() {
                script.command(line, guards);
            }
        }
        script
    }

    fn say(&mut self, line: &str) {
        self.said += &alloc::format!("> {line}\n");
    }

    fn command(&mut self, line: &str, guards: Guards) {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let rest: Vec<&str> = words.collect();
        let numbers: Vec<usize> = rest.iter().map_while(|word| word.parse().ok()).collect();
        match name {
            "group" => self.g = Group::founded_as(Protocol::Raft, numbers[0], guards),
            "cut" => self.g.cut(numbers[0], numbers[1]),
            "cut-way" => self.g.cuts.push((numbers[0], numbers[1])),
            "isolate" => numbers.iter().for_each(|node| self.g.isolate(*node)),
            "heal" => (self.g.cuts, self.g.mute) = (vec![], vec![]),
            // Nobody hears of their logs, or of the terms that they lead.
            "mute" => self.g.mute.clone_from(&numbers),
            "pass" => self.g.pass(numbers[0] as u64),
            "campaign" => self.campaign(&numbers),
            "restart" => self.g.restart(numbers[0], 900 + numbers[1] as u64),
            "set" => {
                self.g.to_client.clear();
                self.g.set(numbers[0], rest[1], rest[2]);
                self.g.run();
                let replied = if self.g.to_client.is_empty() { "no reply" } else { "replied" };
                self.say(replied);
            }
            "get" => {
                let answer = self.g.get(numbers[0], rest[1], None);
                let answer = answer.map_or("no reply".into(), |(_, by, value)| {
                    alloc::format!("{value}, by {}", by - 1)
                });
                self.say(&answer);
            }
            "remove" | "add" => {
                let done = self.g.change(numbers[0], numbers[1], name == "add");
                self.say(&done.map_or_else(|why| alloc::format!("{why:?}"), |()| "changed".into()));
            }
            "voters" => {
                for node in 0..self.g.nodes.len() {
                    let voters = self.g.voters(node);
                    let voters: String = voters.iter().map(|i| alloc::format!(" {i}")).collect();
                    self.say(&alloc::format!("{node} votes{voters}"));
                }
            }
            "state" => (0..self.g.nodes.len()).for_each(|node| self.say_state(node)),
            _ => panic!("no such command: {line}"),
        }
    }

    /// Everybody misses the leader, and these stand for election in a term that is new to all.
    fn campaign(&mut self, standing: &[usize]) {
        self.g.nodes.iter_mut().for_each(|node| node.suspicion.hear_leader(Instant(0)));
        let newest = self.g.nodes.iter().map(|node| node.view).max().unwrap();
        for node in standing {
            let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
            self.g.nodes[*node].enter_term(self.g.now, newest, &mut sent);
            self.g.nodes[*node].stand(self.g.now, false, &mut sent);
            self.g.route(*node, sent);
        }
        self.g.run();
    }

    fn say_state(&mut self, index: usize) {
        let node = &self.g.nodes[index];
        let role = node.status(self.g.now).role;
        let end = node.log().end().position;
        let log = (1..=end).map(|at| alloc::format!("{}", node.term_at(Position(at)).0));
        let log = log.collect::<Vec<_>>().join(" ");
        let line = alloc::format!(
            "{index} {role} in term {}, log {log}, committed {}",
            node.view().0,
            node.committed().0
        );
        self.say(&line);
    }
}

/// The script says what it is expected to say.
pub(super) fn holds(text: &str) {
    let script = Script::run(text, Guards::ALL);
    assert!(script.said == text, "the script says:\n{}", script.said);
}

#[test]
fn raft_5_2_a_leader_dies_and_another_is_elected() {
    holds(include_str!("raft/election.txt"));
}

/// Votes that are split elect nobody until the next term.
#[test]
fn raft_5_2_split_votes_elect_nobody() {
    holds(include_str!("raft/split.txt"));
}

#[test]
fn raft_5_3_a_log_that_diverged_is_replaced_by_the_leaders() {
    holds(include_str!("raft/divergence.txt"));
}

#[test]
fn raft_5_4_1_nobody_votes_for_a_log_that_ends_before_its_own() {
    holds(include_str!("raft/up-to-date.txt"));
}

/// A replica that alone misses the leader disturbs nobody.
#[test]
fn raft_9_6_lone_deaf_replica_disturbs_nobody() {
    holds(include_str!("raft/pre-vote.txt"));
}

#[test]
fn raft_6_2_a_leader_that_hears_no_quorum_steps_down() {
    holds(include_str!("raft/check-quorum.txt"));
}

/// What is of an earlier term is committed with the own one.
#[test]
fn raft_5_4_2_figure_8_earlier_terms_commit_with_the_own_one() {
    holds(include_str!("raft/figure-8.txt"));
}

/// Whether the leader's log lacks what somebody calls committed.
#[cfg(feature = "mutants")]
fn is_lost(g: &Group) -> bool {
    let Some(leader) = g.leader() else { return false };
    let leader = &g.nodes[leader];
    g.nodes.iter().any(|node| {
        let committed = node.log().end_at(node.committed().0);
        committed.is_some_and(|end| leader.log().end_at(end.position) != Some(end))
    })
}

/// Without the rule what was committed is lost.
#[test]
#[cfg(feature = "mutants")]
fn raft_5_4_2_figure_8_without_the_rule_a_commit_is_lost() {
    use concord_core::Guard;

    let text = include_str!("raft/figure-8.txt");
    assert!(!is_lost(&Script::run(text, Guards::ALL).g));
    let script = Script::run(text, Guards::without(Guard::OwnTerm));
    assert!(is_lost(&script.g), "nothing is lost:\n{}", script.said);
}

/// No term begins while a lease of an earlier one may be held.
#[test]
fn t2_no_term_begins_during_an_earlier_lease() {
    let group = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    let begun_at = no_other_leads_while_the_first_is_leased(group);
    assert!((50..300).contains(&begun_at), "{begun_at}");
}

/// Read index asks a quorum after the read came and no clock.
#[test]
fn raft_8_read_index_asks_a_quorum_and_no_clock() {
    let mut g = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    g.nodes.iter_mut().for_each(|node| node.setup.reads = crate::SlowReads::ReadIndex);
    g.set(0, "k", "v");
    g.run();
    assert_eq!(g.get(0, "k", None).unwrap().2, "v");
    let rounds = g.nodes[0].vr_count.reads_confirmed;
    assert!(rounds > 0 && g.nodes[0].is_leased(g.now.instant));
    // The lease still holds, and is no answer.
    g.pass(1);
    g.isolate(0);
    assert_eq!(g.get(0, "k", None), None);
    g.cuts.clear();
    g.pass(30);
    assert!(!g.to_client.is_empty(), "it is asked again");
}

/// Reads of one instant share a round and a leader by lease asks for none.
#[test]
fn raft_8_reads_of_an_instant_share_a_round() {
    let mut g = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    g.set(0, "k", "v");
    g.pass(5);
    g.nodes[0].setup.reads = crate::SlowReads::ReadIndex;
    let counts = |g: &Group| {
        let count = &g.nodes[0].vr_count;
        (count.reads_confirmed, count.reads_waited_leader)
    };
    let (rounds, waited) = counts(&g);
    for _ in 0..3 {
        assert_eq!(g.get(0, "k", None).unwrap().2, "v");
        assert_eq!(counts(&g), (rounds + 1, waited + 1));
    }
    // Its lease is over, and the read waits for another.
    g.nodes[0].setup.reads = crate::SlowReads::LeaderLease;
    g.isolate(0);
    g.pass(LEASE_NS / MS);
    assert_eq!(g.get(0, "k", None), None);
    g.pass(2);
    assert!(g.nodes[0].is_leader());
    assert_eq!(counts(&g), (rounds + 1, waited + 2));
}

/// Node 2 hears nothing of its leader, and node 1 grants it leases: those are a quorum's, and not
/// enough.
#[test]
fn raft_6_who_has_no_lease_of_its_leader_answers_no_read() {
    let mut g = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    let seq = g.set(0, "k", "v");
    g.pass(60);
    assert_eq!(g.get(2, "k", Some(seq)).unwrap(), (Reason::Fast, 3, "v".into()));
    g.cuts = vec![(0, 2)];
    g.pass(LEASE_NS / MS + 5);
    assert_eq!(g.nodes[2].stage, Stage::Normal);
    assert_eq!(g.get(2, "k", Some(seq)).unwrap(), (Reason::RefusedLease, 1, "v".into()));
}

#[test]
fn raft_3_10_a_leader_that_goes_has_another_stand() {
    let mut g = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    g.pass(50);
    g.cut(0, 1);
    g.set(0, "k", "v");
    g.pass(2);
    g.cuts.clear();
    // Node 1 lacks a record, or has it late: the one with more of the log is asked.
    let now = g.now;
    g.nodes[0].retire(now);
    g.pass(50);
    let leader = g.leader().unwrap();
    assert_ne!(leader, 0);
    assert_eq!(g.get(leader, "k", None).unwrap().2, "v");
    g.pass(150);
    assert_eq!(g.nodes[0].retired(g.now), Some(crate::retire::Retired::InOrder));
}

#[test]
fn a_new_switch_is_a_new_term_of_the_same_leader() {
    let mut g = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    g.set(0, "k", "v");
    g.pass(5);
    let term = g.nodes[0].view;
    g.configure(2);
    g.pass(5);
    assert_eq!((g.leader(), g.nodes[0].switch.id), (Some(0), 2));
    assert_eq!(g.nodes[0].view, ViewNumber(term.0 + 1));
    g.set(0, "k", "w");
    g.run();
    assert_eq!(g.get(0, "k", None).unwrap().2, "w");
}

/// A replica that lost everything recovers and does not vote before.
#[test]
fn vrr_4_3_replica_that_lost_everything_recovers_before_voting() {
    let mut g = Group::founded_as(Protocol::Raft, 3, Guards::ALL);
    g.set(0, "k", "v");
    g.pass(60);
    g.restart(2, 900);
    assert!(g.nodes[2].is_recovering());
    let asked = VrBody::RequestVote { last: g.nodes[1].last_record(), handed: true };
    let mut bytes = vec![];
    g.nodes[1].message(ViewNumber(90), asked).emit(&mut bytes);
    g.deliver(2, &bytes);
    assert!(g.nodes[2].ballot.voted_for().is_none() && g.nodes[2].view < ViewNumber(90));
    g.packets.clear();
    g.pass(400);
    assert_eq!(g.nodes[2].status(g.now).role, "follower");
    assert_eq!(g.digests()[0], g.digests()[2]);
}

/// What an earlier leader does not know: another one has been elected. ReadIndex asks, and is not
/// answered.
#[test]
#[cfg(feature = "mutants")]
fn raft_8_without_the_round_a_stale_leader_answers() {
    use concord_core::Guard;

    let stale = |guards| {
        let mut g = Group::founded_as(Protocol::Raft, 3, guards);
        g.nodes.iter_mut().for_each(|node| node.setup.reads = crate::SlowReads::ReadIndex);
        g.set(0, "k", "old");
        g.pass(5);
        // It sleeps, and another one is elected.
        g.isolate(0);
        let asleep = core::mem::replace(&mut g.nodes[0], node(0, 900, guards));
        g.pass(400);
        let leader = g.leader().unwrap();
        g.set(leader, "k", "new");
        g.run();
        g.nodes[0] = asleep;
        g.get(0, "k", None).map(|(_, _, value)| value)
    };
    assert_eq!(stale(Guards::ALL), None);
    assert_eq!(stale(Guards::without(Guard::ReadRound)), Some("old".into()));
}

/// Who elects takes no words of who takes turns nor these of those.
#[test]
fn elections_and_view_changes_ignore_each_other() {
    for protocol in [Protocol::Raft, Protocol::Vr] {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        let (view, switch, end) = (g.nodes[0].view, g.nodes[1].switch, g.nodes[1].log().end());
        let vote = VrBody::DoViewChange { last_normal: view.0, end, committed: 0, switch };
        let last = g.nodes[1].last_record();
        let said = match protocol {
            Protocol::Raft => [VrBody::Suspect, vote],
            _ => [VrBody::PreVote { last }, VrBody::TimeoutNow],
        };
        for body in said {
            let before = g.nodes[0].count.unexpected;
            let mut bytes = vec![];
            g.nodes[1].message(ViewNumber(view.0 + 1), body).emit(&mut bytes);
            g.deliver(0, &bytes);
            assert_eq!(g.nodes[0].count.unexpected, before + 1, "{body:?}");
        }
        assert_eq!(g.nodes[0].suspicion.count(g.now.instant, SEC), 0);
        assert_eq!((g.nodes[0].view, g.leader()), (view, Some(0)));
        assert!(g.packets.is_empty(), "nobody is answered");
    }
}
