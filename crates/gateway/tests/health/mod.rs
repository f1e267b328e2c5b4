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
