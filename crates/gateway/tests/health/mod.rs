//! Whether a gateway says that the rack does not answer.

use concord_core::SEC;

use crate::common::{Mood, World};

/// With the switch dead every command fails after 5 s: the gateway is of no use to a load balancer,
/// until a command is answered, or some seconds later, when it may be tried again.
#[test]
fn bug_24_10_a_gateway_whose_commands_fail_is_failing() {
    let mut w = World::new(3);
    let is_failing = |w: &World| w.gateway.is_failing(w.at);
    assert_eq!(w.ask(&["SET k v"]), "+OK\r\n");
    assert!(w.gateway.is_serving() && !is_failing(&w));
    w.store.mood = Mood::Dead;
    for command in ["GET k", "SET k w"] {
        w.input(1, format!("{command}\r\n").as_bytes());
        w.run_for(6 * SEC);
        assert!(is_failing(&w), "{command}");
        w.store.mood = Mood::Serves;
        w.run_for(SEC);
        w.ask(&["GET k"]);
        assert!(!is_failing(&w), "{command}: it was answered");
        w.store.mood = Mood::Dead;
    }
    w.input(1, b"GET k\r\n");
    w.run_for(6 * SEC);
    assert!(is_failing(&w));
    w.run_for(11 * SEC);
    assert!(!is_failing(&w), "nobody tries it for ever");
}

/// Commands of a key that came together with the switch dead waited 5 s each, one after the other.
/// They end together, and those behind the first were surely not executed.
#[test]
fn bug_24_11_pipelined_commands_of_a_key_wait_together() {
    let mut w = World::new(4);
    assert_eq!(w.ask(&["SET k v"]), "+OK\r\n");
    w.store.mood = Mood::Dead;
    // It runs for 6 s.
    let replies = w.ask(&["SET k a", "GET k", "SET k b", "INCR n"]);
    let starts: Vec<&str> = replies.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(starts, ["-UNKNOWN", "-TIMEOUT", "-TRYAGAIN", "-TRYAGAIN"], "{replies}");
    // What comes later has its own time.
    w.input(1, b"SET k c\r\n");
    w.run_for(SEC);
    w.store.mood = Mood::Serves;
    assert_eq!(w.replies(1), "+OK\r\n");
    assert_eq!(w.ask(&["GET k"]), "$1\r\nc\r\n");
}

/// The time counts from when commands came, but not against a rack that answers: a pipeline of a
/// key that takes longer than that is answered.
#[test]
fn bug_24_11_a_long_pipeline_of_a_key_is_answered() {
    let mut w = World::new(5);
    let lines = 20_000;
    w.input(1, &b"INCR n\r\n".repeat(lines));
    let began = w.at;
    let mut answered = 0;
    while answered < lines {
        let replies = w.replies(1);
        assert!(!replies.contains('-'), "an error after {answered}");
        answered += replies.lines().count();
        assert!(w.at.since(began) < 600 * SEC, "{answered}");
    }
    println!("{} ns", w.at.since(began));
}
