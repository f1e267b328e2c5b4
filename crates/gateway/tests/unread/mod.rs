//! Clients that do not read what they ask for: their replies are bounded, and others are served.

use std::ops::Range;

use concord_core::{Duration, MS, SEC};
use concord_gateway::{CONNECTION_REPLIES_BYTES_MAX, ConnectionId, REPLIES_BYTES_MAX, STUCK_NS};

use crate::common::{World, request};

/// A world with so many keys of that many bytes.
fn with_long_values(keys: usize, bytes: usize) -> World {
    let mut w = World::with(1, |config| {
        (config.connections_max, config.splits_reads) = (1_000, true);
    });
    w.delay_ns = (10_000, 50_000);
    for key in 0..keys {
        w.input(1, &request(&[b"SET", format!("k{key}").as_bytes(), &vec![b'v'; bytes]]));
    }
    assert_eq!(w.replies(1), "+OK\r\n".repeat(keys));
    w
}

/// Clients that ask for this, one after each `gap_ns`, and read nothing.
fn deaf(w: &mut World, ids: &Range<u64>, commands: &[u8], gap_ns: Duration) {
    for id in ids.clone() {
        w.connect(id);
        w.stuck.push(id);
        w.input(id, commands);
        w.run_for(gap_ns);
    }
}

/// 8 MB.
const MUCH: &[u8] = b"MGET k0 k1 k2 k3\r\nMGET k0 k1 k2 k3\r\n";

/// Clients that each ask for 8 MB and read nothing, until they hold half of the room: they get 2
/// MiB a second.
fn crowd(w: &mut World, ids: &Range<u64>) {
    deaf(w, ids, MUCH, 10 * MS);
    while w.gateway.reply_bytes().0 < REPLIES_BYTES_MAX / 2 {
        w.run_for(SEC);
    }
}

/// As the driver does it.
fn close_given_up(w: &mut World, ids: &Range<u64>) {
    for id in ids.clone().map(ConnectionId) {
        if w.gateway.is_given_up(id) {
            w.gateway.closed(id);
        }
    }
}

/// What a client does not read is bounded and comes when it reads.
#[test]
fn bug_16_4_unread_bytes_are_bounded_and_arrive_later() {
    let (keys, bytes, commands) = (20, 400_000, 10);
    let mut w = with_long_values(keys, bytes);
    w.connect(2);
    w.stuck.push(2);
    let names: Vec<String> = (0..keys).map(|key| format!("k{key}")).collect();
    let mut mget: Vec<&[u8]> = vec![b"MGET"];
    mget.extend(names.iter().map(String::as_bytes));
    w.input(2, &request(&mget).repeat(commands));
    // Longer than any deadline: what waits for its client waits as long as it takes.
    w.run_for(20 * SEC);
    let (held, most) = w.gateway.reply_bytes();
    let bound = CONNECTION_REPLIES_BYTES_MAX + bytes + 64 * 1024;
    assert!(held > CONNECTION_REPLIES_BYTES_MAX / 2 && most < bound, "{held} of {most}");
    assert_eq!(w.ask(&["EXISTS k1"]), ":1\r\n");
    let mut read = 0;
    while let bytes @ 1.. = {
        w.run_for(20 * MS);
        w.read(2)
    } {
        read += bytes;
    }
    let element = format!("${bytes}\r\n").len() + bytes + 2;
    assert_eq!(read, commands * (keys * element + format!("*{keys}\r\n").len()));
    let (held, most) = w.gateway.reply_bytes();
    assert!(held == 0 && most < bound, "{held} of {most}");
}

/// A write that ended while its reply waited is in nobodys way.
#[test]
fn bug_15_30_write_that_ended_while_its_reply_waited() {
    let mut w = World::with(1, |config| config.limits.output_bytes_max = 1_000);
    for key in [&b"k0"[..], b"k1", b"k2"] {
        w.input(1, &request(&[b"SET", key, &[b'v'; 400_000]]));
    }
    assert_eq!(w.replies(1), "+OK\r\n".repeat(3));
    w.connect(2);
    w.stuck.push(2);
    w.input(2, b"GET k0\r\nSET k1 new GET\r\n");
    // Until the write's time is over.
    w.run_for(20 * SEC);
    w.stuck.clear();
    w.read(2);
    w.input(2, b"GET k2\r\n");
    let got = w.replies(2);
    assert!(got.contains("$400000"), "{} bytes: {:?}", got.len(), got.get(..200));
}

/// Those who do not read leave room for others and are given up when it ends.
#[test]
fn bug_16_4_unread_clients_leave_room_and_are_closed() {
    let mut w = with_long_values(4, 1_000_000);
    // Each wants 8 MB: more than there is.
    let ids = 2..300;
    deaf(&mut w, &ids, MUCH, 20 * MS);
    let (_, most) = w.gateway.reply_bytes();
    assert!(most <= REPLIES_BYTES_MAX, "{most}");
    let began = w.at;
    w.input(1, b"EXISTS k1\r\nSTRLEN k2\r\n");
    w.run_for(10 * MS);
    assert_eq!(w.received.get_mut(&1).map(std::mem::take).unwrap(), b":1\r\n:1000000\r\n");
    // A long reply waits until those who read nothing are given up.
    w.connect(1_000);
    w.input(1_000, b"GET k3\r\n");
    while w.received[&1_000].len() < 1_000_000 && w.at.since(began) < 3 * STUCK_NS {
        w.run_for(100 * MS);
    }
    assert_eq!(w.received[&1_000].len(), 1_000_000 + 12);
    let (_, most) = w.gateway.reply_bytes();
    assert!(most <= REPLIES_BYTES_MAX, "{most}");
    for id in ids {
        w.gateway.closed(ConnectionId(id));
    }
    w.run_for(10 * SEC);
    assert_eq!(w.gateway.reply_bytes().0, 0);
    assert_eq!(w.gateway.client().unanswered(), 0, "nothing is left of those who went");
}

/// Under pressure few replies are fetched and clients are given up one by one.
#[test]
fn bug_16_4_pressure_fetches_few_replies_and_closes_one_by_one() {
    let mut w = with_long_values(4, 1_000_000);
    let ids = 2..600;
    crowd(&mut w, &ids);
    let (mut given_up, mut at_once, mut fetched) = (0, 0, 0);
    let began = w.at;
    let mut new = 1_000..;
    while w.at.since(began) < 2 * STUCK_NS {
        // Whoever comes meanwhile is served.
        let id = new.next().unwrap();
        w.connect(id);
        w.input(id, b"EXISTS k1\r\n");
        close_given_up(&mut w, &ids);
        for _ in 0..10 {
            w.run_for(MS);
            fetched = fetched.max(w.gateway.replies_fetched());
        }
        let now = w.gateway.counters().clients_given_up;
        at_once = at_once.max(now - given_up);
        given_up = now;
        assert_eq!(w.received[&id], b":1\r\n", "{id}");
        w.gateway.closed(ConnectionId(id));
    }
    assert!(given_up > 10, "{given_up}");
    assert!(at_once * 10 <= given_up, "{at_once} of {given_up} at once");
    assert!((1..=2).contains(&fetched), "{fetched}");
    // Who reads is served, and the others' end is the end of it.
    w.connect(1);
    w.input(1, b"GET k3\r\n");
    let began = w.at;
    while w.received[&1].len() < 1_000_000 && w.at.since(began) < 3 * STUCK_NS {
        w.run_for(100 * MS);
    }
    assert_eq!(w.received[&1].len(), 1_000_000 + 12);
    ids.for_each(|id| w.gateway.closed(ConnectionId(id)));
    w.run_for(10 * SEC);
    assert_eq!((w.gateway.reply_bytes().0, w.gateway.replies_fetched()), (0, 0));
}

/// Gets a value of 1 MB so many times, one after the other.
fn get(w: &mut World, id: u64, times: usize) {
    for _ in 0..times {
        w.input(id, b"GET k0\r\n");

        while w.received[&id].len() < 1_000_000 + 12 {
            w.run_for(5 * MS);
        }

        w.received.get_mut(&id).unwrap().clear();
    }
}

/// Beside a crowd that does not read who comes does not wait and the crowd is paced.
#[test]
fn bug_16_4_newcomers_do_not_wait_beside_a_crowd() {
    let mut w = with_long_values(4, 1_000_000);
    // A client that reads: it asks again when it has a long reply.
    get(&mut w, 1, 2);
    let ids = 2..900;
    crowd(&mut w, &ids);
    // Until those who read nothing are given up, so that there is room.
    let began = w.at;
    while w.at.since(began) < 2 * STUCK_NS {
        close_given_up(&mut w, &ids);
        w.run_for(10 * MS);
    }
    assert!(w.gateway.counters().clients_given_up > 10);
    let mut paced = w.gateway.counters().replies_paced;
    for new in 1_000..1_010 {
        close_given_up(&mut w, &ids);
        // One that comes waits for the pace at most, not for hundreds that came before.
        let came = w.at;
        w.connect(new);
        w.input(new, b"GET k3\r\n");
        while w.received[&new].len() < 1_000_000 + 12 {
            w.run_for(10 * MS);
        }
        let waited_ns = w.at.since(came);
        assert!(waited_ns < 500 * MS, "{waited_ns}");
        // One that is known to read waits for nobody.
        let began = w.at;
        get(&mut w, 1, 10);
        let waited_ns = w.at.since(began);
        assert!(waited_ns < 500 * MS, "{waited_ns}");
        w.run_for(came.after(SEC).since(w.at));
        // Of 1 MB each: 2 MiB a second, and what the one that reads leaves to the next.
        let now = w.gateway.counters().replies_paced;
        assert!((1..=10).contains(&(now - paced)), "{}", now - paced);
        paced = now;
    }
    // Nor for those that read all the time, of whom some always wait for their turn.
    let readers = 2_000..2_006;
    for id in readers.clone() {
        w.connect(id);
        get(&mut w, id, 2);
    }
    for id in readers.clone() {
        w.input(id, &b"GET k0\r\n".repeat(60));
    }
    let came = w.at;
    w.connect(3_000);
    w.input(3_000, b"GET k3\r\n");
    while w.received[&3_000].len() < 1_000_000 + 12 {
        w.run_for(MS);
    }
    let waited_ns = w.at.since(came);
    assert!(waited_ns < 300 * MS, "{waited_ns}");
    let left = |id| w.received[&id].len() < 60 * 1_000_012;
    assert!(readers.into_iter().any(left), "they go on meanwhile");
}

/// Newcomers find more room than others, and may not keep these from their turn for ever.
#[test]
fn bug_16_4i_earlier_client_gets_its_share_beside_newcomers() {
    let mut w = with_long_values(4, 1_000_000);
    deaf(&mut w, &(2..14), b"GET k0\r\n", MS);
    w.connect(14);
    w.input(14, b"GET k1\r\n");
    let came = w.at;
    for new in 15.. {
        deaf(&mut w, &(new..new + 1), b"GET k0\r\n", 20 * MS);
        if w.received[&14].len() >= 1_000_000 {
            break;
        }
        assert!(w.at.since(came) < 5 * SEC, "it has no turn");
    }
    assert!(w.gateway.counters().replies_paced > 0, "nobody waits");
}

/// A crowd that does not read gets little from the beginning and is not tried.
#[test]
fn bug_16_4h_crowd_gets_little_from_the_beginning() {
    let mut w = with_long_values(4, 1_000_000);
    let began = w.at;
    let ids = 2..302;
    deaf(&mut w, &ids, b"GET k0\r\n", MS);
    let seconds = w.at.since(began).div_ceil(SEC) as usize;
    let (held, _) = w.gateway.reply_bytes();
    assert!(held <= (8 + 4 * seconds + 2) << 20, "{held} in {seconds} s");
    let (reads, put_off) =
        (w.gateway.client().counters().reads, w.gateway.counters().reads_put_off);
    assert!(reads < 60 && put_off > 240, "{reads} reads, {put_off} put off");
    // What was long is short by now: its readers are served in their turn, and nobody waits for
    // that any more.
    w.input(1, b"SET k0 short\r\n");
    w.run_for(10 * MS);
    w.connect(1_000);
    w.input(1_000, b"GET k0\r\n");
    w.run_for(SEC);
    assert_eq!(w.received[&1_000], b"$5\r\nshort\r\n");
    let put_off = w.gateway.counters().reads_put_off;
    w.connect(1_001);
    w.input(1_001, b"GET k0\r\n");
    w.run_for(10 * MS);
    assert_eq!(w.received[&1_001], b"$5\r\nshort\r\n");
    assert_eq!(w.gateway.counters().reads_put_off, put_off);
}

#[test]
fn bug_16_4h_a_crowd_that_reads_is_not_paced() {
    let mut w = with_long_values(4, 1_000_000);
    let ids = 2..102;
    for id in ids.clone() {
        w.connect(id);
        w.input(id, b"GET k0\r\n");
    }
    let began = w.at;
    while ids.clone().any(|id| w.received[&id].len() < 1_000_012) {
        w.run_for(MS);
    }
    // At the pace it would be 17 s.
    let took_ns = w.at.since(began);
    assert!(took_ns < 2 * SEC, "{took_ns}");
}
