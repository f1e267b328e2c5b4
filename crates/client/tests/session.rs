//! The session's registration after evictions, and another switch, against packets by hand.
#![allow(clippy::unwrap_used)]

use concord_client::{Class, Client, ClientConfig, Request};
use concord_core::{Instant, MS, Machine, Now, ObjectId, RequestNumber, Rng};
use concord_wire::control::{Config, Membership, Message as _, Program, Protocol};
use concord_wire::{Addr, Flags, Op, Packet, Repr, Status};

const CLIENT: Addr = Addr { ip: 1, port: 1 };
const SWITCH: Addr = Addr { ip: 1, port: 2 };
const OTHER: Addr = Addr { ip: 1, port: 3 };
const CONTROLLER: Addr = Addr { ip: 1, port: 4 };

type Sent = Vec<(Addr, Vec<u8>)>;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: 0 }
}

fn client() -> Client {
    let config = ClientConfig::new(CLIENT, SWITCH);
    Client::new(ClientConfig { controller: Some(CONTROLLER), ..config }, Rng::new(1))
}

fn write(client: &mut Client, now: Now) -> Sent {
    let mut sent = Sent::new();
    let request = Request {
        class: Class::Write,
        obj_id: ObjectId(7),
        further: concord_wire::FurtherIds::NONE,
        flags: Flags::default(),
        after: None,
        command: b"command",
    };
    client.submit(now, request, &mut sent).unwrap();
    sent
}

fn reprs(sent: &Sent) -> Vec<Repr> {
    sent.iter().map(|(_, bytes)| Packet::parse(bytes).unwrap().repr()).collect()
}

fn answer(client: &mut Client, now: Now, to: &Repr, status: Status, body: &[u8]) -> Sent {
    let (mut bytes, mut sent) = (vec![], vec![]);
    Repr { op: Op::WriteReply, status, ..*to }.emit(body, &mut bytes);
    client.handle(now, SWITCH, &mut bytes, &mut sent);
    sent
}

/// A registration that is refused is tried with the position in the refusal.
#[test]
fn t16c_refused_registration_uses_the_given_position() {
    let mut client = client();
    let first = reprs(&write(&mut client, at(0)))[0];
    assert!(first.flags.has(Flags::REGISTER) && first.request == RequestNumber(0));
    let again = reprs(&answer(&mut client, at(1), &first, Status::Stale, &77u64.to_be_bytes()))[0];
    assert!(again.flags.has(Flags::REGISTER));
    assert_eq!((again.request, again.session), (RequestNumber(77), first.session));
    // Late duplicates, and refusals that say nothing new, change nothing.
    assert_eq!(answer(&mut client, at(2), &first, Status::Stale, &77u64.to_be_bytes()), []);
    assert_eq!(answer(&mut client, at(2), &first, Status::Stale, b""), []);
    let sent = reprs(&answer(&mut client, at(3), &again, Status::Ok, b""));
    assert!(client.is_registered());
    assert_eq!((sent.len(), sent[0].request, sent[0].flags), (1, RequestNumber(1), Flags(0)));
    assert_eq!(answer(&mut client, at(4), &first, Status::Stale, &78u64.to_be_bytes()), []);
    assert!(client.is_registered());
}

/// docs/internals/bugs.md, 18.65.
#[test]
fn bug_18_65_repeated_registration_answers_no_write() {
    let mut client = client();
    let first = reprs(&write(&mut client, at(0)))[0];
    let again = reprs(&answer(&mut client, at(1), &first, Status::Stale, &2u64.to_be_bytes()))[0];
    assert_eq!(again.request, RequestNumber(2));
    let sent = reprs(&answer(&mut client, at(2), &again, Status::Ok, b""));
    let second = reprs(&write(&mut client, at(3)))[0];
    assert_eq!((sent[0].request, second.request), (RequestNumber(1), RequestNumber(2)));
    // As the replicas answer it: by the flag.
    answer(&mut client, at(4), &again, Status::Ok, b"");
    answer(&mut client, at(4), &again, Status::Stale, &3u64.to_be_bytes());
    assert!(client.poll().is_none());
    answer(&mut client, at(5), &second, Status::Ok, b"+OK\r\n");
    assert_eq!(client.poll().unwrap().reply, b"+OK\r\n");
}

/// A request says what its reply is to be like and nothing else of what it was given.
#[test]
fn request_states_its_reply_form_only() {
    let mut client = client();
    for class in [Class::Read, Class::Write] {
        let register = reprs(&write(&mut client, at(0)))[0];
        answer(&mut client, at(0), &register, Status::Ok, b"");
        let of_reply = Flags::WILDCARD.with(Flags::RESP3).with(Flags::WAITS);
        let request = Request {
            class,
            obj_id: ObjectId(7),
            further: concord_wire::FurtherIds::NONE,
            flags: of_reply.with(Flags::INTERNAL).with(Flags::FAST).with(Flags::FORWARDED),
            after: None,
            command: b"command",
        };
        let mut sent = Sent::new();
        client.submit(at(1), request, &mut sent).unwrap();
        assert_eq!(reprs(&sent)[0].flags, of_reply, "{class:?}");
    }
}

fn run_until(client: &mut Client, ms: u64) -> Sent {
    let mut sent = Sent::new();
    while client.deadline().at <= at(ms).instant {
        let now = Now { instant: client.deadline().at, unix_ms: 0 };
        client.tick(now, &mut sent);
    }
    sent
}

fn tell(client: &mut Client, epoch: u32, switch: Addr) {
    let config = Config {
        group: concord_wire::GroupId(0),
        epoch,
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch,
        kind: Protocol::Chain.into(),
        program: Program::Harmonia,
        members: vec![],
        joining: vec![],
    };
    let mut bytes = vec![];
    Membership::Configure(config.into()).emit(&mut bytes);
    client.handle(at(0), SWITCH, &mut bytes, &mut Sent::new());
}

/// A client that gets no answer asks which switch is active.
#[test]
fn section_6_3_unanswered_client_asks_for_the_active_switch() {
    let mut client = client();
    let register = reprs(&write(&mut client, at(0)))[0];
    answer(&mut client, at(1), &register, Status::Ok, b"");
    let sent = run_until(&mut client, 1_000);
    let asked = sent.iter().filter(|(to, _)| *to == CONTROLLER).count();
    assert!((1..=10).contains(&asked), "{asked} questions in a second");
    assert!(sent.iter().all(|(to, _)| [SWITCH, CONTROLLER].contains(to)));
    tell(&mut client, 3, OTHER);
    tell(&mut client, 2, SWITCH);
    let sent = run_until(&mut client, 2_000);
    assert!(sent.iter().any(|(to, _)| *to == OTHER));
    assert!(sent.iter().all(|(to, _)| *to != SWITCH), "an old configuration changes nothing");
    let count = client.counters();
    assert_eq!((count.switch_changed, count.malformed), (1, 0));
}

/// A session that no write asks for yet is registered and tried again.
#[test]
fn idle_registration_is_retried() {
    let (mut client, mut sent) = (client(), Sent::new());
    client.open_session(at(0), &mut sent);
    let register = reprs(&sent)[0];
    assert!(register.flags.has(Flags::REGISTER));
    client.open_session(at(1), &mut sent);
    assert_eq!(sent.len(), 1, "it is under way");
    let again: Vec<_> =
        run_until(&mut client, 1_000).into_iter().filter(|(to, _)| *to == SWITCH).collect();
    assert!(reprs(&again).iter().all(|r| r.session == register.session));
    assert!((2..=20).contains(&again.len()), "{} attempts", again.len());
    answer(&mut client, at(1_000), &register, Status::Ok, b"");
    assert!(client.is_registered());
    let sent = run_until(&mut client, 5_000);
    assert_eq!(sent, [], "nothing waits");
}
