//! The client against a scripted rack that loses, duplicates and reorders packets.

// Only functions marked as tests are excused from it by clippy.toml; the rack is one of their
// helpers.
#![allow(clippy::unwrap_used)]

mod rack;

use std::collections::BTreeMap;

use concord_client::{Class, Outcome, Size, SubmitError};
use concord_core::{MS, RequestNumber, SEC, SessionId};
use concord_wire::fragment::{FRAGMENT_BYTES, FragmentHdr};
use concord_wire::rpc::{BODY_BYTES_MAX, READ_BIT};
use concord_wire::{COMMAND_BYTES_MAX, Op, Packet, Repr, Status};
use rack::{CLIENT, World, command, reply_of};

/// Connections that pipeline writes, and reads between them, until `total` requests ended.
/// Gives the log's numbers and, for each write, the connection.
fn pipelines(world: &mut World, connections: u64, depth: usize, total: u64) {
    let mut last: BTreeMap<u64, Option<RequestNumber>> = BTreeMap::new();
    let mut chains: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut commands: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let until = world.at.after(100 * SEC);
    let mut submitted = 0;
    while world.done.len() < total as usize {
        while submitted < total && world.client.unanswered() < depth {
            let connection = world.rng.below(connections);
            let body = command(8, &submitted.to_be_bytes());
            let number = if world.rng.chance(1, 3) {
                world.read(&body)
            } else {
                let number = world.write(last.get(&connection).copied().flatten(), &body);
                last.insert(connection, Some(number));
                chains.entry(connection).or_default().push(number.0);
                number
            };
            commands.insert(number.0, body);
            submitted += 1;
        }
        assert!(world.step(until), "stuck: {:?}", world.client.counters());
    }
    for done in &world.done {
        assert_eq!(done.outcome, Outcome::Reply);
        assert_eq!(done.reply, reply_of(&commands[&done.request.0]));
    }
    let place: BTreeMap<u64, usize> =
        world.rack.log.iter().enumerate().map(|(i, (_, number))| (*number, i)).collect();
    let writes = chains.values().map(Vec::len).sum::<usize>();
    assert_eq!((world.rack.log.len(), place.len()), (writes, writes), "each exactly once");
    for chain in chains.values() {
        assert!(chain.is_sorted_by_key(|n| place[n]), "a connection's writes keep their order");
    }
}

/// Each write is executed once and in its connections order.
#[test]
fn t16_t22_writes_execute_once_in_order() {
    for seed in 0..30 {
        let mut world = World::new(seed, |_| {}).faults(50, 50, 50);
        pipelines(&mut world, 8, 64, 2_000);
        let count = *world.client.counters();
        assert_eq!((count.stale_refused, count.writes_unknown, count.malformed), (0, 0, 0));
        assert!(count.write_retries > 0 && count.read_retries > 0 && count.late > 0);
        assert!(count.order_refused > 0 && count.order_retries > 0);
        assert_eq!(world.client.unanswered(), 0);
    }
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    let mut world = World::new(1, |_| {});
    pipelines(&mut world, 4, 64, 1_000);
    let count = world.client.counters();
    assert_eq!((count.write_retries, count.read_retries, count.order_retries), (0, 0, 0));
    assert_eq!(world.sent, 1_001, "and one registration");
}

#[test]
fn one_seed_replays() {
    let run = |seed| {
        let mut world = World::new(seed, |_| {}).faults(50, 50, 50);
        pipelines(&mut world, 8, 64, 500);
        (world.at, *world.client.counters(), world.rack.log)
    };
    assert_eq!(run(3), run(3));
}

/// A lost write costs its pipeline milliseconds and not a timeout each.
#[test]
fn t22_lost_write_costs_milliseconds() {
    let mut world = World::new(1, |c| c.retry_min_ns = 400 * MS);
    let mut last = world.write(None, &command(8, b"first"));
    world.run_for(MS);
    world.drop_sent.insert(world.sent + 1);
    for i in 0..16u8 {
        last = world.write(Some(last), &command(8, &[i]));
    }
    world.run_until_done(17, 20 * MS);
    assert_eq!(world.done.len(), 17);
    assert!(world.rack.log.is_sorted());
    let count = world.client.counters();
    assert!(count.order_refused >= 15 && count.order_refused <= 20, "{count:?}");
    assert!(count.order_retries >= 16, "the lost one, and those behind it: {count:?}");
    assert_eq!(count.write_retries, 0);
}

/// A write with a long reply and one that must follow it. Both are sent; the second is lost on its
/// way.
fn lost_behind_a_long_reply(grant: bool) -> (World, RequestNumber, RequestNumber) {
    let mut world = World::new(1, |c| c.retry_min_ns = 400 * MS);
    world.write(None, &command(8, b"first"));
    world.run_for(MS);
    world.drop_sent.insert(world.sent + 2);
    let long = world.write(None, &command(300_000, b"long"));
    let next = world.write(Some(long), &command(8, b"next"));
    if grant {
        // The long one was executed, and its reply is being pulled.
        while !world.rack.seen.contains_key(&Op::Pull) {
            assert!(world.step(world.at.after(MS)));
        }
    }
    (world, long, next)
}

/// What a replica says that got `write` before the one that it must follow.
fn refuse(world: &mut World, write: RequestNumber) {
    let (session, op) = (world.client.session(), Op::WriteReply);
    let refused = Repr { session, request: write, status: Status::Order, ..Repr::new(op) };
    let mut bytes = vec![];
    refused.emit(b"", &mut bytes);
    world.inject(&bytes);
}

/// A write is not kept waiting by a reply that is on its way.
#[test]
fn t22_write_does_not_wait_for_a_reply_in_flight() {
    let (mut world, _, next) = lost_behind_a_long_reply(true);
    let sent = world.sent;
    refuse(&mut world, next);
    assert_eq!(world.sent, sent + 1, "the one before it was executed: it goes again at once");
    world.run_until_done(3, 20 * MS);
    assert_eq!(world.outcome(next), Some(Outcome::Reply));
}

/// A refused write that was sent again is not sent once more when the one before it ends.
#[test]
fn t22_refused_and_resent_write_is_not_sent_again() {
    let (mut world, long, next) = lost_behind_a_long_reply(false);
    // It is refused while nothing is known of the one before it, whose reply then takes longer than
    // it waits.
    refuse(&mut world, next);
    while !world.rack.seen.contains_key(&Op::Pull) {
        assert!(world.step(world.at.after(MS)));
    }
    world.rack.dead = true;
    world.run_for(3 * MS);
    assert_eq!(world.client.counters().order_retries, 1);
    world.rack.dead = false;
    world.run_until_done(2, 2 * SEC);
    assert_eq!(world.done.last().map(|done| done.request), Some(long));
    assert_eq!(world.client.counters().order_retries, 1);
    world.run_until_done(3, 2 * SEC);
    assert_eq!(world.outcome(next), Some(Outcome::Reply));
}

#[test]
fn t22_a_write_is_held_until_its_predecessors_body_is_staged() {
    let mut world = World::new(1, |_| {}).faults(100, 0, 0);
    let large = world.write(None, &command(8, &vec![1; 300_000]));
    let small = world.write(Some(large), &command(8, b"small"));
    let other = world.write(None, &command(8, b"of another connection"));
    world.run_until_done(3, 5 * SEC);
    let session = world.client.session().0;
    assert_eq!(
        world.rack.log,
        [(session, other.0), (session, large.0), (session, small.0)],
        "the other connection does not wait"
    );
    assert_eq!(world.client.counters().held, 1);
    assert_eq!(world.client.counters().order_refused, 0);
}

#[test]
fn t17_large_bodies_and_large_replies_arrive_under_loss() {
    for (seed, loss) in [(1, 0), (2, 10), (3, 50), (4, 200)] {
        let mut world = World::new(seed, |c| {
            c.write_deadline_ns = 20 * SEC;
            c.read_deadline_ns = 20 * SEC;
        })
        .faults(loss, 10, 50);
        let body = command(1 << 20, &vec![seed as u8; 1 << 20]);
        let write = world.write(None, &body);
        let read = world.read(&command(1 << 20, b"read"));
        world.run_until_done(2, 20 * SEC);
        assert_eq!(world.outcome(write), Some(Outcome::Reply), "{:?}", world.client.counters());
        assert_eq!(world.outcome(read), Some(Outcome::Reply));
        for done in &world.done {
            let expected = match done.class {
                Class::Write => reply_of(&body),
                Class::Read => reply_of(&command(1 << 20, b"read")),
            };
            assert!(done.reply == expected, "the content is whole");
        }
        assert_eq!(world.rack.log.len(), 1);
        let count = world.client.counters();
        let fragments = world.fragments(body.len());
        assert_eq!(count.fragments_sent, fragments);
        if loss == 0 {
            assert_eq!((count.fragments_resent, count.pulls_again), (0, 0));
        } else {
            assert!(count.fragments_resent > 0 && count.pulls_again > 0);
            assert!(count.fragments_resent < fragments * loss / 100 + 60, "{count:?}");
        }
        let seconds = (world.at.0 - SEC) as f64 / SEC as f64;
        println!("1 MiB each way at {loss} permille loss: {seconds:.3} s");
        assert!(seconds < if loss <= 10 { 1.0 } else { 6.0 }, "{seconds} s");
    }
}

#[test]
fn t17_many_large_requests_at_once() {
    let mut world = World::new(5, |_| {}).faults(10, 10, 10);
    let body = |i: u8| command(50_000, &vec![i; 20_000]);
    let mut last = None;
    for i in 0..100 {
        last = Some(world.write(last, &body(i)));
        world.read(&command(20_000, &[i]));
    }
    world.run_until_done(200, 5 * SEC);
    assert!(world.done.len() == 200 && world.done.iter().all(|d| d.outcome == Outcome::Reply));
    assert!(world.rack.log.is_sorted() && world.rack.log.len() == 100);
}

#[test]
fn t17_a_reply_that_is_gone_is_asked_for_again_and_never_mixed() {
    let mut world = World::new(6, |c| c.read_deadline_ns = 60 * SEC).faults(20, 20, 20);
    world.rack.gone_in = 20;
    for i in 0..20u8 {
        world.read(&command(100_000, &[i]));
        world.write(None, &command(100_000, &[i, 1]));
    }
    world.run_until_done(40, 60 * SEC);
    assert_eq!(world.done.len(), 40);
    for done in &world.done {
        assert_eq!((done.outcome, done.reply.len()), (Outcome::Reply, 100_000));
    }
    assert!(world.client.counters().replies_gone > 0);
    assert_eq!(world.rack.log.len(), 20);
}

/// Fragments of another responder version or length are dropped.
#[test]
fn t17_foreign_fragments_are_dropped() {
    let mut world = World::new(9, |_| {});
    let read = world.read(&command(200_000, b"read"));
    world.run_for(120_000);
    assert_eq!(world.client.counters().pulls, 4, "the first fragment came, others are asked for");
    let mut lie = |node, version, total_bytes, status| {
        let mut body = vec![];
        FragmentHdr { version, total_bytes, index: 5, count: 1 }.emit(&mut body);
        body.extend_from_slice(&[0xee; FRAGMENT_BYTES]);
        let (session, op) = (world.client.session(), Op::Fragment);
        let node = concord_core::NodeId(node);
        let mut bytes = vec![];
        Repr { session, request: read, node, status, ..Repr::new(op) }.emit(&body, &mut bytes);
        world.inject(&bytes);
    };
    lie(2, 1, 200_000, Status::Ok);
    lie(1, 2, 200_000, Status::Ok);
    lie(1, 1, 200_001, Status::Ok);
    lie(1, 2, 200_000, Status::Gone);
    lie(2, 1, 200_000, Status::Gone);
    let count = world.client.counters();
    assert_eq!((count.fragments_mixed, count.unexpected, count.replies_gone), (3, 2, 0));
    world.run_until_done(1, SEC);
    assert!(world.done[0].reply == reply_of(&command(200_000, b"read")));
}

/// A responder that dies while its reply is pulled is given up.
#[test]
fn t17_dead_responder_is_given_up() {
    let mut world = World::new(7, |_| {});
    let read = world.read(&command(1 << 20, b"read"));
    world.run_for(200_000);
    assert!(world.client.counters().pulls > 0);
    world.rack.dead = true;
    world.run_for(50 * MS);
    // Another node answers from now on, and knows nothing of the first one's reply.
    world.rack.dead = false;
    world.rack.node = 2;
    world.rack.kept.clear();
    world.run_until_done(1, 5 * SEC);
    assert_eq!(world.outcome(read), Some(Outcome::Reply));
    assert_eq!(world.done[0].trace.node.0, 2);
    assert!(world.done[0].reply == reply_of(&command(1 << 20, b"read")));
}

#[test]
fn t17_a_missing_body_is_sent_again() {
    let mut world = World::new(8, |_| {});
    world.rack.lose_body = true;
    let write = world.write(None, &command(8, &vec![7; 10_000]));
    let next = world.write(Some(write), &command(8, b"next"));
    world.run_until_done(2, SEC);
    assert_eq!(world.outcome(write), Some(Outcome::Reply));
    assert_eq!(world.outcome(next), Some(Outcome::Reply));
    assert!(world.rack.log.is_sorted());
    assert_eq!(world.client.counters().body_missing, 1);
}

/// An expired session leaves what was sent unknown and sends the rest under a new one.
#[test]
fn t16_expired_session_leaves_sent_requests_unknown() {
    let mut resubmitted = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, |_| {}).faults(20, 20, 20);
        let first = world.write(None, &command(8, b"first"));
        world.run_until_done(1, SEC);
        let old = world.client.session();
        world.rack.sessions.clear();
        let large = world.write(None, &command(8, &vec![1; 30_000]));
        let behind = world.write(Some(large), &command(8, b"behind"));
        let sent = world.write(Some(first), &command(8, b"sent"));
        let after_sent = world.write(Some(sent), &command(8, b"after sent"));
        world.run_until_done(5, 4 * SEC);
        assert_ne!(world.client.session(), old);
        assert_eq!(world.outcome(sent), Some(Outcome::WriteUnknown));
        assert_eq!(world.outcome(after_sent), Some(Outcome::WriteUnknown));
        let new = world.client.session().0;
        for number in [large, behind] {
            // Unknown only if its body was whole before the word of the rack arrived.
            if world.outcome(number) == Some(Outcome::Reply) {
                assert!(world.rack.executed.contains(&(new, number.0)));
            }
        }
        resubmitted += u32::from(world.outcome(large) == Some(Outcome::Reply));
        assert_eq!(world.client.counters().sessions_expired, 1);
        let next = world.write(Some(after_sent), &command(8, b"next"));
        world.run_until_done(6, SEC);
        assert_eq!(world.outcome(next), Some(Outcome::Reply));
        assert!(next > after_sent, "numbers go on rising");
        assert_eq!(world.client.counters().stale_refused, 0);
    }
    assert!(resubmitted >= 15, "{resubmitted} of 20");
}

/// Nothing waits for a write that was abandoned with its session.
#[test]
fn t22_nothing_waits_for_an_abandoned_write() {
    let mut world = World::new(1, |_| {});
    world.write(None, &command(8, b"first"));
    world.run_until_done(1, SEC);
    world.rack.sessions.clear();
    // Lower and slower than all: it keeps the lowest unanswered write down.
    let large = world.write(None, &command(8, &vec![1; 900_000]));
    let lost = world.write(None, &command(8, b"lost"));
    let behind = world.write(Some(lost), &command(8, &[2; 3_000]));
    world.run_until_done(4, SEC);
    assert_eq!(world.outcome(lost), Some(Outcome::WriteUnknown));
    assert_eq!(world.done[2].request, behind, "it was answered before the large one");
    assert_eq!(world.done[3].request, large);
    assert_eq!(world.client.counters().order_refused, 0);
}

/// An idle session is touched and never brought back with an empty table.
#[test]
fn t16c_idle_session_keepalive() {
    let mut world = World::new(1, |c| c.keepalive_ns = SEC);
    world.write(None, &command(8, b"first"));
    world.run_for(10 * SEC + 500 * MS);
    assert_eq!(world.client.counters().keepalives, 10);
    assert_eq!(world.client.counters().sessions_expired, 0);
    let old = world.client.session();
    world.rack.sessions.clear();
    world.run_for(2 * SEC);
    assert!(!world.rack.sessions.contains_key(&old.0));
    assert_ne!(world.client.session(), old);
    assert_eq!(world.client.counters().sessions_expired, 1);
    let next = world.write(None, &command(8, b"next"));
    world.run_for(SEC / 2);
    assert_eq!(world.outcome(next), Some(Outcome::Reply));
}

#[test]
fn t16c_a_session_that_is_written_under_is_not_touched() {
    let mut world = World::new(1, |c| c.keepalive_ns = SEC);
    for _ in 0..10 {
        world.write(None, &command(8, b"a write"));
        world.run_for(SEC - 100 * MS);
    }
    assert_eq!((world.done.len(), world.client.counters().keepalives), (10, 0));
    world.run_for(200 * MS);
    assert_eq!(world.client.counters().keepalives, 1);
}

#[test]
fn deadlines_without_a_rack() {
    let mut world = World::new(1, |_| {});
    world.rack.dead = true;
    let start = world.at;
    let write = world.write(None, &command(8, b"write"));
    let large = world.write(None, &command(8, &[0; 9_000]));
    let read = world.read(&command(8, b"read"));
    world.run_until_done(3, 60 * SEC);
    assert_eq!(world.at.since(start), 5 * SEC);
    assert_eq!(world.outcome(write), Some(Outcome::WriteNotExecuted));
    assert_eq!(world.outcome(large), Some(Outcome::WriteNotExecuted));
    assert_eq!(world.outcome(read), Some(Outcome::ReadTimeout));
    assert_eq!(world.client.unanswered(), 0);
    let sent = world.sent;
    assert!((10..100).contains(&sent), "time-outs double: {sent}");
    world.run_for(10 * SEC);
    assert_eq!(world.sent, sent, "nothing is sent for nobody");
}

#[test]
fn deadlines_with_a_rack_that_falls_silent() {
    let mut world = World::new(1, |_| {});
    world.write(None, &command(8, b"first"));
    world.run_until_done(1, SEC);
    world.rack.dead = true;
    let sent = world.write(None, &command(8, b"sent"));
    let staging = world.write(None, &command(8, &[0; 90_000]));
    let held = world.write(Some(staging), &command(8, b"held"));
    world.run_for(SEC);
    let later = world.write(None, &command(8, b"later"));
    world.run_until_done(4, 60 * SEC);
    assert_eq!(world.outcome(sent), Some(Outcome::WriteUnknown));
    assert_eq!(world.outcome(staging), Some(Outcome::WriteNotExecuted));
    assert_eq!(world.outcome(held), Some(Outcome::WriteNotExecuted));
    assert_eq!(world.outcome(later), None);
    // The rack comes back: the later one says that the earlier ones are abandoned.
    world.rack.dead = false;
    world.run_until_done(5, SEC);
    assert_eq!(world.outcome(later), Some(Outcome::Reply));
    let session = &world.rack.sessions[&world.client.session().0];
    assert_eq!(session.low, later.0);
    assert_eq!(world.rack.log.len(), 2);
}

#[test]
fn the_window_and_the_reads_are_bounded() {
    let mut world = World::new(1, |c| {
        c.window = 4;
        c.reads_max = 3;
    });
    for _ in 0..3 {
        for _ in 0..4 {
            world.write(None, &command(8, b"w"));
        }
        for _ in 0..3 {
            world.read(&command(8, b"r"));
        }
        let has_room = |class| world.client.has_room(class, Size::Small);
        assert!(!has_room(Class::Read) && !has_room(Class::Write));
        let full = Err(SubmitError::Full);
        assert_eq!(world.submit(Class::Write, None, b"wwww"), full);
        assert_eq!(world.submit(Class::Read, None, b"rrrr"), full);
        world.run_until_done(usize::MAX, 10 * MS);
        assert_eq!(world.client.unanswered(), 0);
    }
    assert_eq!(world.done.len(), 21);
}

#[test]
fn what_is_too_large_is_not_taken() {
    let mut world = World::new(1, |_| {});
    let too_large = Err(SubmitError::TooLarge);
    assert_eq!(world.submit(Class::Write, None, &vec![0; COMMAND_BYTES_MAX + 1]), too_large);
    assert_eq!(world.submit(Class::Read, None, &vec![0; BODY_BYTES_MAX + 1]), too_large);
    assert_eq!((world.sent, world.client.unanswered()), (0, 0));
    world.read(&vec![0; BODY_BYTES_MAX]);
    world.write(None, &vec![0; COMMAND_BYTES_MAX]);
    world.run_until_done(2, SEC);
    assert!(world.done.iter().all(|d| d.outcome == Outcome::Reply));
}

#[test]
fn malformed_commands_and_replies_above_the_largest() {
    let mut world = World::new(1, |_| {});
    let bad = world.write(None, b"x");
    world.run_until_done(1, SEC);
    assert_eq!(world.outcome(bad), Some(Outcome::Malformed));
    let read = world.read(&command(8, b"read"));
    let mut body = [0; 40];
    body[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let reply = Repr {
        session: world.client.session(),
        request: read,
        flags: concord_wire::Flags::MORE,
        ..Repr::new(Op::ReadReply)
    };
    let mut bytes = vec![];
    reply.emit(&body, &mut bytes);
    world.inject(&bytes);
    assert_eq!(world.outcome(read), Some(Outcome::TooLarge));
}

#[test]
fn foreign_late_and_senseless_packets_are_counted_and_dropped() {
    let mut world = World::new(1, |_| {});
    world.rack.dead = true;
    let read = world.read(&command(8, b"read"));
    let session = world.client.session();
    let good = Repr { session, request: read, client: CLIENT, ..Repr::new(Op::ReadReply) };
    let mut send = |repr: Repr| {
        let mut bytes = vec![];
        repr.emit(b"body", &mut bytes);
        world.inject(&bytes);
        (*world.client.counters(), world.done.len())
    };
    let foreign = SessionId(session.0 ^ 1);
    assert_eq!(send(Repr { session: foreign, ..good }).0.foreign, 1);
    assert_eq!(
        send(Repr { session: foreign, request: RequestNumber(0), op: Op::WriteReply, ..good })
            .0
            .foreign,
        2
    );
    assert_eq!(send(Repr { request: RequestNumber(read.0 + (1 << 20)), ..good }).0.late, 1);
    assert_eq!(send(Repr { request: RequestNumber(1), ..good }).0.late, 2);
    assert_eq!(send(Repr { op: Op::WriteReply, ..good }).0.unexpected, 1);
    assert_eq!(send(Repr { op: Op::Read, ..good }).0.unexpected, 2);
    assert_eq!(send(Repr { status: Status::Stale, ..good }).0.unexpected, 3);
    // That a replica had no room says nothing about another attempt.
    assert_eq!(send(Repr { status: Status::Busy, attempt: 9, ..good }).0.busy, 0);
    assert_eq!(send(Repr { status: Status::Busy, ..good }).0.busy, 1);
    assert_eq!(send(good), (*world.client.counters(), 1));
    let mut bytes = vec![];
    good.emit(b"body", &mut bytes);
    world.inject(&bytes);
    assert_eq!(world.client.counters().late, 3, "answered before");
    world.inject(b"garbage");
    assert_eq!((world.client.counters().malformed, world.done.len()), (1, 1));
}

#[test]
fn no_packet_makes_it_panic_or_end_a_request_twice() {
    for seed in 0..40 {
        let mut world = World::new(seed, |_| {}).faults(100, 100, 100);
        world.rack.gone_in = 10;
        for i in 0..10u8 {
            world.read(&command(30_000, &[i]));
            let large = world.write(None, &command(30_000, &vec![i; 5_000]));
            world.write(Some(large), &command(8, &[i]));
        }
        let session = world.client.session();
        for _ in 0..3_000 {
            let until = world.at.after(SEC);
            world.step(until);
            let op = Op::ALL[world.rng.below(Op::ALL.len() as u64) as usize];
            let status = Status::ALL[world.rng.below(Status::ALL.len() as u64) as usize];
            let read = READ_BIT | (world.rng.between(1, 10) << 16) | world.rng.below(10);
            let number = if world.rng.chance(1, 2) { read } else { world.rng.below(24) };
            // What only a liar would say of a session that lives.
            let lies = [Status::SessionExpired, Status::Stale, Status::Malformed];
            if lies.contains(&status) && !world.rng.chance(1, 100) {
                continue;
            }
            let repr = Repr {
                session,
                request: RequestNumber(number),
                status,
                flags: concord_wire::Flags(world.rng.next_u64() as u16),
                attempt: world.rng.below(3) as u16,
                node: concord_core::NodeId(1),
                ..Repr::new(op)
            };
            let mut body = vec![];
            for _ in 0..world.rng.below(40) {
                body.push(if world.rng.chance(4, 5) { 0 } else { world.rng.next_u64() as u8 });
            }
            let mut bytes = vec![];
            repr.emit(&body, &mut bytes);
            assert!(Packet::parse(&bytes).is_ok());
            world.inject(&bytes);
        }
        world.run_for(20 * SEC);
        assert_eq!(world.done.len(), 30, "each ends once");
        assert_eq!(world.client.unanswered(), 0);
    }
}

#[test]
fn the_time_out_learns_a_round_trip_above_it() {
    // All packets wait 0.1 ms; a time-out below that must rise instead of sending all twice.
    let mut world = World::new(1, |c| c.retry_min_ns = 20_000);
    for i in 0..200u8 {
        world.read(&command(8, &[i]));
        world.run_until_done(usize::from(i) + 1, SEC);
    }
    let count = world.client.counters();
    assert!(count.read_retries < 20, "{count:?}");
}

#[test]
fn bug_15_4_large_values_wait_for_their_turn_and_all_come() {
    let mut world = World::new(11, |_| {}).faults(2, 2, 2);
    // The rack has room for so many, and refuses more.
    (world.rack.bodies_max, world.rack.kept_max) = (16, 40);
    let mut last = None;
    for i in 0..100u8 {
        world.read(&command(200_000, &[i]));
        let write = world.write(last, &command(8, &vec![i; 100_000]));
        last = i.is_multiple_of(3).then_some(write);
    }
    world.run_until_done(200, 5 * SEC);
    assert_eq!(world.done.len(), 200);
    assert!(world.done.iter().all(|d| d.outcome == Outcome::Reply));
    let count = *world.client.counters();
    assert!(count.large_waited > 0 && count.replies_waited > 0, "{count:?}");
    assert_eq!((count.body_missing, count.replies_gone), (0, 0), "none was begun in vain");
    let left = (world.rack.kept.len(), world.rack.bodies.len());
    assert!(left.0 < 10 && left.1 < 10, "but for lost packets nothing is left: {left:?}");
}

/// The bytes of large writes are bounded before they are taken.
#[test]
fn bug_15_4_large_writes_bounded_before_acceptance() {
    let mut world = World::new(12, |_| {});
    let body = command(8, &vec![1; 1 << 20]);
    let mut taken = 0;
    while world.client.has_room(Class::Write, Size::Large) {
        world.write(None, &body);
        taken += 1;
    }
    assert_eq!(taken, 64, "64 MiB");
    assert_eq!(world.submit(Class::Write, None, &body), Err(SubmitError::Full));
    world.run_until_done(64, 5 * SEC);
    assert!(world.done.iter().all(|d| d.outcome == Outcome::Reply));
    assert!(world.client.has_room(Class::Write, Size::Large));
}

/// While a write of 64 MiB arrived no other one of its gateway was taken, whatever its size.
#[test]
fn bug_22_156_a_huge_write_takes_nobodys_room() {
    let mut world = World::new(12, |_| {});
    let huge = command(8, &vec![1; 64 << 20]);
    world.write(None, &huge);
    assert_eq!(world.submit(Class::Write, None, &huge), Err(SubmitError::Full));
    let others = [world.write(None, &command(8, &vec![2; 100_000])), world.write(None, &huge[..9])];
    world.run_for(50 * MS);
    assert_eq!(others.map(|write| world.outcome(write)), [Some(Outcome::Reply); 2]);
    world.run_until_done(3, 30 * SEC);
    assert!(world.done.iter().all(|d| d.outcome == Outcome::Reply));
}

/// A write that was never sent is not of unknown outcome.
#[test]
fn bug_15_4_unsent_write_is_not_unknown() {
    let mut world = World::new(13, |_| {});
    world.rack.bodies_max = 0;
    for i in 0..40u8 {
        world.write(None, &command(8, &vec![i; 100_000]));
    }
    world.run_until_done(40, 6 * SEC);
    assert!(world.done.iter().all(|d| d.outcome == Outcome::WriteNotExecuted));
    assert_eq!(world.done.len(), 40);
}

#[test]
fn bug_16_4_a_long_reply_waits_until_its_bytes_are_granted() {
    let mut world = World::new(14, |c| c.grants_replies = true);
    let (first, second) = (world.read(&command(50_000, b"1")), world.read(&command(60_000, b"2")));
    let small = world.read(&command(500, b"3"));
    world.run_for(MS);
    assert_eq!(world.outcome(small), Some(Outcome::Reply));
    assert_eq!(world.client.poll_offer(), Some((first, 50_000)));
    assert_eq!(world.client.poll_offer(), Some((second, 60_000)));
    assert_eq!(world.client.poll_offer(), None);
    world.grant(first, 50_000);
    let withdrawn = world.withdraw(second);
    world.run_for(10 * SEC);
    assert_eq!(world.outcome(first), Some(Outcome::Reply));
    assert_eq!((world.outcome(second), world.client.unanswered()), (None, 0));
    assert!(world.rack.kept.is_empty(), "the replica keeps nothing for who waits");
    let again = world.read(withdrawn.request().command);
    world.grant(again, 60_000);
    world.run_for(10 * MS);
    assert_eq!(world.outcome(again), Some(Outcome::Reply));
    // One that is neither granted nor withdrawn ends by its deadline.
    let third = world.read(&command(70_000, b"4"));
    world.run_for(6 * SEC);
    assert_eq!(world.outcome(third), Some(Outcome::ReadTimeout));
}

#[test]
fn a_reply_says_which_path_it_took_and_how_long() {
    let mut world = World::new(1, |_| {});
    world.write(None, &command(8, b"first"));
    world.run_until_done(1, SEC);
    let read = world.read(&command(8, b"read"));
    world.run_until_done(2, SEC);
    let write = world.write(None, &command(8, b"write"));
    world.run_until_done(3, SEC);
    let trace = |number| world.done.iter().find(|d| d.request == number).unwrap().trace;
    for number in [read, write] {
        let trace = trace(number);
        // 50 us each way.
        assert_eq!((trace.node.0, trace.attempts, trace.latency_ns), (1, 1, 100_000));
        assert!(!trace.is_forwarded);
    }
    assert!(trace(read).is_fast() && !trace(write).is_fast());
    let count = world.client.counters();
    assert_eq!((count.reads, count.read_replies, count.fast_reads), (1, 1, 1));
    assert_eq!((count.writes, count.write_replies, count.sessions), (2, 2, 1));
}

/// It is too far above the lowest one that the replicas know to be unanswered: that one is answered
/// soon.
#[test]
fn t16_a_write_that_is_refused_for_the_window_goes_again_later() {
    let mut world = World::new(1, |_| {});
    world.write(None, &command(8, b"first"));
    world.run_until_done(1, SEC);
    world.rack.dead = true;
    let write = world.write(None, &command(8, b"write"));
    world.run_for(MS);
    let session = world.client.session();
    let (op, status) = (Op::WriteReply, Status::Window);
    let refusal = Repr { session, request: write, client: CLIENT, status, ..Repr::new(op) };
    let mut bytes = vec![];
    for (attempt, refused, late) in [(0, 1, 0), (7, 1, 1)] {
        Repr { attempt, ..refusal }.emit(&[], &mut bytes);
        world.inject(&bytes);
        let count = world.client.counters();
        assert_eq!((count.window_refused, count.late), (refused, late));
    }
    world.rack.dead = false;
    world.run_until_done(2, SEC);
    assert_eq!((world.outcome(write), world.rack.log.len()), (Some(Outcome::Reply), 2));
    assert_eq!(world.client.counters().write_retries, 1);
}

/// How the one unanswered request of a class ends by a reply to one of its attempts, and what is
/// counted.
fn after_reply(class: Class, status: Status, attempt: u16) -> (Option<Outcome>, Vec<&'static str>) {
    let mut world = World::new(1, |_| {});
    world.write(None, &command(8, b"first"));
    world.run_until_done(1, SEC);
    world.rack.dead = true;
    let number = world.submit(class, None, &command(8, b"asked")).unwrap();
    let before: Vec<u64> = world.client.counters().each().map(|c| c.2).collect();
    let op = if class == Class::Read { Op::ReadReply } else { Op::WriteReply };
    let session = world.client.session();
    let reply = Repr { session, request: number, attempt, status, client: CLIENT, ..Repr::new(op) };
    let mut bytes = vec![];
    reply.emit(b"", &mut bytes);
    world.inject(&bytes);
    let counted =
        world.client.counters().each().zip(before).filter(|(c, before)| c.2 == before + 1);
    (world.outcome(number), counted.map(|(c, _)| c.0).collect())
}

/// Each status has its meaning for reads for writes and for attempts of before.
#[test]
fn status_meanings_by_class_and_attempt() {
    let (reply, unknown) = (Some(Outcome::Reply), Some(Outcome::WriteUnknown));
    let malformed = Some(Outcome::Malformed);
    let late: &[&str] = &["late"];
    for (status, outcome, now, outcome_before, before) in [
        (Status::Ok, reply, &["write_replies"][..], reply, &["write_replies"][..]),
        (Status::Malformed, malformed, &["refused_malformed"], malformed, &["refused_malformed"]),
        (Status::ManyObjects, malformed, &["refused_malformed"], malformed, &["refused_malformed"]),
        (
            Status::SessionExpired,
            unknown,
            &["writes_unknown", "sessions_expired"],
            unknown,
            &["writes_unknown", "sessions_expired"],
        ),
        (
            Status::Stale,
            unknown,
            &["writes_unknown", "stale_refused"],
            unknown,
            &["writes_unknown", "stale_refused"],
        ),
        (Status::Order, None, &["order_refused", "order_retries"], None, late),
        (Status::BodyMissing, None, &["body_missing"], None, late),
        (Status::Window, None, &["window_refused"], None, late),
        (Status::Busy, None, &["busy"], None, late),
        (Status::Working, None, &["heard_working"], None, &["heard_working"]),
        (Status::Gone, None, &["unexpected"], None, &["unexpected"]),
    ] {
        let seen = after_reply(Class::Write, status, 0);
        assert_eq!(seen, (outcome, now.to_vec()), "{status:?} of a write");
        let seen = after_reply(Class::Write, status, 9);
        assert_eq!(seen, (outcome_before, before.to_vec()), "{status:?} of another attempt");
    }
    for status in Status::ALL.iter().copied() {
        let (outcome, now, before) = match status {
            Status::Ok => (reply, "read_replies", "read_replies"),
            Status::Malformed | Status::ManyObjects => {
                (malformed, "refused_malformed", "refused_malformed")
            }
            Status::Busy => (None, "busy", "unexpected"),
            Status::Working => (None, "heard_working", "heard_working"),
            _ => (None, "unexpected", "unexpected"),
        };
        assert_eq!(after_reply(Class::Read, status, 0), (outcome, vec![now]), "{status:?}");
        assert_eq!(after_reply(Class::Read, status, 9), (outcome, vec![before]), "{status:?}");
    }
}

#[test]
fn in_calm_weather_each_packet_of_a_long_value_is_sent_once() {
    let mut world = World::new(1, |_| {});
    let body = command(8, &vec![1; 40 * FRAGMENT_BYTES]);
    world.write(None, &body);
    world.read(&command(40 * FRAGMENT_BYTES as u32, b"read"));
    world.run_until_done(2, SEC);
    let count = *world.client.counters();
    let blocks = 40_u64.div_ceil(16);
    assert_eq!((count.fragments_sent, count.pulls), (world.fragments(body.len()), blocks));
    let again = [count.fragments_resent, count.pulls_again, count.fragments_mixed, count.late];
    assert_eq!(again, [0; 4]);
    assert_eq!((count.busy, count.replies_gone, count.body_missing), (0, 0, 0));
    // A registration, the fragments and the write; the read, its pulls, and word that it is here.
    assert_eq!(world.sent, 2 + count.fragments_sent + 1 + blocks + 1);
    assert!(world.rack.kept.is_empty() && world.rack.bodies.is_empty());
}

/// A replica says that it has been at work for that long.
fn say_working(world: &mut World, number: RequestNumber, op: Op, time_ms: u64) {
    let session = world.client.session();
    let working = Repr {
        session,
        request: number,
        client: CLIENT,
        time_ms,
        status: Status::Working,
        ..Repr::new(op)
    };
    let mut bytes = vec![];
    working.emit(b"", &mut bytes);
    world.inject(&bytes);
}

/// Requests wait longer where replicas say that they work; a read ends when that takes too long,
/// and a write that was sent does not.
#[test]
fn bug_22_110_requests_wait_for_replicas_that_work() {
    let mut world = World::new(1, |_| {});
    let first = world.write(None, &command(8, b"first"));
    world.run_for(MS);
    world.loss_permille = 1_000;
    let write = world.write(Some(first), &command(8, b"write"));
    let read = world.read(&command(8, b"read"));
    for ms in (500..12_000).step_by(500) {
        world.run_for(500 * MS);
        say_working(&mut world, write, Op::WriteReply, ms);
        assert_eq!(world.client.is_busy(world.at), ms >= 5_000, "{ms}");
        if ms == 4_500 {
            say_working(&mut world, read, Op::ReadReply, ms);
            assert_eq!(world.done.len(), 1, "only the first write has ended");
        }
    }
    // The work began before the read came.
    say_working(&mut world, read, Op::ReadReply, 20_000);
    let ended: Vec<_> = world.done.iter().map(|done| (done.request, done.outcome)).collect();
    assert_eq!(ended, [(first, Outcome::Reply), (read, Outcome::Busy)]);
    world.loss_permille = 0;
    world.run_until_done(3, SEC);
    assert_eq!(world.done.last().map(|done| done.outcome), Some(Outcome::Reply));
    assert!(!world.client.is_busy(world.at), "the write was executed: the work is over");
    let third = world.write(Some(write), &command(8, b"third"));
    world.loss_permille = 1_000;
    say_working(&mut world, third, Op::WriteReply, 6_000);
    assert!(world.client.is_busy(world.at));
    assert!(!world.client.is_busy(world.at.after(2 * SEC)), "nobody has said so lately");
}
