//! Replicas that lack records which are not kept any more. Here 50 are kept.

use super::*;
use crate::early::Waiting;
use concord_wire::control::CopyMessage;
use concord_wire::fragment::FragmentHdr;

use crate::parts::{PART_OBJECTS, Part, Reached, number_of};
use crate::quorum::follower::OutgoingCopy;

const PROTOCOLS: [Protocol; 2] = [Protocol::Vr, Protocol::NoPaxos];

impl Group {
    /// `count` writes of as many keys, a millisecond apart, to whom the protocol's switch sends
    /// them.
    fn fill(&mut self, from: usize, count: usize) {
        for n in from..from + count {
            let leader = self.leader().unwrap();
            let all: Vec<usize> = (0..self.nodes.len()).collect();
            let reached = |to: &usize| !self.cuts.contains(&(leader, *to));
            let to: Vec<usize> = if self.protocol.is_sequenced() {
                all.into_iter().filter(reached).collect()
            } else {
                vec![leader]
            };
            self.cast_set(&to, &alloc::format!("key:{n}"), &alloc::format!("{n}"));
            self.pass(1);
        }
    }

    /// Until a replica that copies has some chunks, and the question for the next one is on its
    /// way.
    fn copy_some(&mut self, who: usize) {
        for _ in 0..1_000 {
            let (_, to, bytes) = self.packets.pop_front().unwrap_or_else(|| {
                self.now.instant = self.now.instant.after(MS);
                let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
                for index in [0, who] {
                    self.nodes[index].tick(self.now, &mut sent);
                    self.nodes[index].flush(self.now, &mut sent);
                    let out = core::mem::take(&mut sent);
                    self.route(index, out);
                }
                self.packets.pop_front().unwrap_or((0, who, vec![]))
            });
            if !bytes.is_empty() {
                self.deliver(to, &bytes);
            }
            if self.nodes[who].count.chunks_installed > 1 {
                break;
            }
        }
    }

    fn assert_whole(&mut self, keys: usize) {
        self.pass(100);
        let node = &self.nodes[0];
        let (end, digest, sessions) =
            (node.ordered.log.end(), node.serving.engine.digest(), node.serving.sessions.digest());
        for node in &self.nodes {
            assert_eq!(node.stage, Stage::Normal);
            assert_eq!((node.ordered.log.end(), node.executed.0), (end, end.position));
            assert_eq!(
                (node.serving.engine.digest(), node.serving.sessions.digest()),
                (digest, sessions)
            );
            assert_eq!(node.serving.engine.keys(), keys as u64);
        }
    }
}

/// Who lacks records that are gone copies the state while writes go on.
#[test]
fn vrr_5_2_state_is_copied_while_writes_go_on() {
    for protocol in PROTOCOLS {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        g.fill(0, 10);
        g.isolate(2);
        g.fill(10, 300);
        assert!(g.nodes[0].ordered.log.base().position > 200, "{protocol:?}: the log is truncated");
        g.cuts.clear();
        g.fill(310, 100);
        g.assert_whole(410);
        let count = &g.nodes[2].count;
        assert!(count.copies_whole == 1 && count.chunks_installed > 1, "{protocol:?}: {count:?}");
        assert!(g.nodes[2].is_intact());
        // What it copied is enough to go on without the others' memory of it.
        g.isolate(0);
        g.pass(500);
        let leader = g.leader().unwrap();
        assert_eq!(g.get(leader, "key:5", None).unwrap().2, "5");
    }
}

#[test]
fn vrr_5_2_a_replica_that_lost_everything_copies_the_state() {
    for protocol in PROTOCOLS {
        for lost in 0..3 {
            let mut g = Group::founded_as(protocol, 3, Guards::ALL);
            g.fill(0, 300);
            g.restart(lost, 900);
            g.pass(500);
            g.fill(300, 50);
            g.assert_whole(350);
            assert!(g.nodes[lost].is_intact());
            assert_eq!(g.nodes[lost].count.copies_whole, 1, "{protocol:?}, replica {lost}");
        }
    }
}

/// A quorum votes, and the turn is that of a replica with half of a state: it does not lead with
/// the other one's log.
#[test]
fn vrr_5_2_replica_that_copies_does_not_lead() {
    for protocol in PROTOCOLS {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        g.fill(0, 10);
        g.isolate(1);
        g.fill(10, 300);
        g.cuts.clear();
        g.copy_some(1);
        assert!(g.nodes[1].copying.is_some(), "{protocol:?}: half of it is here");
        g.packets.clear();
        g.isolate(0);
        for _ in 0..500 {
            g.pass(1);
            let node = &g.nodes[1];
            assert!(!node.is_leader() || node.copying.is_none(), "{protocol:?}");
        }
        assert_eq!(g.leader(), Some(2), "{protocol:?}");
        assert_eq!(g.get(2, "key:5", None).unwrap().2, "5");
    }
}

#[test]
fn vrr_5_2_a_copy_goes_on_with_a_new_leader() {
    for protocol in PROTOCOLS {
        let mut g = Group::founded_as(protocol, 5, Guards::ALL);
        g.fill(0, 10);
        g.isolate(4);
        g.fill(10, 300);
        g.cuts.clear();
        g.copy_some(4);
        assert!(g.nodes[4].copying.is_some(), "{protocol:?}: half of it is here");
        assert!(!g.nodes[4].is_intact(), "it must not vote");
        g.packets.clear();
        g.isolate(0);
        g.pass(500);
        let leader = g.leader().unwrap();
        assert_ne!(leader, 0);
        g.pass(500);
        assert!(g.nodes[4].is_intact(), "{protocol:?}");
        g.cuts.clear();
        g.pass(500);
        g.assert_whole(310);
        assert_eq!(g.nodes[4].count.copies_begun, 1, "{protocol:?}");
    }
}

/// A write that looks at keys which it computes is the last one that a chunk shows. The copy begins
/// anew, but not before the engine is through with what is at it: the chunk is none of the next
/// copy, which has no client table yet.
#[test]
fn bug_18_56_restarted_copy_takes_no_old_chunk() {
    for protocol in PROTOCOLS {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        g.fill(0, 10);
        g.isolate(2);
        g.fill(10, 300);
        g.cuts.clear();
        g.copy_some(2);
        // The leader is asked for the next chunk once it has executed that write.
        let asked = |packet: &(usize, usize, Vec<u8>)| {
            packet.0 == 2 && concord_wire::kind(&packet.2) == Ok(Kind::Copy)
        };
        let (held, packets): (Vec<_>, Vec<_>) = g.packets.drain(..).partition(asked);
        (g.held, g.packets, g.held_way) = (held, packets.into(), Some((2, 0)));
        assert_eq!(g.held.len(), 1, "{protocol:?}");
        let write = Repr { flags: Flags::WILDCARD, ..g.request(b"") };
        let body = CommandBuf::new()
            .encode(0, [&b"SORT"[..], b"m", b"BY", b"w*", b"STORE", b"n"])
            .to_vec();
        let to: &[usize] = if protocol.is_sequenced() { &[0, 1] } else { &[0] };
        g.cast(to, write, &body);
        g.pass(10);
        assert_eq!(g.nodes[0].executed, g.nodes[2].ordered.end(), "{protocol:?}");
        let installed = g.nodes[2].count.chunks_installed;
        // The engine has not answered yet.
        g.nodes[2].pending.push_back(Pending::Install);
        g.held_way = None;
        g.packets.extend(core::mem::take(&mut g.held));
        g.run();
        let node = &mut g.nodes[2];
        assert_eq!(node.count.copies_entangled, 1, "{protocol:?}");
        assert_eq!(node.count.chunks_installed, installed, "{protocol:?}");
        node.pending.clear();
        g.pass(100);
        g.assert_whole(310);
        assert_eq!(g.nodes[2].count.copies_begun, 2, "{protocol:?}");
    }
}

/// A follower of NOPaxos that heard every write and no COMMIT has all records, and knows none to be
/// committed that its leader still has. It copies nothing.
#[test]
fn vrr_5_2_log_continues_where_the_leader_truncated() {
    let mut g = Group::founded_as(Protocol::NoPaxos, 3, Guards::ALL);
    g.fill(0, 10);
    let (end, committed) = (g.nodes[2].ordered.log.end(), g.nodes[2].committed);
    g.cuts = vec![(0, 2), (2, 0)];
    for n in 10..200 {
        g.cast_set(&[0, 1, 2], &alloc::format!("key:{n}"), "v");
        g.pass(1);
        // It hears nobody, and nobody else begins a view.
        let now = g.now.instant;
        g.nodes[2].suspicion.hear_leader(now);
    }
    assert_eq!(g.nodes[2].committed, committed);
    assert!(g.nodes[0].ordered.log.base().position > end.position);
    g.cuts.clear();
    g.assert_whole(200);
    assert_eq!(g.nodes[2].count.copies_begun, 0);
}

#[test]
fn bug_15_20_a_replica_that_copies_sleeps_while_nothing_comes() {
    for protocol in PROTOCOLS {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        g.fill(0, 10);
        g.isolate(2);
        g.fill(10, 300);
        // It heard that it lacks too much, and hears nothing since.
        g.nodes[2].copy_state(LogEnd::default(), &mut Vec::new());
        for _ in 0..100 {
            g.pass(1);
            let deadline = g.nodes[2].deadline();
            assert!(deadline.at > g.now.instant, "{protocol:?}: it is awake for {deadline:?}");
        }
    }
}

#[test]
fn who_lacks_records_that_are_in_the_tail_copies_nothing() {
    for protocol in PROTOCOLS {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        for node in &mut g.nodes {
            node.ordered.log.keep_tail(1 << 20);
        }
        g.fill(0, 10);
        g.isolate(2);
        g.fill(10, 300);
        assert!(g.nodes[0].ordered.log.base().position > 200, "{protocol:?}: the log is truncated");
        g.cuts.clear();
        g.fill(310, 100);
        g.assert_whole(410);
        assert_eq!(g.nodes[2].count.copies_begun, 0, "{protocol:?}");
        assert!(g.nodes[2].vr_count.records_transferred < 410, "{protocol:?}");
    }
}

/// Otherwise a part waits until the follower asks again, 20 ms later. One that is of before the
/// view's beginning is made anew.
#[test]
fn bug_19_22_a_part_goes_out_when_the_engine_has_made_it() {
    let mut g = Group::founded(3, Guards::ALL);
    g.fill(0, 5);
    g.pass(20);
    let node = &mut g.nodes[0];
    let (now, position) = (Position(3), node.executed);
    assert!(node.is_leader() && position > now);
    for (position, view_start, is_sent) in
        [(position, Position(0), true), (now, Position(0), true), (now, position, false)]
    {
        node.leading.begin(g.now.instant, 3, view_start);
        let part = Part { number: PART_OBJECTS, position, bytes: None };
        node.leading.followers[2].outgoing_copy = Some(OutgoingCopy {
            attempt: 1,
            part: Some(part),
            asked: 0,
            early: Waiting::default(),
        });
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        node.chunk_made(2, (PART_OBJECTS, position), vec![0; 16], &mut sent);
        assert_eq!(sent.len(), usize::from(is_sent), "{position:?} {view_start:?}");
    }
}

/// A part from before the view is made anew: whoever took it as it was before asks for the rest of
/// an object that this leader knows by another ticket. It hears that this is gone, and begins anew.
#[test]
fn bug_22_150_rest_of_a_part_made_anew_is_gone() {
    let rest = |ticket: u64| 5 | ticket << 33;
    let mut g = Group::founded(3, Guards::ALL);
    g.fill(0, 5);
    g.pass(20);
    let (view, now) = (g.nodes[0].view.0, g.now.instant);
    let attempt = u64::from(g.nodes[0].group.tag_of(g.nodes[0].crash_vector.of(2))) << 32 | 1;
    let node = &mut g.nodes[0];
    let bytes = Some(rest(2).to_be_bytes().to_vec());
    let part = Part { number: PART_OBJECTS, position: node.executed, bytes };
    node.leading.followers[2].outgoing_copy = Some(OutgoingCopy {
        attempt,
        part: Some(part),
        asked: PART_OBJECTS,
        early: Waiting::default(),
    });
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    node.on_copy_ask(now, 2, attempt, (number_of(rest(1)), 0), &mut sent);
    let said = sent.iter().map(|(_, bytes)| CopyMessage::parse(bytes)).collect::<Vec<_>>();
    assert!(matches!(
        said[..],
        [Ok(CopyMessage::Piece { epoch, total_bytes: 0, part, .. })]
            if epoch == view && part == number_of(rest(1))
    ));
    // A replica with pieces takes it for what it is; one without takes no notice.
    for has_pieces in [false, true] {
        let node = &mut g.nodes[2];
        node.copy_state(LogEnd::default(), &mut sent);
        let attempt = node.copying.as_ref().unwrap().attempt;
        if has_pieces {
            let reached = Reached { from: 5, rest: Some(rest(1)) };
            node.copying.as_mut().unwrap().has_objects(reached);
        }
        let number = node.copying.as_ref().unwrap().wanted_number();
        let hdr = FragmentHdr { version: 0, total_bytes: 0, index: 0, count: 1 };
        node.on_copy_piece(g.now, (attempt, number), hdr, &[], &mut sent);
        let begun = node.copying.as_ref().unwrap().attempt > attempt;
        assert_eq!(begun, has_pieces);
    }
}
