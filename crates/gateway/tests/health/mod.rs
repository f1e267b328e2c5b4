//! Whether a gateway says that the rack does not answer, or works on one operation.

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

/// A WATCH that is not sent, since what it waited behind was not answered, fails its EXEC.
#[test]
fn bug_24_11_a_refused_watch_fails_its_transaction() {
    let mut w = World::new(4);
    assert_eq!(w.ask(&["SET k v"]), "+OK\r\n");
    w.store.mood = Mood::Dead;
    let replies = w.ask(&["SET k a", "WATCH k", "MULTI", "INCR n", "EXEC"]);
    let starts: Vec<&str> = replies.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(starts, ["-UNKNOWN", "-TIMEOUT", "+OK", "+QUEUED", "-EXECABORT"], "{replies}");
    w.store.mood = Mood::Serves;
    w.run_for(SEC);
    assert_eq!(w.ask(&["GET n"]), "$-1\r\n", "{replies}");
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
}

const BUSY: &str = "-BUSY the rack has been working on one script or command for more than 5 s; \
                    this one was not executed, try again later\r\n";

/// While the rack works on one operation others hear that it is busy once 5 s have passed: reads,
/// and writes that were not sent. What was sent waits for its end. So does SCRIPT KILL hear that.
#[test]
fn bug_22_110_others_hear_that_the_rack_is_busy() {
    let mut w = World::new(3);
    assert_eq!(w.ask(&["SET k v"]), "+OK\r\n");
    w.connect(2);
    w.store.mood = Mood::Works(4_000);
    w.input(1, b"SET k w\r\n");
    w.input(2, b"GET k\r\n");
    w.run_for(8 * SEC);
    let kill = |w: &mut World| {
        w.connect(3);
        w.input(3, b"SCRIPT KILL\r\nFUNCTION KILL\r\n");
        w.gateway.closed(concord_gateway::ConnectionId(3));
        String::from_utf8(w.received.remove(&3).unwrap()).unwrap()
    };
    assert_eq!(kill(&mut w), "-NOTBUSY No scripts in execution right now.\r\n".repeat(2));
    assert!(w.received[&1].is_empty() && w.received[&2].is_empty(), "both wait");
    w.store.mood = Mood::Works(20_000);
    w.run_for(SEC);
    assert_eq!(String::from_utf8_lossy(&w.received[&2]), BUSY);
    let said = kill(&mut w);
    assert!(said.lines().count() == 2 && said.lines().all(|l| l.starts_with("-UNKILLABLE ")));
    w.input(2, b"SET other v\r\n");
    assert_eq!(String::from_utf8_lossy(&w.received[&2]), BUSY.repeat(2));
    w.store.mood = Mood::Serves;
    w.run_for(3 * SEC);
    assert_eq!(w.received[&1], b"+OK\r\n");
    w.received.insert(2, vec![]);
    w.input(2, b"EXISTS k other\r\n");
    w.run_for(SEC);
    assert_eq!(w.received[&2], b":1\r\n", "what was refused was not executed");
    assert!(w.gateway.is_serving() && !w.gateway.is_failing(w.at));
}
