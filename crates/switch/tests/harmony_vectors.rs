//! Golden vectors of Harmony: for each pass the packet in, the verdict, the packets out and the
//! registers, in `vectors/switch/harmony.txt`. Every rendering of the program must give the same.
//! `CONCORD_REGENERATE=1` rewrites them.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use common::{SWITCH, golden, hex, replica};
use concord_core::{Guards, Instant, MS, Now, Rng};
use concord_pisa::Verdict;
use concord_switch::harmony::{Choice, Route};
use concord_switch::{Harmony, Ingress, LinkTables, LinksLayout, PortTable, SwitchProgram as _};
use concord_wire::harmony::{Hop, Op, Path, Reason, Repr};

/// A comment, the time in us, the port (none for the control plane), and the packet.
type Step = (String, u64, Option<u8>, Repr);

const LAYOUT: LinksLayout =
    LinksLayout { hosts: 4, slots: 2, links: 4, choice: Choice::Fifo, life_ns: MS };

/// A ToR switch: host 0 at port 0, two uplinks of one virtual link each.
fn tables() -> LinkTables {
    LinkTables {
        switch: 7,
        own: SWITCH,
        neighbours: [1, 2, 3].map(replica).to_vec(),
        links: vec![2, 1, 1],
        uplinks: vec![1, 2],
        routes: vec![Route::Down(0), Route::Up, Route::Up, Route::Up],
    }
}

fn registers(program: &Harmony) -> String {
    let mut text = format!("free={:?}", program.free());
    for held in program.reservations() {
        let (receiver, slot, grant) = (held.receiver, held.slot, held.grant);
        write!(text, " {receiver}.{slot}#{grant}={:?}", held.link).unwrap();
    }
    text
}

fn render(description: &str, steps: &[Step]) -> String {
    let mut program = Harmony::new(LAYOUT, SWITCH, Guards::ALL).unwrap();
    program.fill(Instant(0), tables(), false).unwrap();
    let ports = PortTable::default();
    let mut text = format!("# {description}\n\nlayout: hosts=4 slots=2 links=4 life_us=1000\n");
    let [host, left, right] = [1, 2, 3].map(replica);
    writeln!(text, "tables: switch=7 own={SWITCH} ports={host}*2 {left}*1 {right}*1").unwrap();
    writeln!(text, "routes: 0 down, 1 to 3 up").unwrap();
    for (comment, us, port, packet) in steps {
        let sender = port.map_or(SWITCH, |port| replica(u16::from(port) + 1));
        let data: &[u8] = if packet.op == Op::Data { b"data" } else { &[] };
        let mut bytes = packet.packet(data);
        writeln!(text, "\nstep: {comment}\nus: {us}\nsender: {sender}").unwrap();
        writeln!(text, "packet: {}", hex(&bytes)).unwrap();
        let now = Now { instant: Instant(us * 1_000), unix_ms: 0 };
        let mut ingress = Ingress::first(now, sender, &ports);
        loop {
            let mut round = None;
            match program.process(&ingress, &mut bytes) {
                Verdict::Forward { to, size_bytes } => {
                    writeln!(text, "verdict: forward {to}\nout: {}", hex(&bytes[..size_bytes]))
                        .unwrap();
                }
                Verdict::Recirculate { metadata, size_bytes } => {
                    let [what, word] = metadata.0;
                    bytes.truncate(size_bytes);
                    writeln!(text, "verdict: recirculate\nmetadata: {what:x} {word:x}").unwrap();
                    round = Some(metadata);
                }
                Verdict::Drop(why) => writeln!(text, "verdict: drop {why:?}").unwrap(),
                other => panic!("Harmony does not do so: {other:?}"),
            }
            writeln!(text, "registers: {}", registers(&program)).unwrap();
            let Some(metadata) = round else { break };
            ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
        }
    }
    text
}

fn packet(op: Op, grant: u32, slot: u8) -> Repr {
    let packet = Repr::new(op, 2, 0, u64::from(grant).max(1));
    Repr { receiver_incarnation: 1, grant, slot, span: 976, ..packet }
}

/// A packet on its way back through this switch, which reserved that virtual link.
fn back(op: Op, grant: u32, slot: u8, link: u16) -> Repr {
    let mut path = Path::default();
    assert!(path.push(Hop { switch: 7, back: 0, link }));
    Repr { path, ahead: 1, span: 0, ..packet(op, grant, slot) }
}

fn scenario() -> Vec<Step> {
    let step = |comment: &str, us, port: u8, packet| (comment.to_string(), us, Some(port), packet);
    let other = |packet: Repr| Repr { receiver: 3, ..packet };
    let request = Repr { receiver_incarnation: 0, span: 0, bytes: 99, ..packet(Op::Request, 0, 0) };
    let told = Repr { to_sender: true, span: 0, ..packet(Op::Complete, 0, 0) };
    let reject = Repr { reason: Reason::NoSlot, ..back(Op::Reject, 2, 0, 2) };
    let of_other = Repr { path: Path::default(), ahead: 0, ..back(Op::Complete, 1, 0, 2) };
    let sweep = |comment: &str, us| (comment.to_string(), us, None, packet(Op::Sweep, 0, 1));
    vec![
        step("a request, by address", 0, 1, request),
        step("a reservation", 1, 0, packet(Op::Rsvp, 1, 0)),
        step("it comes again", 2, 0, packet(Op::Rsvp, 1, 0)),
        step("the other slot's", 3, 0, packet(Op::Rsvp, 1, 1)),
        step("no virtual link is left: another pass", 4, 1, other(packet(Op::Rsvp, 1, 0))),
        step("data of the first", 5, 1, back(Op::Data, 1, 0, 2)),
        step("its complete", 6, 1, back(Op::Complete, 1, 0, 2)),
        step("it comes again", 7, 1, back(Op::Complete, 1, 0, 2)),
        step("data after that", 8, 1, back(Op::Data, 1, 0, 2)),
        step("an outcome for the sender, by address", 9, 0, told),
        step("the slot's next grant", 10, 0, packet(Op::Rsvp, 2, 0)),
        step("the sender has no slot", 11, 1, reject),
        step("a grant whose slot still holds one", 12, 0, packet(Op::Rsvp, 2, 1)),
        step("no path", 13, 1, of_other),
        sweep("a sweep, too early", 900),
        sweep("a sweep after its time", 1_100),
        step("a complete after that", 1_101, 1, back(Op::Complete, 1, 1, 3)),
        step("a sweep that is not the switch's own", 1_102, 1, packet(Op::Sweep, 0, 1)),
    ]
}

/// Packets drawn from a seed.
fn random() -> Vec<Step> {
    let mut rng = Rng::new(34);
    let (mut us, mut newest) = (0, 1);
    let draw = |index: usize| {
        us += rng.below(200);
        newest += u32::from(rng.chance(1, 3));
        let (grant, slot) =
            (newest - rng.below(2).min(u64::from(newest - 1)) as u32, rng.below(2) as u8);
        let (receiver, port) = if rng.chance(1, 2) { (0, 0) } else { (3, 1) };
        let packet = match rng.below(8) {
            0..4 => packet(Op::Rsvp, grant, slot),
            4 => back(Op::Data, grant, slot, rng.between(2, 3) as u16),
            5 => back(Op::Reject, grant, slot, rng.between(2, 3) as u16),
            6 => back(Op::Complete, grant, slot, rng.between(2, 3) as u16),
            _ => return (format!("{index}"), us, None, packet(Op::Sweep, 0, slot)),
        };
        (format!("{index}"), us, Some(port), Repr { receiver, ..packet })
    };
    (0..200).map(draw).collect()
}

#[test]
fn golden_vectors_of_harmony() {
    golden("harmony", &render("Harmony: a ToR with two uplinks", &scenario()));
    golden("harmony_random", &render("Harmony: random packets at a ToR", &random()));
}
