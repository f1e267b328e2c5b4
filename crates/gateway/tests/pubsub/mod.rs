//! Publish and subscribe over several gateways, which lose, double and delay what they tell each
//! other.

use concord_client::ClientConfig;
use concord_core::{Duration, Instant, MS, Machine, Now, Rng, SEC};
use concord_engine::CommandTable;
use concord_gateway::{ConnectionId, Gateway, GatewayConfig, Limits};
use concord_wire::Addr;

use crate::common::{self, Mood};

fn addr(node: u16) -> Addr {
    Addr { ip: 0x7f00_0001, port: node }
}

/// Gateways, and what is on its way between them; no rack.
struct World {
    gateways: Vec<Gateway>,
    wire: Vec<(Instant, usize, Vec<u8>)>,
    at: Instant,
    rng: Rng,
    /// Of a hundred packets.
    loss: u64,
    /// A gateway that nobody hears, and that hears nobody.
    cut: Option<usize>,
    /// A gateway that hears nobody, and that all hear.
    deaf: Option<usize>,
    received: Vec<(usize, u64, Vec<u8>)>,
}

fn gateway(node: u16, count: u16, seed: u64) -> Gateway {
    let others = (1..=count).filter(|other| *other != node).map(|n| (n, addr(n))).collect();
    let config = GatewayConfig {
        splits_reads: false,
        client: ClientConfig::new(addr(node), addr(100)),
        requirepass: None,
        table: CommandTable::memory(),
        redis: false,
        connections_max: 1_000,
        limits: Limits::default(),
        others,
        node,
        port: 7379,
    };
    Gateway::new(config, Rng::new(seed))
}

impl World {
    fn new(count: u16, seed: u64) -> World {
        let gateways = (1..=count).map(|n| gateway(n, count, seed * 10 + u64::from(n))).collect();
        let (wire, received, rng) = (vec![], vec![], Rng::new(seed));
        let at = Instant(5 * SEC);
        let mut world = World { gateways, wire, at, rng, loss: 0, cut: None, deaf: None, received };
        world.run_for(10 * MS);
        world
    }

    fn now(&self) -> Now {
        Now { instant: self.at, unix_ms: self.at.0 / MS }
    }

    fn connect(&mut self, gateway: usize, id: u64) {
        let now = self.now();
        assert!(self.gateways[gateway].connected(now, ConnectionId(id), "x"));
    }

    fn say(&mut self, gateway: usize, id: u64, line: &str) {
        let (now, mut sent) = (self.now(), vec![]);
        let bytes = format!("{line}\r\n");
        self.gateways[gateway].input(now, ConnectionId(id), bytes.as_bytes(), &mut sent);
        self.after(gateway, sent);
    }

    fn after(&mut self, gateway: usize, mut sent: Vec<(Addr, Vec<u8>)>) {
        let now = self.now();
        let own = &mut self.gateways[gateway];
        own.flush(now, &mut sent);
        while let Some(id) = own.take_ready(now, &mut sent) {
            if own.is_given_up(id) {
                own.closed(id);
            }
            let Some(output) = own.output(id) else { continue };
            let bytes = output.to_vec();
            // Client 99 reads nothing.
            if !bytes.is_empty() && id.0 != 99 {
                self.received.push((gateway, id.0, bytes.clone()));
                own.written(now, id, bytes.len(), &mut sent);
            }
        }
        own.flush(now, &mut sent);
        for (to, bytes) in sent {
            let to = usize::from(to.port) - 1;
            let is_cut = self.cut.is_some_and(|cut| cut == gateway || cut == to);
            if to >= self.gateways.len() || is_cut || self.deaf == Some(to) {
                continue;
            }
            for _ in 0..self.rng.between(1, if self.loss > 0 { 2 } else { 1 }) {
                if self.rng.below(100) >= self.loss {
                    let delay = self.rng.between(MS / 20, MS);
                    self.wire.push((self.at.after(delay), to, bytes.clone()));
                }
            }
        }
    }

    fn run_for(&mut self, ns: Duration) {
        let until = self.at.after(ns);
        while self.at < until {
            self.at = self.at.after(MS / 20);
            let (at, now, mut due) = (self.at, self.now(), vec![]);
            self.wire.retain(|(when, to, bytes)| {
                let is_due = *when <= at;
                due.extend(is_due.then(|| (*to, bytes.clone())));
                !is_due
            });
            for (to, mut bytes) in due {
                let mut sent = vec![];
                self.gateways[to].handle(now, addr(9), &mut bytes, &mut sent);
                self.after(to, sent);
            }
            for n in 0..self.gateways.len() {
                if self.gateways[n].deadline().at <= at {
                    let mut sent = vec![];
                    self.gateways[n].tick(now, &mut sent);
                    assert!(
                        self.gateways[n].deadline().at > at,
                        "{:?}",
                        self.gateways[n].deadline()
                    );
                    self.after(n, sent);
                }
            }
        }
    }

    /// What a client received since the last call.
    fn heard(&mut self, gateway: usize, id: u64) -> String {
        self.run_for(20 * MS);
        let mut bytes = vec![];
        self.received.retain(|(own, client, more)| {
            let is_its = *own == gateway && *client == id;
            if is_its {
                bytes.extend_from_slice(more);
            }
            !is_its
        });
        String::from_utf8_lossy(&bytes).replace("\r\n", " ")
    }
}

#[test]
fn what_is_published_at_one_gateway_is_heard_at_all() {
    let mut w = World::new(3, 1);
    (0..3).for_each(|n| w.connect(n, 1));
    (0..3).for_each(|n| w.connect(n, 2));
    for n in 0..3 {
        w.say(n, 1, "SUBSCRIBE news other");
        let said = "*3 $9 subscribe $4 news :1 *3 $9 subscribe $5 other :2 ";
        assert_eq!(w.heard(n, 1), said);
    }
    w.say(1, 2, "HELLO 3");
    assert!(w.heard(1, 2).starts_with("%7"));
    w.say(1, 2, "PSUBSCRIBE n*");
    assert_eq!(w.heard(1, 2), ">3 $10 psubscribe $2 n* :1 ");
    w.say(0, 2, "PUBLISH news hello");
    assert_eq!(w.heard(0, 2), ":4 ");
    for n in 0..3 {
        assert_eq!(w.heard(n, 1), "*3 $7 message $4 news $5 hello ");
    }
    assert_eq!(w.heard(1, 2), ">4 $8 pmessage $2 n* $4 news $5 hello ");
    w.say(2, 2, "PUBSUB CHANNELS\r\nPUBSUB NUMSUB news x\r\nPUBSUB NUMPAT\r\nPUBSUB CHANNELS o*");
    assert_eq!(w.heard(2, 2), "*2 $4 news $5 other *4 $4 news :3 $1 x :0 :1 *1 $5 other ");
    w.say(0, 1, "UNSUBSCRIBE news\r\nUNSUBSCRIBE\r\nUNSUBSCRIBE");
    let said =
        "*3 $11 unsubscribe $4 news :1 *3 $11 unsubscribe $5 other :0 *3 $11 unsubscribe $-1 :0 ";
    assert_eq!(w.heard(0, 1), said);
    w.gateways[1].closed(ConnectionId(1));
    w.run_for(20 * MS);
    w.say(2, 2, "PUBLISH news x\r\nPUBLISH nobody x");
    assert_eq!(w.heard(2, 2), ":2 :1 ", "one that is gone does not count, a pattern does");
}

/// Who was counted hears it though he unsubscribes in the same batch.
#[test]
fn counted_subscriber_hears_despite_unsubscribe() {
    let mut w = World::new(1, 4);
    w.connect(0, 1);
    w.connect(0, 2);
    w.say(0, 1, "SUBSCRIBE c");
    assert_eq!(w.heard(0, 1), "*3 $9 subscribe $1 c :1 ");
    let (now, mut sent) = (w.now(), vec![]);
    w.gateways[0].input(now, ConnectionId(2), b"PUBLISH c x\r\n", &mut sent);
    w.gateways[0].input(now, ConnectionId(1), b"UNSUBSCRIBE c\r\n", &mut sent);
    w.after(0, sent);
    assert_eq!(w.heard(0, 2), ":1 ");
    assert_eq!(w.heard(0, 1), "*3 $7 message $1 c $1 x *3 $11 unsubscribe $1 c :0 ");
}

#[test]
fn channels_of_shards_are_apart() {
    let mut w = World::new(2, 2);
    w.connect(0, 1);
    w.connect(1, 2);
    w.say(0, 1, "SSUBSCRIBE c\r\nSUBSCRIBE c");
    assert_eq!(w.heard(0, 1), "*3 $10 ssubscribe $1 c :1 *3 $9 subscribe $1 c :1 ");
    w.say(1, 2, "SPUBLISH c x\r\nPUBSUB SHARDCHANNELS\r\nPUBSUB SHARDNUMSUB c\r\nPUBLISH c y");
    assert_eq!(w.heard(1, 2), ":1 *1 $1 c *2 $1 c :1 :1 ");
    assert_eq!(w.heard(0, 1), "*3 $8 smessage $1 c $1 x *3 $7 message $1 c $1 y ");
    w.say(0, 1, "SUNSUBSCRIBE");
    assert_eq!(w.heard(0, 1), "*3 $12 sunsubscribe $1 c :0 ");
}

#[test]
fn who_has_subscribed_says_nothing_else_in_resp2() {
    let mut w = World::new(1, 3);
    w.connect(0, 1);
    w.say(0, 1, "SUBSCRIBE c");
    w.heard(0, 1);
    w.say(0, 1, "GET k\r\nPING\r\nPING x");
    let refused = "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                   RESET are allowed in this context ";
    assert_eq!(w.heard(0, 1), format!("{refused}*2 $4 pong $0  *2 $4 pong $1 x "));
    w.say(0, 1, "RESET\r\nPING\r\nPUBLISH c x\r\nMULTI\r\nSUBSCRIBE c");
    let text = w.heard(0, 1);
    assert!(text.starts_with("+RESET +PONG :0 +OK -ERR"), "{text}");
}

#[test]
fn messages_of_one_publisher_are_in_order_and_each_comes_once() {
    for seed in 0..12 {
        let mut w = World::new(3, 100 + seed);
        (0..3).for_each(|n| w.connect(n, 1));
        (0..3).for_each(|n| w.connect(n, 2));
        w.loss = [0, 10, 25][seed as usize % 3];
        for n in 0..3 {
            w.say(n, 1, "SUBSCRIBE c");
            w.run_for(SEC / 2);
            assert!(w.heard(n, 1).starts_with("*3 $9 subscribe"));
        }
        let long = "y".repeat(3_000);
        for n in 0..150 {
            let by = w.rng.below(3) as usize;
            let text = if n % 30 == 0 { &long } else { "x" };
            w.say(by, 2, &format!("PUBLISH c {by}:{n}:{text}"));
            let some = w.rng.below(MS);
            w.run_for(some);
        }
        w.run_for(3 * SEC);
        for n in 0..3 {
            let answers = w.heard(n, 2);
            assert!(answers.split(' ').all(|a| a == ":3" || a.is_empty()), "{seed}: {answers}");
            let text = w.heard(n, 1);
            let messages: Vec<&str> = text.split(' ').filter(|t| t.contains(':')).collect();
            assert_eq!(messages.len(), 150, "seed {seed}, gateway {n}");
            for by in 0..3 {
                let own = messages.iter().filter(|m| m.starts_with(&format!("{by}:")));
                let numbers: Vec<u32> =
                    own.map(|m| m.split(':').nth(1).unwrap().parse().unwrap()).collect();
                assert!(numbers.is_sorted(), "seed {seed}: of one publisher {numbers:?}");
            }
        }
    }
}

/// Once SUBSCRIBE is answered, whatever is published anywhere later comes.
#[test]
fn a_subscription_that_is_answered_holds_at_all_gateways() {
    for seed in 0..40 {
        let mut w = World::new(2, 300 + seed);
        w.loss = 20;
        w.connect(0, 1);
        w.connect(1, 2);
        w.say(0, 1, "SUBSCRIBE c");
        let mut waited = 0;
        while w.received.is_empty() {
            w.run_for(MS / 20);
            waited += 1;
            assert!(waited < 40_000, "seed {seed}");
        }
        w.say(1, 2, "PUBLISH c x");
        w.run_for(SEC);
        assert_eq!(w.heard(1, 2), ":1 ", "seed {seed}");
        assert!(w.heard(0, 1).ends_with("message $1 c $1 x "), "seed {seed}");
    }
}

/// A gateway that is gone holds nobody up and hears again when it is back.
#[test]
fn gone_gateway_delays_nobody() {
    let mut w = World::new(2, 5);
    w.connect(0, 1);
    w.connect(1, 2);
    w.connect(1, 3);
    w.say(0, 1, "SUBSCRIBE c");
    w.heard(0, 1);
    w.cut = Some(0);
    w.say(1, 2, "PUBLISH c lost");
    assert_eq!(w.heard(1, 2), "", "it may only be slow");
    w.run_for(2 * SEC);
    assert_eq!(w.heard(1, 2), ":1 ");
    w.say(1, 2, "PUBLISH c to-nobody");
    assert_eq!(w.heard(1, 2), ":0 ");
    w.say(1, 3, "SUBSCRIBE d");
    assert!(w.heard(1, 3).starts_with("*3"), "who is gone is not waited for");
    w.cut = None;
    w.run_for(SEC);
    w.say(1, 2, "PUBLISH c again\r\nPUBSUB NUMSUB c d");
    assert_eq!(w.heard(1, 2), ":1 *4 $1 c :1 $1 d :1 ");
    assert_eq!(w.heard(0, 1), "*3 $7 message $1 c $5 again ");
    // Another process in its place: its clients are gone, and it learns who is there.
    w.gateways[0] = gateway(1, 2, 999);
    w.run_for(SEC);
    w.connect(0, 7);
    w.say(0, 7, "PUBLISH d new\r\nPUBSUB NUMSUB c d");
    assert_eq!(w.heard(0, 7), ":1 *4 $1 c :0 $1 d :1 ");
    assert_eq!(w.heard(1, 3), "*3 $7 message $1 d $3 new ");
}

#[test]
fn a_subscriber_who_does_not_read_is_disconnected() {
    let mut w = World::new(1, 6);
    w.connect(0, 99);
    w.connect(0, 2);
    w.say(0, 99, "SUBSCRIBE c");
    w.run_for(20 * MS);
    let long = "x".repeat(60_000);
    for n in 0..600 {
        w.say(0, 2, &format!("PUBLISH c {long}"));
        let heard = w.heard(0, 2);
        if heard == ":0 " {
            assert!(n > 500, "as much as Redis' limit may wait");
            assert_eq!(w.gateways[0].counters().subscribers_given_up, 1);
            return;
        }
    }
    panic!("it is still there");
}

/// What waits behind a message that other gateways have not heard of begins when they have, in its
/// own place.
#[test]
fn what_waits_behind_a_message_begins_in_its_own_place() {
    let mut w = World::new(1, 9);
    w.connect(0, 1);
    w.say(0, 1, "MULTI\r\nPUBLISH c x\r\nEXEC\r\nBLPOP k 0.01");
    assert!(w.heard(0, 1).starts_with("+OK +QUEUED *1 :0 "));
    w.run_for(8 * SEC);
    assert!(w.heard(0, 1).starts_with('-'), "there is no rack, and it says so");
}

#[test]
fn a_transaction_publishes_when_it_is_executed() {
    let mut w = World::new(2, 8);
    w.connect(0, 1);
    w.connect(1, 2);
    w.say(0, 1, "SUBSCRIBE c");
    w.heard(0, 1);
    w.say(1, 2, "MULTI\r\nPUBLISH c x\r\nPUBLISH d y\r\nPUBLISH c z");
    assert_eq!(w.heard(0, 1), "");
    w.say(1, 2, "EXEC\r\nPING");
    assert_eq!(w.heard(1, 2), "+OK +QUEUED +QUEUED +QUEUED *3 :1 :0 :1 +PONG ");
    assert_eq!(w.heard(0, 1), "*3 $7 message $1 c $1 x *3 $7 message $1 c $1 z ");
    w.say(1, 2, "MULTI\r\nPUBLISH c x\r\nDISCARD\r\nMULTI\r\nPUBLISH c x\r\nNOSUCH\r\nEXEC");
    assert!(w.heard(1, 2).contains("-EXECABORT"));
    assert_eq!(w.heard(0, 1), "", "nothing of what is not executed");
}

/// docs/internals/bugs.md, 18.51: a transaction without keys did not wait for what was sent before
/// it.
#[test]
fn bug_18_51_transaction_publishes_after_earlier_messages() {
    for before in ["SET k v", "MULTI\r\nGET k\r\nPUBLISH c first\r\nEXEC"] {
        let mut w = common::World::new(1);
        w.connect(2);
        assert!(common::say(&mut w, 2, &["SUBSCRIBE c"]).contains("subscribe"));
        w.store.mood = Mood::Dead;
        common::say(&mut w, 1, &[before, "MULTI", "PUBLISH c last", "EXEC"]);
        assert_eq!(common::heard(&mut w, 2), "", "behind {before}, which is not executed yet");
        w.store.mood = Mood::Serves;
        w.run_for(2 * SEC);
        let heard = common::heard(&mut w, 2);
        assert!(heard.ends_with("last\r\n"), "behind {before}: {heard}");
        assert_eq!(heard.contains("first"), before.contains("first"));
    }
}

/// docs/internals/bugs.md, 18.52: of two gateways one took the other for gone, and forgot its
/// subscribers; the other one had heard it all the time, and did not tell it of them again.
#[test]
fn bug_18_52_who_was_deaf_is_told_again_who_has_subscribed() {
    let mut w = World::new(2, 11);
    w.connect(0, 1);
    w.connect(1, 2);
    w.say(0, 1, "SUBSCRIBE c");
    w.heard(0, 1);
    w.deaf = Some(1);
    w.run_for(2 * SEC);
    w.say(1, 2, "PUBLISH c lost");
    assert_eq!(w.heard(1, 2), ":0 ");
    w.deaf = None;
    w.run_for(SEC / 2);
    w.say(1, 2, "PUBLISH c again");
    assert_eq!(w.heard(1, 2), ":1 ");
    assert_eq!(w.heard(0, 1), "*3 $7 message $1 c $5 again ");
}

/// docs/internals/bugs.md, 18.53: a late packet of a gateway's earlier process was taken for that
/// of another new one. What had come of the living one was forgotten, never sent again, and waited
/// for: no SUBSCRIBE and no PUBLISH was answered any more.
#[test]
fn bug_18_53_late_packet_of_an_earlier_process() {
    let mut w = World::new(2, 12);
    w.connect(0, 1);
    w.say(0, 1, "SUBSCRIBE old");
    let late = w.wire.iter().find(|(_, to, _)| *to == 1).map(|(.., bytes)| bytes.clone()).unwrap();
    w.run_for(20 * MS);
    w.gateways[0] = gateway(1, 2, 999);
    w.run_for(SEC / 2);
    w.connect(0, 7);
    w.connect(1, 2);
    w.say(0, 7, "SUBSCRIBE c");
    assert!(w.heard(0, 7).starts_with("*3"));
    w.wire.push((w.at, 1, late));
    w.run_for(20 * MS);
    w.say(1, 2, "PUBLISH c x\r\nPUBLISH old x");
    assert_eq!(w.heard(1, 2), ":1 :0 ");
    assert_eq!(w.heard(0, 7), "*3 $7 message $1 c $1 x ");
    w.say(0, 7, "SUBSCRIBE d");
    assert!(w.heard(0, 7).starts_with("*3"), "what goes on is acknowledged");
}

/// docs/internals/bugs.md, 18.54: a SUBSCRIBE that waited for a gateway was answered when another
/// process was heard in its place, which did not know of it.
#[test]
fn bug_18_54_subscription_is_answered_when_known() {
    for seed in 0..40 {
        let mut w = World::new(2, 400 + seed);
        w.loss = 20;
        w.connect(0, 1);
        w.cut = Some(1);
        w.say(0, 1, "SUBSCRIBE c");
        w.run_for(100 * MS);
        assert!(w.received.is_empty(), "seed {seed}: the other one may only be slow");
        w.gateways[1] = gateway(2, 2, 999);
        w.cut = None;
        while w.received.is_empty() {
            w.run_for(MS / 20);
        }
        w.connect(1, 2);
        w.say(1, 2, "PUBLISH c x");
        w.run_for(SEC);
        assert_eq!(w.heard(1, 2), ":1 ", "seed {seed}");
        assert!(w.heard(0, 1).ends_with("message $1 c $1 x "), "seed {seed}");
    }
}
