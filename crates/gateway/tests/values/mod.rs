//! Long values: what is taken, and what is refused.

use concord_engine::Class;
use concord_gateway::ConnectionId;

use crate::common::{World, request};

const TOO_LARGE: &str =
    "-ERR value is larger than proto-max-bulk-len (at most 64 MiB, Concord's limit)";

/// The longest value of the configuration holds until CONFIG SET says another one.
#[test]
fn the_longest_value_is_that_of_the_configuration() {
    let mut world = World::with(9, |config| config.limits.value_bytes_max = 2 << 20);
    assert!(world.ask(&["CONFIG GET proto-max-bulk-len"]).contains("2097152"));
    for (extra, said) in [(0, "+OK"), (1, TOO_LARGE)] {
        let value = vec![b'v'; (2 << 20) + extra];
        world.input(1, &request(&[b"SET", b"k", &value]));
        assert_eq!(world.replies(1), format!("{said}\r\n"));
    }
    assert_eq!(world.ask(&["CONFIG SET proto-max-bulk-len 1mb"]), "+OK\r\n");
    world.input(1, &request(&[b"SET", b"k", &vec![b'v'; 2 << 20]]));
    assert_eq!(world.replies(1), format!("{TOO_LARGE}\r\n"));
}

#[test]
fn a_large_value_is_refused_and_the_connection_goes_on() {
    let mut world = World::new(8);
    assert_eq!(world.ask(&["CONFIG SET proto-max-bulk-len 1mb"]), "+OK\r\n");
    for extra in [0, 1] {
        let value = vec![b'v'; (1 << 20) + extra];
        let mut input = request(&[b"SET", b"k", &value]);
        input.extend(b"STRLEN k\r\n");
        for piece in input.chunks(65_536) {
            world.input(1, piece);
        }
        let set = ["+OK", TOO_LARGE][extra];
        assert_eq!(world.replies(1), format!("{set}\r\n:1048576\r\n"));
    }
    world.input(1, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    assert_eq!(world.replies(1).len(), (1 << 20) + 12);
    // A read that fits no packet goes the way of writes.
    let key = vec![b'k'; 2_000];
    world.input(1, &request(&[b"SET", &key, b"1"]));
    world.input(1, &request(&[b"GET", &key]));
    assert_eq!(world.replies(1), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.store.log.last().unwrap().0, Class::Write);
    world.input(1, b"*2\r\n$3\r\nGET\r\n+");
    assert_eq!(world.replies(1), "-ERR Protocol error: expected '$', got '+'\r\n");
    assert!(world.gateway.wants_close(ConnectionId(1)));
}
