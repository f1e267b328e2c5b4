//! Replicas whose switch runs FLAIR: what they answer, and what they tell it.

use super::*;
use concord_core::Position;
use concord_wire::flair::{self, Followers, Heartbeat, SessionMessage, Sid, Step};

/// Three founders; node 0 leads, in a session that is active.
fn founded(guards: Guards) -> Group {
    let mut g = Group::unconfigured(Protocol::Vr, 3, guards);
    g.program = Program::Flair;
    g.configure(1);
    g.pass(5);
    assert_eq!(g.leader(), Some(0));
    start(&mut g);
    let hello = Repr { flags: Flags::REGISTER, ..g.request(b"") };
    sequenced(&mut g, 0, hello, b"");
    g.run();
    g.to_switch.clear();
    g
}

/// What the switch was told of its session since it was last asked.
fn told(g: &mut Group) -> Vec<SessionMessage> {
    let all = core::mem::take(&mut g.to_switch);
    all.iter().filter_map(|bytes| SessionMessage::parse(bytes).ok()).collect()
}

fn confirm(g: &mut Group, sid: Sid, step: Step) {
    let leader = g.leader().unwrap();
    let (view, from) = (g.nodes[leader].view.0, leader as u16 + 1);
    let switch = g.nodes[leader].switch.id;
    let mut bytes = vec![];
    SessionMessage::Confirmed { view, from, switch, sid, step, probe: 9 }.emit(&mut bytes);
    g.deliver(leader, &bytes);
}

/// The switch confirms all that it is told, until the session is active; what it began with.
fn start(g: &mut Group) -> SessionMessage {
    start_at(g, false)
}

/// The same of one that balances reads by load or not.
fn start_at(g: &mut Group, load_awareness: bool) -> SessionMessage {
    let mut begun = None;
    for _ in 0..40 {
        g.pass(10);
        for message in told(g) {
            match &message {
                SessionMessage::Begin { sid, .. } => {
                    confirm(g, *sid, Step::Begun { groups: 64, load_awareness });
                    begun = Some(message);
                }
                SessionMessage::Groups { sid, chunk, .. } => {
                    confirm(g, *sid, Step::Chunk { chunk: *chunk });
                }
                SessionMessage::Activate { sid, .. } => {
                    confirm(g, *sid, Step::Active);
                    return begun.unwrap();
                }
                SessionMessage::Confirmed { .. } => panic!("a replica confirms nothing"),
                SessionMessage::Weights { .. } => panic!("the session is not active"),
            }
        }
    }
    panic!("no session begins");
}

fn sid(g: &Group) -> Sid {
    Sid(g.nodes.iter().map(|n| n.view.0).max().unwrap())
}

/// A request as the switch passes it on.
fn pass_on(g: &mut Group, to: usize, common: Repr, log_idx: u64, body: &[u8]) {
    let (log_idx, cflwrs) = (Position(log_idx), Followers(0));
    let mut bytes = vec![];
    let switch = SwitchId(g.nodes[to].switch.id);
    flair::Repr { common, log_idx, cflwrs, echo: 0, switch }.emit(body, &mut bytes);
    g.deliver(to, &bytes);
}

fn sequenced(g: &mut Group, to: usize, write: Repr, body: &[u8]) -> Seq {
    g.counter += 1;
    let seq = sid(g).number(g.counter);
    pass_on(g, to, Repr { seq, ..write }, 0, body);
    seq
}

fn set(g: &mut Group, key: &str, value: &str) -> (Repr, Vec<u8>, Seq) {
    let write = g.request(key.as_bytes());
    let mut command = CommandBuf::new();
    let body = command.encode(1, [b"SET", key.as_bytes(), value.as_bytes()]).to_vec();
    let seq = sequenced(g, 0, write, &body);
    (write, body, seq)
}

fn get(g: &mut Group, to: usize, flags: Flags, sid: Sid, log_idx: u64) -> Vec<flair::Repr> {
    let mut command = CommandBuf::new();
    let read = Repr { op: Op::Read, flags, seq: sid.number(1), ..g.request(b"k") };
    let body = command.encode(1, [&b"GET"[..], b"k"]).to_vec();
    replies(g);
    pass_on(g, to, read, log_idx, &body);
    g.run();
    replies(g)
}

/// The replies that went to the switch.
fn replies(g: &mut Group) -> Vec<flair::Repr> {
    let all = core::mem::take(&mut g.to_switch);
    assert!(g.to_client.is_empty(), "every reply passes the switch");
    all.iter().filter_map(|bytes| flair::Packet::parse(bytes).ok()).map(|p| p.repr()).collect()
}

#[test]
fn a_reply_to_a_write_says_where_it_stands_and_who_holds_it() {
    let mut g = founded(Guards::ALL);
    g.isolate(2);
    let (_, _, seq) = set(&mut g, "k", "v");
    g.run();
    let [reply] = replies(&mut g)[..] else { panic!("one reply") };
    let at = g.nodes[0].executed.0;
    assert_eq!((reply.common.op, reply.common.seq), (Op::WriteReply, seq));
    assert_eq!((reply.log_idx, reply.cflwrs), (Position(at), Followers(0b011)));
    // A no-op of the switch, and a replica's own write, are answered too: it waits for their
    // numbers.
    for flags in [Flags::NOOP, Flags::NOOP.with(Flags::WILDCARD), Flags::INTERNAL] {
        let own = Repr { flags, client: SWITCH, ..Repr::new(Op::Write) };
        let seq = sequenced(&mut g, 0, own, b"");
        g.run();
        let [reply] = replies(&mut g)[..] else { panic!("one reply") };
        assert_eq!((reply.common.seq, reply.common.flags), (seq, flags));
    }
}

/// A follower that was away for long is left out until it has what was committed meanwhile; what
/// the others have is said.
#[test]
fn a_heartbeat_says_who_has_caught_up_and_how_far() {
    let mut g = founded(Guards::ALL);
    let caught_up = |g: &mut Group| {
        g.to_switch.clear();
        g.pass(51);
        let mut beats = g.to_switch.iter().filter_map(|bytes| Heartbeat::parse(bytes).ok());
        let caught_up = beats.next_back().unwrap().caught_up;
        (caught_up.log_idx.0, caught_up.followers.0)
    };
    let start = g.nodes[0].executed.0;
    g.pass(300);
    assert_eq!(caught_up(&mut g), (start, 0b111));
    g.isolate(2);
    set(&mut g, "k", "v");
    // It may only be slow.
    assert_eq!(caught_up(&mut g), (start, 0b111));
    g.pass(500);
    assert_eq!(caught_up(&mut g), (start + 1, 0b011));
    set(&mut g, "k", "w");
    // What was written just now is read at those that its own reply named.
    assert_eq!(caught_up(&mut g), (start + 1, 0b011));
    g.cuts.clear();
    g.pass(300);
    assert_eq!(caught_up(&mut g), (start + 2, 0b111));
}

/// A retry of what is done is answered after all lower numbers.
#[test]
fn t27_retry_is_answered_after_lower_numbers() {
    let mut g = founded(Guards::ALL);
    let (write, body, _) = set(&mut g, "k", "v");
    g.run();
    let [done] = replies(&mut g)[..] else { panic!("one reply") };
    g.isolate(0);
    let (_, _, under_way) = set(&mut g, "k", "w");
    let again = sequenced(&mut g, 0, Repr { attempt: 1, ..write }, &body);
    g.run();
    assert!(replies(&mut g).is_empty(), "its reply is known, and it is not its turn");
    g.cuts.clear();
    g.pass(50);
    let all = replies(&mut g);
    let seqs: Vec<Seq> = all.iter().map(|reply| reply.common.seq).collect();
    assert_eq!(seqs, [under_way, again]);
    assert!(all[1].log_idx > all[0].log_idx && all[0].log_idx > done.log_idx);
}

/// A session is a view and begins once what the view began with is committed.
#[test]
fn t28_session_begins_once_its_views_start_commits() {
    let mut g = founded(Guards::ALL);
    let old = sid(&g);
    set(&mut g, "k", "v");
    g.run();
    g.isolate(0);
    set(&mut g, "k", "lost");
    g.pass(3 * LEASE_NS / MS);
    let leader = g.leader().unwrap();
    assert_ne!(leader, 0);
    let begun = start(&mut g);
    let SessionMessage::Begin { sid, ref replicas, all_keys, .. } = begun else { panic!() };
    assert!(sid > old && sid == Sid(g.nodes[leader].view.0));
    assert_eq!((&replicas[..], all_keys.is_stable), (&[1, 2, 3][..], true));
    assert_eq!(all_keys.log_idx, g.nodes[leader].executed.0);
    assert!(all_keys.followers.has(leader) && !all_keys.followers.has(0));
    // What was numbered in the session before is of no use to its leader.
    let ordered = g.nodes[leader].ordered.end();
    let write = g.request(b"k");
    pass_on(&mut g, leader, Repr { seq: old.number(99), ..write }, 0, b"");
    assert_eq!(g.nodes[leader].ordered.end(), ordered);
    assert_eq!(g.nodes[leader].vr_count.other_session, 1);
}

/// A follower advances to what the switch says and never beyond its leaders log.
#[test]
fn t29_follower_never_advances_beyond_its_leaders_log() {
    let mut g = founded(Guards::ALL);
    let (fast, sid) = (Flags::FAST, sid(&g));
    set(&mut g, "k", "v");
    // The records are at the followers, and they have not heard that they are committed.
    g.run();
    let at = g.nodes[0].executed.0;
    assert_eq!(g.executed(), [at, at - 1, at - 1]);
    let [reply] = get(&mut g, 1, fast, sid, at)[..] else { panic!("one reply") };
    assert_eq!((reply.common.reason, reply.common.node), (Reason::Fast, NodeId(2)));
    assert_eq!(g.executed(), [at, at, at - 1]);
    // One that lacks the record passes the read on, and executes nothing.
    g.isolate(2);
    set(&mut g, "k", "w");
    g.run();
    g.cuts = vec![(0, 2)];
    let [reply] = get(&mut g, 2, fast, sid, at + 1)[..] else { panic!("one reply") };
    assert_eq!((reply.common.reason, reply.common.node), (Reason::RefusedBehind, NodeId(1)));
    assert_eq!(g.executed()[2], at);
}

/// Of engines that are servers of their own: the leader knows whether a quorum knows of a script.
#[test]
fn a_follower_passes_reads_on_once_a_script_may_have_written() {
    let mut g = founded(Guards::ALL);
    let (_, _, seq) = set(&mut g, "k", "v");
    g.pass(5);
    let (sid, at) = (sid(&g), g.nodes[0].executed.0);
    let reason = |g: &mut Group| {
        let [reply] = get(g, 1, Flags::FAST, sid, at)[..] else { panic!("one reply") };
        reply.common.reason
    };
    g.nodes[1].setup.replicate_replies = true;
    assert_eq!(reason(&mut g), Reason::Fast, "there was none");
    g.nodes[1].scripts.note(Position(at), seq);
    assert_eq!(reason(&mut g), Reason::RefusedNewer);
    g.nodes[1].setup.replicate_replies = false;
    assert_eq!(reason(&mut g), Reason::Fast, "every replica executes them itself");
}

#[test]
fn t30_a_reply_has_the_command_behind_it_if_both_fit() {
    let mut g = founded(Guards::ALL);
    set(&mut g, "k", "v");
    g.pass(5);
    let sid = sid(&g);
    let at = g.nodes[0].executed.0;
    let [reply] = get(&mut g, 1, Flags::FAST, sid, at)[..] else { panic!("one reply") };
    assert!(reply.echo > 0);
    let long = "x".repeat(1_246);
    set(&mut g, "k", &long);
    g.pass(5);
    let [reply] = get(&mut g, 1, Flags::FAST, sid, at + 1)[..] else { panic!("one reply") };
    assert_eq!((reply.echo, reply.common.seq), (0, sid.number(1)));
}

/// A follower that hears the old switch alone answers as long as its lease.
#[test]
fn t2_follower_of_the_old_switch_answers_for_its_lease() {
    let mut g = founded(Guards::ALL);
    set(&mut g, "k", "v");
    g.pass(5);
    let (old, at) = (sid(&g), g.nodes[0].executed.0);
    g.isolate(1);
    let [reply] = get(&mut g, 1, Flags::FAST, old, at)[..] else { panic!("one reply") };
    assert_eq!(reply.common.reason, Reason::Fast);
    g.pass(LEASE_NS / MS + 5);
    assert!(get(&mut g, 1, Flags::FAST, old, at).is_empty(), "it passes them on, in vain");
}

/// What did not come by the switch or is of another session is answered by nobody.
#[test]
fn foreign_session_reads_are_not_answered() {
    let mut g = founded(Guards::ALL);
    set(&mut g, "k", "v");
    g.pass(5);
    let (sid, end) = (sid(&g), g.nodes[0].ordered.end());
    for to in 0..3 {
        assert_eq!(g.get(to, "k", None), None);
        assert!(get(&mut g, to, Flags::FAST, Sid(sid.0 + 1), end.0).is_empty());
    }
    g.set(0, "k", "w");
    assert_eq!(g.nodes[0].ordered.end(), end);
    // T28: of a session of that number, at the switch of a rack that was there before.
    let common = Repr { op: Op::Read, seq: sid.number(1), ..g.request(b"k") };
    let (cflwrs, switch) = (Followers(0), SwitchId(g.nodes[0].switch.id + 1));
    let mut bytes = vec![];
    flair::Repr { common, log_idx: end, cflwrs, echo: 0, switch }.emit(b"", &mut bytes);
    for to in 0..3 {
        g.deliver(to, &bytes);
        g.run();
        assert!(replies(&mut g).is_empty() && g.nodes[to].vr_count.other_session > 0);
    }
    // A read that its switch sent to the leader is answered there, and one that went astray as
    // well.
    for to in 0..3 {
        let [reply] = get(&mut g, to, Flags(0), sid, end.0)[..] else { panic!("one reply") };
        assert_eq!(reply.common.node, NodeId(1));
    }
}

#[test]
fn t26_a_heartbeat_echoes_the_switchs_newest_clock() {
    let mut g = founded(Guards::ALL);
    let beat = |g: &mut Group| {
        g.to_switch.clear();
        g.pass(51);
        let mut beats = g.to_switch.iter().filter_map(|bytes| Heartbeat::parse(bytes).ok());
        beats.next_back().unwrap()
    };
    let first = beat(&mut g);
    assert_eq!((first.sid, first.probe), (sid(&g), Instant(9)));
    let mut bytes = vec![];
    Heartbeat { probe: Instant(0), ..first }.emit(&mut bytes);
    Heartbeat::answer(&mut bytes, Instant(77)).unwrap();
    g.deliver(0, &bytes);
    assert_eq!(beat(&mut g).probe, Instant(77));
}

#[test]
fn a_leader_sends_its_switch_a_heartbeat_every_25_ms() {
    let mut g = founded(Guards::ALL);
    g.pass(100);
    g.to_switch.clear();
    g.pass(1_000);
    let beats = g.to_switch.iter().filter(|bytes| Heartbeat::parse(bytes).is_ok()).count();
    assert_eq!(beats, 40);
}

/// What each of two followers' hosts and the leader's own say once a second is what the weights are
/// of.
#[test]
fn section_4_4_2_queues_in_acknowledgements_are_weighed() {
    let mut g = founded(Guards::ALL);
    g.isolate(0);
    g.pass(3 * LEASE_NS / MS);
    g.cuts.clear();
    let leader = g.leader().unwrap();
    start_at(&mut g, true);
    let (quick, slow) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut weights = vec![];
    for _ in 0..250 {
        g.nodes[leader].note_queue(30);
        g.nodes[quick].note_queue(1);
        g.nodes[slow].note_queue(200);
        g.pass(10);
        for message in told(&mut g) {
            if let SessionMessage::Weights { round, weights: told, .. } = message {
                assert!(told[slow] < told[leader] && told[leader] < told[quick], "{told:?}");
                let sid = sid(&g);
                confirm(&mut g, sid, Step::Weighed { round });
                weights.push((round, told[slow]));
            }
        }
    }
    let [(1, first), (2, second)] = weights[..] else { panic!("once a second: {weights:?}") };
    assert!(second < first);
}

/// Node 2 lacks a record when the next switch's view begins, and hears nothing of the log: how long
/// the leader waits for it until it begins a session, in ms. It hears of the view and answers, or
/// it does not.
fn waits_for_a_follower_that_lags(is_heard: bool) -> u64 {
    let mut g = founded(Guards::ALL);
    g.cut(0, 2);
    set(&mut g, "k", "v");
    g.run();
    g.cuts.clear();
    g.held_way = Some((0, 2));
    g.configure(2);
    loop {
        for (_, to, bytes) in core::mem::take(&mut g.held) {
            if is_heard && concord_wire::kind(&bytes) != Ok(Kind::Link) {
                g.deliver(to, &bytes);
                g.run();
            }
        }
        let leader = &g.nodes[0];
        if leader.session.is_begun() {
            assert!(leader.is_leader() && leader.leading.followers[2].acked < leader.executed);
            return g.now.instant.since(leader.leading.begun_at()) / MS;
        }
        g.pass(1);
    }
}

/// A session waits for a follower that lags but not for long and less for one that is silent.
#[test]
fn session_waits_briefly_for_lagging_followers() {
    assert_eq!(waits_for_a_follower_that_lags(true), 100);
    assert_eq!(waits_for_a_follower_that_lags(false), 20);
}
