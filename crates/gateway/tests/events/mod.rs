//! Keyspace events: who asks the rack for them, when a subscription begins, and what the setting
//! does.

use concord_core::{MS, SEC};

use crate::common::{Mood, World, heard, say};

fn shared(seed: u64) -> World {
    let mut w = World::new(seed);
    w.gateway.share_users(&[7; 32]);
    w.run_for(SEC / 10);
    (2..=4).for_each(|id| w.connect(id));
    w
}

/// What a client heard, in words.
fn words(w: &mut World, id: u64) -> String {
    w.run_for(30 * MS);
    heard(w, id).replace("\r\n", " ")
}

/// How often the rack was asked for events since the last call.
fn asked(w: &mut World) -> usize {
    let is_it = |one: &String| one.contains("CONCORD.EVENTS");
    w.executed().iter().filter(|one| is_it(one)).count()
}

#[test]
fn nobody_asks_unless_events_are_wanted_and_somebody_listens() {
    let mut w = shared(1);
    say(&mut w, 2, &["PSUBSCRIBE *"]);
    say(&mut w, 1, &["SET a 1"]);
    w.run_for(SEC);
    assert_eq!(asked(&mut w), 0, "they are not wanted");
    say(&mut w, 2, &["PUNSUBSCRIBE *", "SUBSCRIBE news", "PSUBSCRIBE n* __x*"]);
    assert_eq!(
        say(&mut w, 1, &["CONFIG SET notify-keyspace-events KEA", "SET a 2"]),
        "+OK\r\n+OK\r\n"
    );
    w.run_for(SEC);
    assert_eq!(asked(&mut w), 0, "nobody listens");
    say(&mut w, 3, &["SUBSCRIBE __keyevent@0__:del"]);
    w.run_for(SEC);
    let count = asked(&mut w);
    assert!((50..=110).contains(&count), "each 10 ms: {count}");
    say(&mut w, 1, &["CONFIG SET notify-keyspace-events K"]);
    w.run_for(SEC / 10);
    asked(&mut w);
    w.gateway.closed(concord_gateway::ConnectionId(3));
    w.run_for(SEC);
    assert_eq!(asked(&mut w), 0, "who listened is gone");
}

#[test]
fn a_subscription_begins_where_events_end_by_then() {
    let mut w = shared(2);
    say(&mut w, 1, &["CONFIG SET notify-keyspace-events KEA", "SET before 1", "SELECT 3"]);
    let reply = say(&mut w, 2, &["PSUBSCRIBE __key*"]);
    assert!(reply.starts_with("*3\r\n$10\r\npsubscribe\r\n"), "{reply}");
    assert_eq!(words(&mut w, 2), "");
    // In the middle of what follows another one begins.
    say(&mut w, 1, &["SET a 1", "DEL a"]);
    say(&mut w, 3, &["SUBSCRIBE __keyspace@3__:a"]);
    heard(&mut w, 3);
    say(&mut w, 1, &["LPUSH a x"]);
    let all = words(&mut w, 2);
    let names = [
        "__keyspace@3__:a $3 set",
        "__keyevent@3__:set $1 a",
        "$3 del",
        "$1 a",
        "$5 lpush",
        "$1 a",
    ];
    let mut from = 0;
    for name in names {
        from += all[from..].find(name).unwrap_or_else(|| panic!("{name} in {all}")) + name.len();
    }
    assert_eq!(all.matches("pmessage").count(), 6);
    assert_eq!(words(&mut w, 3), "*3 $7 message $16 __keyspace@3__:a $5 lpush ");
}

/// Whoever listens when events are turned on hears all up to where they are turned off.
#[test]
fn listener_hears_events_from_on_to_off() {
    let mut w = shared(3);
    say(&mut w, 2, &["PSUBSCRIBE __keyevent*"]);
    let on_and_off = [
        "SET a 1",
        "CONFIG SET notify-keyspace-events E$",
        "SET b 1",
        "SET c 1",
        "CONFIG SET notify-keyspace-events Eg",
        "SET d 1",
        "DEL d",
        "CONFIG SET notify-keyspace-events \"\"",
        "DEL c",
    ];
    say(&mut w, 1, &on_and_off);
    let all = words(&mut w, 2);
    assert_eq!(all.matches("pmessage").count(), 3, "{all}");
    assert!(all.ends_with("__keyevent@0__:del $1 d "), "{all}");
    assert_eq!(
        say(&mut w, 1, &["CONFIG GET notify-keyspace-events"]),
        "*2\r\n$22\r\nnotify-keyspace-events\r\n$0\r\n\r\n"
    );
}

/// What cannot be read at once is told later and a subscription does not wait for ever.
#[test]
fn delayed_events_and_bounded_subscription() {
    let mut w = shared(4);
    say(&mut w, 1, &["CONFIG SET notify-keyspace-events KEA"]);
    say(&mut w, 2, &["SUBSCRIBE __keyevent@0__:set"]);
    heard(&mut w, 2);
    say(&mut w, 1, &["SET a 1"]);
    w.store.mood = Mood::Dead;
    w.input(3, b"SUBSCRIBE __keyevent@0__:set\r\n");
    w.run_for(7 * SEC);
    assert!(heard(&mut w, 3).starts_with("*3\r\n$9\r\nsubscribe"), "the rack does not answer");
    w.store.mood = Mood::Serves;
    say(&mut w, 1, &["SET b 1"]);
    w.run_for(SEC);
    let all = words(&mut w, 2);
    assert_eq!(all.matches("message").count(), 2, "{all}");
    // In a transaction the setting is refused, as what is no letter is.
    let reply = say(&mut w, 1, &["MULTI", "CONFIG SET notify-keyspace-events KEA", "EXEC"]);
    assert!(reply.contains("inside MULTI"), "{reply}");
    let reply = say(&mut w, 1, &["CONFIG SET notify-keyspace-events KEAw"]);
    assert!(reply.contains("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."), "{reply}");
}
