//! Client-side caching over real processes: two gateways, both engines, keys whose time comes, a
//! gateway that is killed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::*;

fn second(rack: &Rack) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1))
}

/// The next invalidation of a subscriber to `__redis__:invalidate`: the keys, or `None` for all.
fn invalid(client: &mut Resp) -> Option<Vec<String>> {
    assert_eq!(client.next().unwrap().0, "*3");
    (0..2).for_each(|_| drop(client.next().unwrap()));
    let count = client.next().unwrap().0;
    let count = count.strip_prefix('*')?.parse().unwrap();
    let key = |_| String::from_utf8(client.next().unwrap().1).unwrap();
    Some((0..count).map(key).collect())
}

fn tracks(rack: &Rack, engine: &str) {
    let (mut reader, mut told) = (rack.client(), rack.client());
    let (mut near, mut far) = (rack.client(), Resp::open(second(rack)));
    let id = told.say("CLIENT ID").split_off(1);
    assert_eq!(told.say("SUBSCRIBE __redis__:invalidate"), "*3");
    (0..3).for_each(|_| drop(told.next().unwrap()));
    assert_eq!(reader.say(&format!("CLIENT TRACKING ON REDIRECT {id}")), "+OK");
    let mut longest = Duration::ZERO;
    for n in 0..100 {
        reader.say("GET a");
        let writer = if n % 2 == 0 { &mut near } else { &mut far };
        let began = Instant::now();
        assert_eq!(writer.say(&format!("SET a {n}")), "+OK");
        assert_eq!(invalid(&mut told), Some(vec!["a".to_string()]));
        longest = longest.max(began.elapsed());
    }
    println!("{engine}: told within {longest:?}");
    // Reads of every kind are what they are without.
    near.call(&[b"HSET", b"h", b"f", b"v"]).unwrap();
    assert_eq!(reader.call(&[b"HGET", b"h", b"f"]).unwrap().1, b"v");
    assert_eq!(reader.say("EXISTS a h none"), ":2");
    far.say("HSET h f w");
    assert_eq!(invalid(&mut told), Some(vec!["h".to_string()]));
    assert_eq!(reader.say("EVAL return(redis.call('get',KEYS[1])) 1 e"), "$-1");
    // A key whose time comes is told of by nobody, and looked at.
    near.say("SET e 1 PX 300");
    assert_eq!(invalid(&mut told), Some(vec!["e".to_string()]));
    assert_eq!(reader.say("GET e"), "1");
    assert_eq!(invalid(&mut told), Some(vec!["e".to_string()]));
    assert_eq!(reader.say("GET a"), "99");
    far.say("FLUSHALL");
    assert_eq!(invalid(&mut told), None);
}

#[test]
fn what_another_gateway_writes_is_told_with_the_memory_engine() {
    let rack = Rack::start("tracking", &["--gateways", "2", "--restart-gateways"]);
    tracks(&rack, "memory");
    // Who asked for all keys is told to forget all when a gateway is not heard of.
    let (mut reader, mut told) = (rack.client(), rack.client());
    let id = told.say("CLIENT ID").split_off(1);
    told.say("SUBSCRIBE __redis__:invalidate");
    (0..3).for_each(|_| drop(told.next().unwrap()));
    assert_eq!(reader.say(&format!("CLIENT TRACKING ON BCAST REDIRECT {id}")), "+OK");
    assert_eq!(Resp::open(second(&rack)).say("SET b 1"), "+OK");
    assert_eq!(invalid(&mut told), Some(vec!["b".to_string()]));
    Rack::signal(rack.pid("gateway-2"), "-9");
    assert_eq!(invalid(&mut told), None);
    until("a new gateway", || {
        let mut far = Resp::open(second(&rack));
        far.call(&[b"PING"]).is_ok_and(|(reply, _)| reply == "+PONG")
    });
    // Until both have heard of each other.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(Resp::open(second(&rack)).say("SET c 1"), "+OK");
    while let told = invalid(&mut told)
        && told != Some(vec!["c".to_string()])
    {
        assert_eq!(told, None);
    }
}

#[test]
fn what_another_gateway_writes_is_told_with_the_redis_engine() {
    let rack = Rack::start("tracking-redis", &["--gateways", "2", "--engine", "redis"]);
    tracks(&rack, "redis");
}
