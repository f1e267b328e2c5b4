//! Commands that wait for an element, at a gateway before a fake rack.

use super::common::{Mood, World, request};
use concord_core::{MS, SEC};
use concord_gateway::ConnectionId;

/// What `id` received by now.
fn heard(world: &mut World, id: u64) -> String {
    let bytes = std::mem::take(world.received.get_mut(&id).unwrap());
    String::from_utf8_lossy(&bytes).replace("\r\n", " ")
}

fn say(world: &mut World, id: u64, line: &str) {
    world.input(id, format!("{line}\r\n").as_bytes());
    world.run_for(20 * MS);
}

fn world(connections: u64) -> World {
    let mut world = World::new(77);
    (2..=connections).for_each(|id| world.connect(id));
    world.run_for(SEC);
    world
}

#[test]
fn each_waits_for_its_element_in_the_order_in_which_they_came() {
    let mut w = world(4);
    for id in [3, 1, 2] {
        say(&mut w, id, "BLPOP q 0");
    }
    say(&mut w, 4, "RPUSH q a b c");
    assert_eq!(heard(&mut w, 4), ":3 ");
    w.run_for(50 * MS);
    let all: Vec<String> = [3, 1, 2].map(|id| heard(&mut w, id)).to_vec();
    assert_eq!(all, ["*2 $1 q $1 a ", "*2 $1 q $1 b ", "*2 $1 q $1 c "]);
    say(&mut w, 4, "EXISTS q");
    assert_eq!(heard(&mut w, 4), ":0 ");
}

/// How many requests with tries of several were executed since this was asked last, and how many
/// with one.
fn tries(world: &mut World) -> (usize, usize) {
    let log = world.executed();
    let count = |name: &str| log.iter().filter(|line| line.starts_with(name)).count();
    (count("CONCORD.EXEC"), count("BLPOP") + count("BRPOP") + count("BLMPOP"))
}

#[test]
fn those_who_wait_for_one_key_try_together_in_their_order() {
    let mut w = world(9);
    for id in [5, 3, 4, 1, 2] {
        say(&mut w, id, "BLPOP q 0");
    }
    w.executed();
    say(&mut w, 9, "RPUSH q a b c");
    w.run_for(50 * MS);
    let all = [5, 3, 4, 1, 2].map(|id| heard(&mut w, id));
    assert_eq!(all, ["*2 $1 q $1 a ", "*2 $1 q $1 b ", "*2 $1 q $1 c ", "", ""]);
    assert_eq!(tries(&mut w), (2, 1), "the first by itself, two, and two who found nothing");
    say(&mut w, 6, "BRPOP q 0");
    say(&mut w, 7, "BLPOP q 0");
    say(&mut w, 9, "RPUSH q d e f g");
    w.run_for(50 * MS);
    let all = [1, 2, 6, 7].map(|id| heard(&mut w, id));
    assert_eq!(all, ["*2 $1 q $1 d ", "*2 $1 q $1 e ", "*2 $1 q $1 g ", "*2 $1 q $1 f "]);
    say(&mut w, 9, "EXISTS q");
    assert_eq!(heard(&mut w, 9), ":3 :4 :0 ");
}

/// Those who hear another version of the protocol or wait for more keys try by themselves.
#[test]
fn other_protocol_or_more_keys_try_alone() {
    let mut w = world(6);
    say(&mut w, 2, "HELLO 3");
    heard(&mut w, 2);
    for (id, line) in [(1, "q 0"), (2, "q 0"), (3, "q 0"), (4, "q r 0"), (5, "q 0")] {
        say(&mut w, id, &format!("BZPOPMIN {line}"));
    }
    say(&mut w, 6, "ZADD q 1 a 2 b 3 c 4 d 5 e");
    w.run_for(200 * MS);
    let all: Vec<String> = (1..=5).map(|id| heard(&mut w, id)).collect();
    let reply = |n: u8, element| format!("*3 $1 q $1 {element} $1 {n} ");
    let of_3 = "*3 $1 q $1 b ,2 ".to_owned();
    assert_eq!(all, [reply(1, 'a'), of_3, reply(3, 'c'), reply(4, 'd'), reply(5, 'e')]);
}

/// Who goes while several try together takes nothing from the others.
#[test]
fn leaving_a_joint_try_takes_nothing() {
    for gone in [vec![2], vec![3], vec![2, 3]] {
        let mut w = world(5);
        (1..=4).for_each(|id| say(&mut w, id, "BLPOP q 0"));
        w.delay_ns = (4 * MS, 4 * MS);
        w.input(5, b"RPUSH q a b c\r\n");
        // It is there after 4 ms, the hint and so the first try at 8 ms, its reply and so the next
        // two at 16 ms, theirs at 24 ms.
        w.run_for(18 * MS);
        assert_eq!(heard(&mut w, 1), "*2 $1 q $1 a ");
        gone.iter().for_each(|id| w.gateway.closed(ConnectionId(*id)));
        w.run_for(100 * MS);
        for (id, element) in [(2, 'b'), (3, 'c')] {
            let reply = format!("*2 $1 q $1 {element} ");
            let expected = if gone.contains(&id) { String::new() } else { reply };
            assert_eq!(heard(&mut w, id), expected, "{gone:?}: {id}");
        }
        assert_eq!(heard(&mut w, 4), "", "{gone:?}");
        w.input(5, b"RPUSH q d\r\n");
        w.run_for(100 * MS);
        assert_eq!(heard(&mut w, 4), "*2 $1 q $1 d ", "{gone:?}");
    }
}

#[test]
fn what_becomes_of_a_request_of_several_tries_each_is_told() {
    let mut w = world(5);
    (1..=3).for_each(|id| say(&mut w, id, "BLPOP q 0"));
    // A key of another type is waited for as before.
    say(&mut w, 4, "SET q v");
    say(&mut w, 4, "DEL q");
    w.run_for(100 * MS);
    assert_eq!([1, 2, 3].map(|id| heard(&mut w, id)), ["", "", ""]);
    say(&mut w, 4, "RPUSH q a b c");
    w.run_for(2 * SEC);
    let all = [1, 2, 3].map(|id| heard(&mut w, id));
    assert_eq!(all, ["*2 $1 q $1 a ", "*2 $1 q $1 b ", "*2 $1 q $1 c "]);
    for (mood, error) in [(Mood::Fails, "-ERR the engine is gone "), (Mood::Dead, "-UNKNOWN ")] {
        (1..=3).for_each(|id| say(&mut w, id, "BLPOP r 0"));
        w.delay_ns = (4 * MS, 4 * MS);
        w.input(4, b"RPUSH r a\r\n");
        // The first one has its element, and the other two try.
        w.run_for(18 * MS);
        assert!(heard(&mut w, 1).contains("$1 a "));
        w.store.mood = mood;
        w.run_for(10 * SEC);
        assert!([2, 3].map(|id| heard(&mut w, id)).iter().all(|text| text.starts_with(error)));
        w.store.mood = Mood::Serves;
        w.run_for(SEC);
    }
}

#[test]
fn long_elements_are_popped_one_by_one() {
    let mut w = world(9);
    let long = "x".repeat(10_000);
    (1..=4).for_each(|id| say(&mut w, id, "BLPOP q 0"));
    w.executed();
    let push = |w: &mut World, text: &str| {
        for _ in 0..4 {
            w.input(9, &request(&[b"RPUSH", b"q", text.as_bytes()]));
        }
        w.run_for(200 * MS);
        (1..=4).for_each(|id| assert!(heard(w, id).contains(text)));
        tries(w)
    };
    push(&mut w, &long);
    w.run_for(SEC);
    say(&mut w, 1, "BLPOP q 0");
    (2..=4).for_each(|id| say(&mut w, id, "BLPOP q 0"));
    w.executed();
    w.input(9, &request(&[b"MULTI"]));
    (0..4).for_each(|_| w.input(9, &request(&[b"RPUSH", b"q", long.as_bytes()])));
    w.input(9, &request(&[b"EXEC"]));
    w.run_for(200 * MS);
    (1..=4).for_each(|id| assert!(heard(&mut w, id).contains(&long)));
    let (together, _) = tries(&mut w);
    assert!(together <= 2, "the push itself, and at most the first tries: {together}");
}

#[test]
fn every_command_that_waits_has_redis_replies() {
    let mut w = world(2);
    for (line, push, reply) in [
        ("BLPOP a b 0", "RPUSH b 1 2", "*2 $1 b $1 1 "),
        ("BRPOP a h 0", "RPUSH a 3 4", "*2 $1 a $1 4 "),
        ("BLMOVE c d LEFT RIGHT 0", "RPUSH c 5", "$1 5 "),
        ("BRPOPLPUSH e d 0", "RPUSH e 6", "$1 6 "),
        ("BLMPOP 0 2 f g LEFT COUNT 2", "RPUSH g 7 8 9", "*2 $1 g *2 $1 7 $1 8 "),
        ("BZPOPMIN x y 0", "ZADD y 1 m 2 n", "*3 $1 y $1 m $1 1 "),
        ("BZPOPMAX x z 0", "ZADD z 1 m 2 n", "*3 $1 z $1 n $1 2 "),
        ("BZMPOP 0 1 u MIN", "ZADD u 1 m", "*2 $1 u *1 *2 $1 m $1 1 "),
    ] {
        say(&mut w, 1, line);
        assert_eq!(heard(&mut w, 1), "", "{line}");
        say(&mut w, 2, push);
        w.run_for(20 * MS);
        assert_eq!(heard(&mut w, 1), reply, "{line}");
        heard(&mut w, 2);
    }
    say(&mut w, 2, "LRANGE d 0 -1");
    assert_eq!(heard(&mut w, 2), "*2 $1 6 $1 5 ");
    say(&mut w, 1, "BZPOPMIN y 0");
    assert_eq!(heard(&mut w, 1), "*3 $1 y $1 n $1 2 ", "there is one, so it does not wait");
}

#[test]
fn streams_are_waited_for_by_each_reader_and_by_one_of_a_group() {
    let mut w = world(6);
    say(&mut w, 6, "XADD s 1-1 f old");
    say(&mut w, 6, "XGROUP CREATE s g $");
    heard(&mut w, 6);
    say(&mut w, 1, "XREAD BLOCK 0 STREAMS s t $ 0");
    say(&mut w, 2, "XREAD BLOCK 0 STREAMS s 9-0");
    say(&mut w, 3, "XREAD COUNT 1 BLOCK 0 STREAMS t s 0 $");
    say(&mut w, 4, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
    say(&mut w, 5, "XREADGROUP GROUP g b BLOCK 0 STREAMS s >");
    say(&mut w, 6, "XADD s 2-1 f v");
    w.run_for(50 * MS);
    let entry = "*1 *2 $1 s *1 *2 $3 2-1 *2 $1 f $1 v ";
    let all: Vec<String> = (1..=5).map(|id| heard(&mut w, id)).collect();
    assert_eq!(all, [entry, "", entry, entry, ""]);
    say(&mut w, 6, "XADD s 10-1 f w");
    w.run_for(50 * MS);
    let entry = entry.replace("$3 2-1", "$4 10-1").replace("$1 v", "$1 w");
    assert_eq!([2, 5].map(|id| heard(&mut w, id)), [entry.clone(), entry]);
    for (ends, error) in [
        (
            "XGROUP DESTROY s g",
            "-NOGROUP the consumer group this client was blocked on no longer exists ",
        ),
        ("SET s v", "-UNBLOCKED the stream key no longer exists "),
        ("DEL s", "-NOGROUP the consumer group this client was blocked on no longer exists "),
    ] {
        say(&mut w, 6, "XGROUP CREATE s h $");
        let group = if ends.starts_with("XGROUP") { "g" } else { "h" };
        say(&mut w, 4, &format!("XREADGROUP GROUP {group} a BLOCK 0 STREAMS s >"));
        say(&mut w, 6, ends);
        w.run_for(50 * MS);
        assert_eq!(heard(&mut w, 4), error, "{ends}");
        say(&mut w, 6, "DEL s");
        say(&mut w, 6, "XADD s 10-1 f w");
    }
    say(&mut w, 1, "XREAD BLOCK 50 STREAMS s $");
    assert_eq!(heard(&mut w, 1), "");
    w.run_for(100 * MS);
    assert_eq!(heard(&mut w, 1), "*-1 ");
    say(&mut w, 1, "XREAD BLOCK 50 STREAMS s 9");
    assert!(heard(&mut w, 1).contains("10-1"), "there is one, so it does not wait");
    say(&mut w, 1, "SET k v");
    heard(&mut w, 1);
    for (line, error) in [
        ("XREAD BLOCK x STREAMS s $", "-ERR timeout is not an integer or out of range "),
        ("XREAD BLOCK -1 STREAMS s $", "-ERR timeout is negative "),
        ("XREADGROUP GROUP n a BLOCK 0 STREAMS s >", "-NOGROUP No such key 's' or consumer group"),
        ("XREAD BLOCK 0 STREAMS k $", "-WRONGTYPE "),
        ("XREAD BLOCK 0 STREAMS s", "-ERR Unbalanced "),
    ] {
        say(&mut w, 1, line);
        let reply = heard(&mut w, 1);
        assert!(reply.starts_with(error), "{line}: {reply}");
    }
    say(&mut w, 1, "MULTI\r\nXREAD BLOCK 0 STREAMS s $\r\nEXEC");
    assert_eq!(heard(&mut w, 1), "+OK +QUEUED *1 *-1 ", "within MULTI it does not wait");
}

/// A wait ends when its time is over and errors are those of redis.
#[test]
fn wait_ends_in_time_with_redis_errors() {
    let mut w = world(2);
    say(&mut w, 1, "BLPOP k 0.1");
    assert_eq!(heard(&mut w, 1), "");
    w.run_for(100 * MS);
    assert_eq!(heard(&mut w, 1), "*-1 ");
    say(&mut w, 1, "HELLO 3");
    heard(&mut w, 1);
    say(&mut w, 1, "BRPOPLPUSH k l 0.01");
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 1), "_ ");
    for (line, error) in [
        ("BLPOP k x", "-ERR timeout is not a float or out of range "),
        ("BLPOP k -1", "-ERR timeout is negative "),
        ("BLMPOP 0 x k LEFT", "-ERR numkeys should be greater than 0 "),
        ("BLPOP k", "-ERR wrong number of arguments for 'blpop' command "),
    ] {
        say(&mut w, 1, line);
        assert_eq!(heard(&mut w, 1), error, "{line}");
    }
    say(&mut w, 2, "SET s v");
    say(&mut w, 1, "BLPOP k s 0");
    assert!(heard(&mut w, 1).starts_with("-WRONGTYPE"));
}

/// A key that becomes of another type is waited for and so are the others.
#[test]
fn key_of_another_type_is_waited_for() {
    let mut w = world(2);
    say(&mut w, 1, "BLPOP a b 0");
    say(&mut w, 2, "SET a v");
    w.run_for(SEC);
    assert_eq!(heard(&mut w, 1), "");
    say(&mut w, 2, "RPUSH b x");
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 1), "*2 $1 b $1 x ");
    say(&mut w, 1, "BLPOP a 0");
    assert!(heard(&mut w, 1).starts_with("-WRONGTYPE"), "at once, as in Redis");
    say(&mut w, 1, "BRPOPLPUSH e a 0");
    say(&mut w, 2, "RPUSH e y");
    w.run_for(20 * MS);
    assert!(heard(&mut w, 1).starts_with("-WRONGTYPE"), "what it would push to is a string");
    heard(&mut w, 2);
    say(&mut w, 2, "LLEN e");
    assert_eq!(heard(&mut w, 2), ":1 ");
}

/// Nothing of its connection overtakes it and within multi it does not wait.
#[test]
fn nothing_overtakes_and_multi_does_not_wait() {
    let mut w = world(2);
    say(&mut w, 1, "SET x 1\r\nBLPOP k 0\r\nINCR x\r\nPING");
    assert_eq!(heard(&mut w, 1), "+OK ");
    say(&mut w, 2, "GET x");
    assert_eq!(heard(&mut w, 2), "$1 1 ");
    say(&mut w, 2, "RPUSH k a");
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 1), "*2 $1 k $1 a :2 +PONG ");
    say(&mut w, 1, "MULTI\r\nBLPOP k 0\r\nRPUSH k b\r\nBLPOP j k 0\r\nEXEC");
    w.run_for(20 * MS);
    let all = heard(&mut w, 1);
    assert!(all.ends_with("*3 *-1 :1 *2 $1 k $1 b "), "{all}");
}

#[test]
fn client_unblock_ends_a_wait() {
    let mut w = world(3);
    say(&mut w, 1, "BLPOP k 0");
    say(&mut w, 2, "BLPOP k 0");
    say(&mut w, 3, "CLIENT UNBLOCK 2 ERROR");
    assert_eq!(heard(&mut w, 2), "-UNBLOCKED client unblocked via CLIENT UNBLOCK ");
    say(&mut w, 3, "CLIENT UNBLOCK 1");
    assert_eq!(heard(&mut w, 1), "*-1 ");
    say(&mut w, 3, "CLIENT UNBLOCK 1\r\nCLIENT UNBLOCK 9\r\nCLIENT UNBLOCK 1 x");
    let text = heard(&mut w, 3);
    assert_eq!(text, ":1 :1 :0 :0 -ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR ");
    say(&mut w, 1, "PING");
    assert_eq!(heard(&mut w, 1), "+PONG ");
}

#[test]
fn who_goes_waits_no_more_and_the_next_gets_the_element() {
    let mut w = world(3);
    say(&mut w, 1, "BLPOP k 0");
    say(&mut w, 2, "BLPOP k 0");
    w.gateway.closed(ConnectionId(1));
    say(&mut w, 3, "RPUSH k a");
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 2), "*2 $1 k $1 a ");
    say(&mut w, 2, "BLPOP k 0");
    w.gateway.shutdown();
    w.after_input(vec![]);
    assert!(heard(&mut w, 2).starts_with("-UNBLOCKED"));
    assert!(w.gateway.wants_close(ConnectionId(2)));
}

#[test]
fn what_nobody_tells_of_is_found_all_the_same() {
    let mut w = world(3);
    w.store.tells = false;
    say(&mut w, 1, "BLPOP k 0");
    say(&mut w, 2, "BZPOPMIN z 0");
    say(&mut w, 3, "RPUSH k a\r\nZADD z 1 m");
    w.run_for(3 * SEC);
    assert_eq!(heard(&mut w, 1), "*2 $1 k $1 a ");
    assert_eq!(heard(&mut w, 2), "*3 $1 z $1 m $1 1 ");
    w.executed();
    say(&mut w, 1, "BLPOP k 0");
    w.run_for(10 * SEC);
    let tried = w.executed().iter().filter(|line| line.starts_with("BLPOP")).count();
    assert_eq!(tried, 1, "who waits for what does not come asks no more than whether it is there");
}

/// A rack that does not answer is no reason to lose or to wait for ever.
#[test]
fn silent_rack_loses_nothing_and_ends() {
    let mut w = world(3);
    say(&mut w, 1, "BLPOP k 0");
    w.store.mood = Mood::Dead;
    say(&mut w, 3, "RPUSH k a");
    say(&mut w, 2, "BLPOP j 1");
    w.run_for(8 * SEC);
    assert!(heard(&mut w, 2).starts_with("-UNKNOWN"), "a try may have been executed");
    w.store.mood = Mood::Serves;
    w.run_for(3 * SEC);
    heard(&mut w, 3);
    say(&mut w, 3, "RPUSH k b");
    w.run_for(2 * SEC);
    assert!(heard(&mut w, 1).starts_with("*2 $1 k $1 "));
}

#[test]
fn more_than_eight_keys_are_looked_at_eight_at_a_time() {
    let mut w = world(2);
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    say(&mut w, 1, &format!("BLPOP {} 0", keys.join(" ")));
    say(&mut w, 2, "RPUSH k17 a");
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 1), "*2 $3 k17 $1 a ");
    say(&mut w, 1, &format!("BLMPOP 0 20 {} LEFT", keys.join(" ")));
    say(&mut w, 2, "RPUSH k9 b");
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 1), "*2 $2 k9 *1 $1 b ");
    assert!(w.store.log.iter().all(|(.., all_keys)| !all_keys));
}

/// Whatever the order and the loss of what is told: each element is popped once, and nobody waits
/// while there is one.
#[test]
fn elements_go_to_one_each_and_nobody_waits_for_what_is_there() {
    for seed in 0..40 {
        let mut w = World::new(seed);
        (2..=8).for_each(|id| w.connect(id));
        w.run_for(SEC);
        let mut rng = concord_core::Rng::new(seed);
        w.delay_ns = (10_000, MS);
        let mut pushed = 0;
        for _ in 0..200 {
            let id = rng.between(1, 6);
            w.store.tells = rng.below(4) > 0;
            if rng.below(2) == 0 {
                let key = ["a", "b"][rng.below(2) as usize];
                w.input(7, &request(&[b"RPUSH", key.as_bytes(), format!("e{pushed}").as_bytes()]));
                pushed += 1;
            } else {
                let line = ["BLPOP a 0", "BRPOP b a 0", "BLPOP a b 0.02"][rng.below(3) as usize];
                w.input(id, format!("{line}\r\n").as_bytes());
            }
            w.run_for(rng.between(0, 3 * MS));
        }
        w.run_for(10 * SEC);
        let mut seen: Vec<String> = Vec::new();
        for id in 1..=6 {
            let text = heard(&mut w, id);
            assert!(!text.contains('-') || text.contains("*-1"), "seed {seed}: {text}");
            seen.extend(text.split(' ').filter(|t| t.starts_with('e')).map(str::to_owned));
        }
        heard(&mut w, 8);
        w.input(8, b"INFO clients\r\n");
        w.run_for(SEC);
        let waits = !heard(&mut w, 8).contains("blocked_clients:0");
        for key in ["a", "b"] {
            w.input(8, format!("LRANGE {key} 0 -1\r\n").as_bytes());
            w.run_for(SEC);
            let left = heard(&mut w, 8);
            let left: Vec<&str> = left.split(' ').filter(|t| t.starts_with('e')).collect();
            let for_nobody = key == "b" || !waits;
            assert!(left.is_empty() || for_nobody, "seed {seed}: somebody waits for {left:?}");
            seen.extend(left.into_iter().map(str::to_owned));
        }
        seen.sort();
        let count = seen.len();
        seen.dedup();
        assert_eq!((seen.len(), count), (pushed, pushed), "seed {seed}");
    }
}
