//! Golden vectors of FLAIR: for each packet the verdict, the packet out and the registers, in
//! `vectors/switch/flair*.txt`. Every rendering of the program must give the same.
//! `CONCORD_REGENERATE=1` rewrites them.
#![allow(clippy::unwrap_used)]

mod common;
mod flair_rig;

use std::fmt::Write as _;

use common::{CLIENT, SWITCH, golden, hex, replica};
use concord_core::{Epoch, Guards, Instant, MS, NodeId, ObjectId, Position, Rng};
use concord_pisa::Verdict;
use concord_switch::{Ingress, KeyGroupSettings, PortTable, SwitchProgram as _};
use concord_wire::control::Message as _;
use concord_wire::flair::{
    self, CaughtUp, Followers, GROUPS_OF_CHUNK, Heartbeat, SessionMessage, Sid,
};
use concord_wire::{Addr, Flags, Kind, Op, Repr, kind};
use flair_rig::{ALL, SID, SMALL, Switch, object, stable};

/// Runs a switch, and renders all that it does.
struct Scribe {
    switch: Switch,
    text: String,
    /// The objects whose groups are rendered.
    objects: Vec<ObjectId>,
}

impl Scribe {
    fn new(description: &str, settings: KeyGroupSettings, objects: &[ObjectId]) -> Scribe {
        let KeyGroupSettings { group_bits, counter_bits, run_bits, stepdown_ns, .. } = settings;
        let text = format!(
            "# {description}\n\nlayout: group_bits={group_bits} counter_bits={counter_bits} \
             run_bits={run_bits} stepdown_ns={stepdown_ns} avoid_leader={} load_awareness={}\n\
             tables: switch_id=7 switch={SWITCH} view=3 leader=1 replicas=1@{},2@{},3@{}\n",
            u8::from(settings.avoid_leader),
            u8::from(settings.load_awareness),
            replica(1),
            replica(2),
            replica(3)
        );
        let switch = Switch::new(settings, Guards::ALL);
        Scribe { switch, text, objects: objects.to_vec() }
    }

    /// Runs one packet through the pipeline; returns it if it leaves.
    fn step(&mut self, comment: &str, from: Addr, bytes: &[u8]) -> Option<Vec<u8>> {
        let (at, hexed) = (self.switch.now.instant.0, hex(bytes));
        writeln!(self.text, "\nstep: {comment}\nat: {at} from {from}\npacket: {hexed}").unwrap();
        let (mut packet, ports) = (bytes.to_vec(), PortTable::default());
        let ingress = Ingress::first(self.switch.now, from, &ports);
        let out = match self.switch.program.process(&ingress, &mut packet) {
            Verdict::Forward { to, size_bytes } => {
                packet.truncate(size_bytes);
                writeln!(self.text, "verdict: forward {to}\nout: {}", hex(&packet)).unwrap();
                Some(packet)
            }
            Verdict::Drop(why) => {
                writeln!(self.text, "verdict: drop {why:?}").unwrap();
                None
            }
            other => panic!("FLAIR does not do so: {other:?}"),
        };
        self.registers();
        out
    }

    /// Gives the control plane a message of the leader.
    fn tell(&mut self, comment: &str, message: &SessionMessage) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        writeln!(self.text, "\nstep: {comment}\ncontrol: {}", hex(&bytes)).unwrap();
        let injected = self.switch.program.control(self.switch.now, &bytes).unwrap();
        let injected = injected.map_or("nothing".into(), |mut i| hex(i.packet()));
        writeln!(self.text, "injects: {injected}").unwrap();
        self.registers();
    }

    fn registers(&mut self) {
        let program = &self.switch.program;
        let mut text = format!(
            "registers: session={} seq={} unstable={}",
            program.sid().0,
            program.gauge("sequence"),
            program.gauge("groups_unstable")
        );
        let groups = self.objects.iter().map(|id| (format!("{:08x}", id.0), program.group(*id)));
        for (name, (seq, group)) in groups.chain([("all".into(), program.all_keys())]) {
            let (is_stable, followers) = (u8::from(group.is_stable), group.followers.0);
            let log_idx = group.log_idx;
            write!(text, " {name}={seq}/{is_stable}/{log_idx}/{followers:03b}").unwrap();
        }
        self.text.push_str(&text);
        self.text.push('\n');
    }

    fn session(&mut self, sid: Sid) {
        let groups = self.switch.groups() as usize;
        let begin = self.switch.begin(sid, stable(10, ALL));
        self.tell("the leader begins a session", &begin);
        for chunk in 0..groups / GROUPS_OF_CHUNK {
            let message =
                self.switch.chunk(sid, chunk as u32, vec![stable(10, ALL); GROUPS_OF_CHUNK]);
            self.tell("it uploads a chunk of the key groups", &message);
        }
        self.switch.probe = self.switch.now.instant;
        let activate = self.switch.activate(sid);
        self.tell("the session is active", &activate);
    }

    fn ask(&mut self, comment: &str, hdr: Repr) -> Option<flair::Repr> {
        let mut bytes = Vec::new();
        hdr.emit(b"command", &mut bytes);
        let out = self.step(comment, CLIENT, &bytes)?;
        (kind(&out) == Ok(Kind::Flair)).then(|| flair::Packet::parse(&out).unwrap().repr())
    }

    fn answer(&mut self, comment: &str, node: u16, hdr: &flair::Repr, body: &[u8]) {
        let common = Repr { node: NodeId(node), epoch: Epoch(3), ..hdr.common };
        let mut bytes = Vec::new();
        flair::Repr { common, ..*hdr }.emit(body, &mut bytes);
        self.step(comment, replica(node), &bytes);
    }

    fn written(&mut self, comment: &str, write: &flair::Repr, log_idx: u64, cflwrs: u8) {
        let common = Repr { op: Op::WriteReply, ..write.common };
        let (log_idx, cflwrs) = (Position(log_idx), Followers(cflwrs));
        self.answer(comment, 1, &flair::Repr { common, log_idx, cflwrs, ..*write }, b"+OK\r\n");
    }

    fn answered(&mut self, comment: &str, node: u16, read: &flair::Repr, has_command: bool) {
        let common = Repr { op: Op::ReadReply, ..read.common };
        let (log_idx, echo) = (Position(0), if has_command { 7 } else { 0 });
        self.answer(comment, node, &flair::Repr { common, log_idx, echo, ..*read }, BODY);
    }

    fn beat(&mut self, comment: &str, sid: Sid, probe: Instant) {
        self.beat_of(comment, (sid, probe), CaughtUp::default());
    }

    fn beat_of(&mut self, comment: &str, (sid, probe): (Sid, Instant), caught_up: CaughtUp) {
        let (from, view, switch) = (NodeId(1), Epoch(3), self.switch.id);
        let (mut bytes, group) = (Vec::new(), concord_wire::GroupId(0));
        Heartbeat { group, from, view, sid, switch, probe, caught_up }.emit(&mut bytes);
        self.step(comment, replica(1), &bytes);
    }
}

const BODY: &[u8] = b"$-1\r\ncommand";

fn request(op: Op, obj_id: ObjectId) -> Repr {
    Repr { obj_id, ..common::request(op, 0) }
}

fn of_all(op: Op) -> Repr {
    Repr { flags: Flags::WILDCARD, ..request(op, ObjectId(0)) }
}

fn basic() -> String {
    let (a, b) = (object(5, 0), object(9, 3));
    let settings = KeyGroupSettings { avoid_leader: true, ..SMALL };
    let mut s = Scribe::new("FLAIR, Figure 17: a session from its start on.", settings, &[a, b]);
    s.ask("before there is a session nothing passes (T28)", request(Op::Read, a));
    s.session(SID);
    let read =
        s.ask("a read of a stable group goes to one of three", request(Op::Read, b)).unwrap();
    s.answered("its reply is good", 2, &read, true);
    let write =
        s.ask("a write is numbered, and its group unstable", request(Op::Write, a)).unwrap();
    s.ask("a read of that goes to the leader", request(Op::Read, a));
    s.ask("another group's spares the leader while a write is pending (§4.4.2)", {
        request(Op::Read, b)
    });
    s.ask("a retry may go to the leader (T21)", Repr { attempt: 1, ..request(Op::Read, b) });
    let again = s.ask("a second write of the group", request(Op::Write, a)).unwrap();
    s.written("the reply to the first leaves it unstable", &write, 11, 0b111);
    s.written("that to the second makes it stable, at two", &again, 12, 0b011);
    let held = s.ask("who does not hold it gets no read", request(Op::Read, a)).unwrap();
    let third = s.ask("a write while a read is under way", request(Op::Write, a)).unwrap();
    s.answered("its reply is stale, and asked of the leader again (T30)", 2, &held, true);
    s.answered("without the command its client asks again", 2, &held, false);
    s.answered("the leader's is good", 1, &held, true);
    s.written("the reply to the third", &third, 13, 0b111);
    let all = s.ask("a write of all keys (T13)", of_all(Op::Write)).unwrap();
    s.ask("all reads go to the leader meanwhile", request(Op::Read, b));
    s.ask("a read of all keys too", of_all(Op::Read));
    s.written("its reply: position and followers are both groups'", &all, 20, 0b101);
    s.ask("from now on at position 20, of those of both", request(Op::Read, b));
    let hello = Repr { flags: Flags::REGISTER, ..request(Op::Write, a) };
    s.ask("a registration has a number and concerns no group", hello);
    s.written(
        "what was never given out",
        &flair::Repr { common: Repr { seq: SID.number(99), ..third.common }, ..third },
        21,
        0b111,
    );
    s.step("a reply that is not FLAIR's", replica(2), &{
        let mut bytes = Vec::new();
        request(Op::ReadReply, a).emit(b"$-1\r\n", &mut bytes);
        bytes
    });
    let probe = s.switch.now.instant;
    s.switch.wait(100 * MS);
    s.beat("a heartbeat echoes a probe, and the switch answers with its clock", SID, probe);
    s.beat("one of another session", Sid(6), probe);
    s.switch.wait(60 * MS);
    s.ask("the probe is 160 ms old: nothing passes (T26)", request(Op::Read, b));
    let probe = s.switch.now.instant;
    s.beat("a heartbeat that echoes a younger one", SID, probe);
    s.ask("as before", request(Op::Read, b));
    let probe = s.switch.now.instant;
    let caught_up = |s: &mut Scribe, comment: &str, log_idx, followers| {
        let (log_idx, followers) = (Position(log_idx), Followers(followers));
        s.beat_of(comment, (SID, probe), CaughtUp { log_idx, followers });
        for n in 1..=8 {
            let request_of = concord_core::RequestNumber(n);
            s.ask("a read", Repr { request: request_of, ..request(Op::Read, b) });
        }
    };
    caught_up(&mut s, "all have the log up to 99", 99, 0b111);
    caught_up(&mut s, "a heartbeat that was overtaken", 98, 0b001);
    caught_up(&mut s, "the third has lost it", 99, 0b011);
    s.session(Sid(8));
    s.written("a reply of the session before", &third, 30, 0b111);
    s.text
}

fn narrow() -> String {
    let a = object(5, 0);
    let settings = KeyGroupSettings { counter_bits: 2, ..SMALL };
    let mut s = Scribe::new("Trap T20: a session's numbers end.", settings, &[a]);
    s.session(SID);
    for comment in ["number 1", "number 2", "the last", "there are no more"] {
        s.ask(comment, request(Op::Write, a));
    }
    s.ask("reads go on", request(Op::Read, a));
    s.text
}

fn weighed() -> String {
    let a = object(5, 0);
    let settings = KeyGroupSettings { load_awareness: true, ..SMALL };
    let mut s =
        Scribe::new("Load awareness (§4.4.2): reads are shared by weights.", settings, &[a]);
    s.session(SID);
    let mut tell = |comment: &str, sid, round, weights| {
        let message = s.switch.weights(sid, round, weights);
        s.tell(comment, &message);
        for n in 1..=24 {
            let request_of = concord_core::RequestNumber(n);
            s.ask("a read", Repr { request: request_of, ..request(Op::Read, a) });
        }
        s.ask("a retry goes to another one (T21)", Repr { attempt: 1, ..request(Op::Read, a) });
    };
    tell("half of all reads for the first replica", SID, 2, [200, 100, 100, 0, 0, 0, 0, 0]);
    tell("weights that come late change nothing", SID, 1, [1, 1, 800, 0, 0, 0, 0, 0]);
    tell("nor do those of another session", Sid(6), 3, [1, 1, 800, 0, 0, 0, 0, 0]);
    s.text
}

/// Writes, reads, replies and heartbeats in any order.
fn random() -> String {
    let objects = [object(1, 0), object(1, 7), object(2, 0), object(63, 1)];
    let settings = KeyGroupSettings { avoid_leader: true, run_bits: 1, ..SMALL };
    let mut s = Scribe::new("Two hundred packets, drawn.", settings, &objects);
    let rng = &mut Rng::new(20);
    s.session(SID);
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for n in 0..200u64 {
        s.switch.wait(rng.below(4 * MS));
        let object = objects[rng.below(4) as usize];
        let hdr = |op| Repr {
            request: concord_core::RequestNumber(n + 1),
            attempt: attempt(n),
            ..request(op, object)
        };
        match rng.below(10) {
            0 | 1 => writes.extend(s.ask("a write", hdr(Op::Write))),
            2 => writes.extend(
                s.ask("a write of all keys", Repr { flags: Flags::WILDCARD, ..hdr(Op::Write) }),
            ),
            3..=5 => reads.extend(s.ask("a read", hdr(Op::Read))),
            6 | 7 if !writes.is_empty() => {
                let write = writes.swap_remove(rng.below(writes.len() as u64) as usize);
                s.written("a write's reply", &write, 11 + n, rng.below(8) as u8);
            }
            8 if !reads.is_empty() => {
                let read = reads.swap_remove(rng.below(reads.len() as u64) as usize);
                s.answered("a read's reply", 1 + rng.below(3) as u16, &read, rng.chance(4, 5));
            }
            _ => {
                let (probe, followers) = (s.switch.now.instant, Followers(rng.below(8) as u8));
                let log_idx = Position(11 + rng.below(n + 1));
                s.beat_of("a heartbeat", (SID, probe), CaughtUp { log_idx, followers });
            }
        }
    }
    s.text
}

/// Every seventh request is a second attempt.
fn attempt(n: u64) -> u16 {
    n.is_multiple_of(7).into()
}

#[test]
fn what_the_program_does_is_as_it_is_committed() {
    golden("flair", &basic());
    golden("flair_numbers", &narrow());
    golden("flair_random", &random());
    golden("flair_weights", &weighed());
}
