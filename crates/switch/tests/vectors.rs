//! Golden vectors: for each packet the verdict, the packet out and the registers, in
//! `vectors/switch/*.txt`. Every rendering of the program (Rust, XDP, P4) must give the same.
//! `CONCORD_REGENERATE=1` rewrites them; a changed vector is a change of the program, to be
//! reviewed as such.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use common::*;
use concord_core::{
    Epoch, Guards, NodeId, Now, ObjectId, RequestNumber, Rng, Seq, SessionId, SwitchId,
};
use concord_pisa::{Copies, Metadata, Verdict};
use concord_switch::craq::Craq;
use concord_switch::forward::Forward;
use concord_switch::nopaxos::NoPaxos;
use concord_switch::nopaxos_harmonia::NoPaxosHarmonia;
use concord_switch::{
    DropReason, Harmonia, Ingress, Layout, Load, PortTable, Routes, SwitchProgram,
};
use concord_wire::control::{Config, Program, Protocol};
use concord_wire::header::at;
use concord_wire::nopaxos::Stamp;
use concord_wire::{Addr, Flags, FurtherIds, Kind, Op, Repr, WireError, kind};

/// A scenario: a switch, and the packets that reach it one after another.
struct Scenario {
    name: &'static str,
    description: &'static str,
    layout: Layout,
    config: Config,
    steps: Vec<(String, Vec<u8>)>,
}

impl Scenario {
    fn new(name: &'static str, description: &'static str, layout: Layout) -> Scenario {
        Scenario { name, description, layout, config: config(1, OWN.0), steps: vec![] }
    }

    fn step(mut self, comment: &str, hdr: Repr) -> Self {
        let mut bytes = Vec::new();
        hdr.emit(b"body", &mut bytes);
        self.steps.push((comment.to_string(), bytes));
        self
    }

    fn raw(mut self, comment: &str, bytes: Vec<u8>) -> Self {
        self.steps.push((comment.to_string(), bytes));
        self
    }

    /// Runs the scenario, and renders all of it.
    fn render(&self) -> String {
        match self.config.program {
            Program::Forward => self.render_of(|_: &Forward| NO_REGISTERS.into()),
            Program::Craq => self.render_of(|_: &Craq| NO_REGISTERS.into()),
            Program::Harmonia => self.render_of(registers),
            Program::NoPaxos => {
                self.render_of(|p: &NoPaxos| format!("seq={}", p.gauge("sequence")))
            }
            Program::NoPaxosHarmonia => {
                self.render_of(|p: &NoPaxosHarmonia| registers(p.harmonia()))
            }
            Program::Falcon => panic!("its vectors are in falcon_vectors.rs"),
            Program::Flair => panic!("its vectors are in flair_vectors.rs"),
            Program::NetCraq => panic!("its vectors are in netcraq_vectors.rs"),
            Program::Concordia => panic!("its vectors are in concordia_vectors.rs"),
            Program::Harmony => panic!("its vectors are in harmony_vectors.rs"),
        }
    }

    fn render_of<P>(&self, registers: impl Fn(&P) -> String) -> String
    where
        P: Load + SwitchProgram<Reason = DropReason>,
    {
        let mut program: P = load(self.layout, Guards::ALL, &self.config);
        let described = render_config(self.layout, &self.config);
        let mut text = format!("# {}\n\n{described}", self.description);
        for (comment, bytes) in &self.steps {
            let (mut packet, ports) = (bytes.clone(), PortTable::default());
            if kind(bytes) == Ok(Kind::NoPaxos) {
                let injected = program.control(Now::default(), bytes).unwrap();
                let injected = injected.map_or("nothing".into(), |mut i| hex(i.packet()));
                writeln!(text, "\nstep: {comment}\ncontrol: {}", hex(bytes)).unwrap();
                writeln!(text, "injects: {injected}").unwrap();
                continue;
            }
            writeln!(text, "\nstep: {comment}\npacket: {}", hex(bytes)).unwrap();
            let mut ingress = Ingress::first(Now::default(), CLIENT, &ports);
            loop {
                let verdict = program.process(&ingress, &mut packet);
                let comes_round = matches!(verdict, Verdict::Recirculate { .. });
                match verdict {
                    Verdict::Forward { to, size_bytes } => {
                        writeln!(text, "verdict: forward {to}").unwrap();
                        writeln!(text, "out: {}", hex(&packet[..size_bytes])).unwrap();
                    }
                    Verdict::Drop(why) => writeln!(text, "verdict: drop {}", name(why)).unwrap(),
                    Verdict::Recirculate { metadata, size_bytes } => {
                        let Metadata([first, second]) = metadata;
                        writeln!(text, "verdict: recirculate {first:x} {second:x}").unwrap();
                        writeln!(text, "out: {}", hex(&packet[..size_bytes])).unwrap();
                        ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
                    }
                    Verdict::Multicast { to: Copies::Group(group), size_bytes } => {
                        let members = (0..).map_while(|index| program.member(group, index));
                        let members: Vec<_> = members.map(|addr| addr.to_string()).collect();
                        writeln!(text, "verdict: multicast {group} {}", members.join(",")).unwrap();
                        writeln!(text, "out: {}", hex(&packet[..size_bytes])).unwrap();
                    }
                    other => panic!("no program for replicas does so: {other:?}"),
                }
                writeln!(text, "registers: {}", registers(&program)).unwrap();
                if !comes_round {
                    break;
                }
            }
        }
        text
    }
}

/// The registers of a program that has none, as the vectors show them.
const NO_REGISTERS: &str = "seq=0 last_committed=0 wildcard_seq=0 occupied=0 dirty_set=";

fn render_config(layout: Layout, config: &Config) -> String {
    let Layout { table_stages, slots, counter_bits, run_bits } = layout;
    let Routes { switch_id, switch, head, reader, replicas, .. } = Routes::of(config).unwrap();
    let replicas: Vec<_> = replicas.iter().map(|(n, a)| format!("{n}@{a}")).collect();
    let spread = if config.program == Program::Craq { "spread_reads=1 " } else { "" };
    format!(
        "layout: table_stages={table_stages} slots={slots} counter_bits={counter_bits} \
         run_bits={run_bits}\n\
         tables: switch_id={switch_id} switch={switch} accelerated={} head={head} reader={reader} \
         {spread}replicas={}\n",
        u8::from(config.program.has_dirty_set()),
        replicas.join(",")
    )
}

/// Cells of the dirty set as `stage/index/object id:counter`, object ids in hex.
fn registers(p: &Harmonia) -> String {
    let mut text = format!(
        "seq={} last_committed={} wildcard_seq={} occupied={} dirty_set=",
        p.view().seq,
        p.view().last_committed,
        p.view().wildcard_seq,
        p.view().occupied
    );
    let cells = p.entries().map(|(stage, at, obj_id, c)| format!("{stage}/{at}/{obj_id:08x}:{c}"));
    text.push_str(&cells.collect::<Vec<_>>().join(","));
    text
}

fn name(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Malformed(WireError::Truncated) => "malformed_truncated",
        DropReason::Malformed(WireError::Magic) => "malformed_magic",
        DropReason::Malformed(WireError::Version) => "malformed_version",
        DropReason::Malformed(WireError::Op) => "malformed_op",
        DropReason::Malformed(WireError::Field) => "malformed_field",
        DropReason::Unconfigured => "unconfigured",
        DropReason::TableFull => "table_full",
        DropReason::SeqExhausted => "seq_exhausted",
        DropReason::NoSuchNode => "no_such_node",
        DropReason::NoClient => "no_client",
        DropReason::Unstamped => "unstamped",
        DropReason::Outlived => "outlived",
        DropReason::Consumed => "consumed",
    }
}

fn w(obj_id: u32) -> Repr {
    request(Op::Write, obj_id)
}

fn r(obj_id: u32) -> Repr {
    request(Op::Read, obj_id)
}

fn done(obj_id: u32, counter: u32) -> Repr {
    Repr { seq: Seq::new(OWN, counter), ..request(Op::WriteCompletion, obj_id) }
}

fn flagged(flags: Flags, hdr: Repr) -> Repr {
    Repr { flags: hdr.flags.with(flags), ..hdr }
}

/// The same request with eight objects.
fn several(hdr: Repr) -> Repr {
    let ids: Vec<ObjectId> = (1..8).map(|i| ObjectId(hdr.obj_id.0 + i)).collect();
    Repr { further: FurtherIds::new(&ids).unwrap(), ..hdr }
}

fn swept(index: u32) -> Repr {
    Repr { index, ..Repr::new(Op::Sweep) }
}

fn algorithm_1() -> Scenario {
    let reply = flagged(Flags::COMPLETION, Repr { op: Op::WriteReply, ..done(6, 3) });
    Scenario::new("algorithm_1", "Harmonia, Algorithm 1, and §6.3: the basic run.", layout(3, 16))
        .step("a read before the first completion is slow (§6.3)", r(5))
        .step("a write is numbered 1", w(5))
        .step("another object, 2", w(6))
        .step("the same object again, 3 takes over the cell of 2", w(6))
        .step("completion 1: the object is clean, the point is 1", done(5, 1))
        .step("a read of what is clean is fast", flagged(Flags::RESP3, r(5)))
        .step("a read of what is in flight is slow, and loses a claim to be fast", {
            flagged(Flags::FAST, r(6))
        })
        .step("completion 2 is not that of the object's last write", done(6, 2))
        .step("so that it is still dirty", r(6))
        .step("completion 3 rides on the reply, which is forwarded", reply)
        .step("clean, and a retry goes to another replica (T21)", Repr { attempt: 1, ..r(6) })
        .step("an old completion does not take the point back", done(5, 1))
        .step("a read of more than one object is slow", flagged(Flags::WILDCARD, r(5)))
        .step("also if it names them", several(r(5)))
}

fn two_stages() -> Scenario {
    let b = colliding(1, 1, 16, 1)[0];
    let description = "Harmonia §6.2: a write can sit in two stages at once. Lookup is any stage, \
                       deletion compares each.";
    Scenario::new("two_stages", description, layout(2, 16))
        .step("object b takes the cell in stage 0", w(b))
        .step("object 1 has the same index there: stage 1", w(1))
        .step("b completes and frees its cell", done(b, 1))
        .step("a read finds object 1 in stage 1", r(1))
        .step("its next write takes stage 0: it sits in both", w(1))
        .step("completion 2 leaves number 3 alone", done(1, 2))
        .step("dirty", r(1))
        .step("completion 3", done(1, 3))
        .step("clean", r(1))
}

fn full_table() -> Scenario {
    let o = colliding(1, 2, 16, 2);
    let description =
        "Harmonia §7.2: a write without a slot is dropped. §6.2: strays give way. T18: a no-op.";
    Scenario::new("full_table", description, layout(2, 16))
        .step("the first object", w(o[0]))
        .step("the second", w(o[1]))
        .step("object 1 shares both indices: dropped, its number 3 is burnt", w(1))
        .step("an object's own cell is always good for it", w(o[0]))
        .step("a no-op is numbered and takes no slot", flagged(Flags::NOOP, w(1)))
        .step("its completion turns all before it into strays", done(0, 5))
        .step("object 1 takes over a stray's cell", w(1))
        .step("a read removes its own stray, and is fast", r(o[1]))
        .step("dirty", r(1))
}

fn sweep_scenario() -> Scenario {
    let p = &mut program(layout(2, 16));
    write(p, 1).unwrap();
    let at = p.entries().next().unwrap().1 as u32;
    let description = "Trap T19: the sweep is a packet, clears what is stray, and nothing else.";
    Scenario::new("sweep", description, layout(2, 16))
        .step("a write that gets lost", w(1))
        .step("a no-op", flagged(Flags::NOOP, w(0)))
        .step("before its completion, a sweep clears nothing", swept(at))
        .step("the completion: number 1 is stray", done(0, 2))
        .step("the slot is refreshed before the sweep comes", w(1))
        .step("nothing to clear", swept(at))
        .step("the point passes number 3 without its completion", flagged(Flags::NOOP, w(0)))
        .step("number 3 is stray", done(0, 4))
        .step("an index beyond the table is cut to its width", swept(at + 16))
}

fn wildcard() -> Scenario {
    let description = "Trap T13: a write of all keys makes every read slow until its completion.";
    Scenario::new("wildcard", description, layout(3, 16))
        .step("a first write", w(1))
        .step("and its completion", done(1, 1))
        .step("a write of all keys takes no slot", flagged(Flags::WILDCARD, w(0)))
        .step("every read is slow", r(9))
        .step("a write meanwhile", w(5))
        .step("completion of the write of all keys", done(0, 2))
        .step("fast again", r(9))
        .step("but not what is in flight", r(5))
}

fn several_objects() -> Scenario {
    let description = "Each object of a request takes a pass of its own; the packet comes round until \
                       the last one.";
    let two =
        |hdr: Repr, other| Repr { further: FurtherIds::new(&[ObjectId(other)]).unwrap(), ..hdr };
    let o = colliding(1, 2, 16, 2);
    Scenario::new("several_objects", description, layout(2, 16))
        .step("a first write", w(1))
        .step("and its completion", done(1, 1))
        .step("a write of eight objects has one number, and a slot for each", several(w(0x20)))
        .step("the last of them is dirty", r(0x27))
        .step("a read of several ends where one is dirty", several(r(0x19)))
        .step("its completion names the first", done(0x20, 2))
        .step("a read of several is fast if all are clean", several(r(0x20)))
        .step("an object", w(o[0]))
        .step("one that shares both indices with it", w(o[1]))
        .step("a write of several is dropped if one finds no slot", two(w(0x40), 1))
        .step("and what was entered is dirty", r(0x40))
        .step("a no-op", flagged(Flags::NOOP, w(0)))
        .step("until its number is passed", done(0, 6))
        .step("clean", r(0x40))
        .step("all keys are all keys, whatever is named", flagged(Flags::WILDCARD, several(w(6))))
        .step("one object and another", two(w(0x50), 0x51))
}

fn ids_and_widths() -> Scenario {
    let of = |id, counter| Repr { seq: Seq::new(SwitchId(id), counter), ..done(0, 0) };
    let narrow = Layout { counter_bits: 2, ..layout(1, 1) };
    let description = "Trap T20: object id 0 is a key like any, the counter has an end. §6.3: \
                       another switch's completion says nothing.";
    Scenario::new("ids_and_widths", description, narrow)
        .step("object 0 is tracked", w(0))
        .step("so that its cell is not empty", w(1))
        .step("a completion of the switch before", of(OWN.0 - 1, 1))
        .step("a completion of the switch after", of(OWN.0 + 1, 1))
        .step("a number that was never given out", of(OWN.0, 3))
        .step("no number", of(OWN.0, 0))
        .step("the real one", of(OWN.0, 1))
        .step("the last number of two bits", w(u32::MAX))
        .step("there are no more", w(2))
        .step("not for a no-op either", flagged(Flags::NOOP, w(2)))
        .step("reads go on", r(2))
}

fn other_packets() -> Scenario {
    let mut padded = Vec::new();
    r(5).emit(b"body", &mut padded);
    let (cut, mut op, mut magic) =
        (padded[..padded.len() - 1].to_vec(), padded.clone(), padded.clone());
    padded.extend_from_slice(&[0; 9]);
    op[at::OP] = 15;
    magic[0] = 0;
    let pull = |node| Repr { node: NodeId(node), ..request(Op::Pull, 5) };
    let reply = |client| Repr { client, ..request(Op::ReadReply, 5) };
    Scenario::new("other_packets", "What is only forwarded, and what is dropped.", layout(1, 16))
        .step("a body goes to the head", request(Op::WRest, 5))
        .step("its acknowledgement to the client", request(Op::WRestAck, 5))
        .step("a reply to the client", reply(CLIENT))
        .step("a fragment to the client", request(Op::Fragment, 5))
        .step("a reply without the flag completes nothing", request(Op::WriteReply, 5))
        .step("a request for fragments goes to the node it names", pull(2))
        .step("no such node", pull(9))
        .step("nobody to reply to", reply(Addr::default()))
        .step("a reply to the switch itself ends here", reply(SWITCH))
        .raw("padding is cut off", padded)
        .raw("shorter than it says", cut)
        .raw("an unknown operation", op)
        .raw("not a Concord packet", magic)
}

fn unaided() -> Scenario {
    let off = Config { program: Program::Forward, ..config(1, OWN.0) };
    let reply = flagged(Flags::COMPLETION, request(Op::WriteReply, 5));
    let description = "Without the switch's help: writes to the head, reads to the tail.";
    let plain = Scenario { config: off, ..Scenario::new("unaided", description, layout(1, 16)) };
    plain
        .step("a write gets no number, and loses one", Repr { seq: Seq::new(OWN, 3), ..w(5) })
        .step("a read is slow", r(5))
        .step("a completion is only forwarded", reply)
}

fn craq() -> Scenario {
    let config = Config { program: Program::Craq, kind: Protocol::Craq.into(), ..config(1, OWN.0) };
    let again = |attempt| Repr { attempt, ..r(5) };
    let description = "CRAQ, without the switch's help: any replica takes reads.";
    let plain = Scenario { config, ..Scenario::new("craq", description, layout(1, 16)) };
    plain
        .step("a write goes to the head", w(5))
        .step("a read goes to the replica that its hash names", flagged(Flags::FAST, r(5)))
        .step("its retry to the next one (T21)", again(1))
        .step("and the next", again(2))
        .step(
            "a read of all keys to the tail, whatever its attempt",
            flagged(Flags::WILDCARD, again(3)),
        )
}

/// A leader's stamp with the log's time, from which NOPaxos' writes get theirs.
fn stamp(view: u32, now_ms: u64, memory_full: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    Stamp { view: Epoch(view), from: NodeId(1), now_ms, memory_full, disk_full: false }
        .emit(&mut bytes);
    bytes
}

fn sequencer(name: &'static str, description: &'static str, program: Program) -> Scenario {
    let config = Config { kind: Protocol::NoPaxos.into(), program, ..config(1, OWN.0) };
    Scenario { config, ..Scenario::new(name, description, layout(2, 16)) }
}

fn nopaxos() -> Scenario {
    let description =
        "NOPaxos: every write gets the next number and the log's time, and goes to all.";
    sequencer("nopaxos", description, Program::NoPaxos)
        .step("before the log's time is known a write is dropped", w(5))
        .raw("a leader's word; a no-op follows", stamp(2, 1_000, false))
        .step("the first number", w(5))
        .step("the same object again", w(5))
        .step("a write of all keys is a write", flagged(Flags::WILDCARD, w(0)))
        .step("so is one of several objects", several(w(0x20)))
        .raw("a word of an earlier view says nothing", stamp(1, 9_000, true))
        .raw("in a later one memory is full", stamp(3, 2_000, true))
        .step("which is said with each write", w(6))
        .raw("a time that lags does not take it back", stamp(3, 1_500, false))
        .step("neither does this one", w(7))
        .step("a read is slow", r(5))
        .step("a completion is only forwarded", {
            flagged(Flags::COMPLETION, request(Op::WriteReply, 5))
        })
        .step("a body goes to the leader", request(Op::WRest, 5))
}

fn nopaxos_harmonia() -> Scenario {
    let o = colliding(1, 2, 16, 2);
    let description = "NOPaxos with Harmonia's dirty set in one pass (trap T23): a write that finds no \
                       slot goes to all as a no-op.";
    sequencer("nopaxos_harmonia", description, Program::NoPaxosHarmonia)
        .step("before the log's time is known a write is dropped", w(5))
        .raw("a leader's word; a no-op follows", stamp(2, 1_000, false))
        .step("a write is numbered, tracked and sent to all", w(5))
        .step("its object is dirty", r(5))
        .step("its completion", done(5, 1))
        .step("and a read of it is fast", r(5))
        .step("an object", w(o[0]))
        .step("one that shares both indices with it", w(o[1]))
        .step("a write without a slot has its number, and goes on as a no-op", w(1))
        .step("the same of several objects, the first of which finds none", several(w(1)))
        .step("a read of them comes round for each: none was entered", several(r(1)))
        .step("a no-op's completion passes all of them", done(0, 5))
        .step("fast again", r(o[0]))
        .step("a write of all keys", flagged(Flags::WILDCARD, w(0)))
        .step("makes every read slow", r(9))
}

/// 300 packets drawn at random, on a table so small that every outcome occurs.
fn random() -> Scenario {
    let mut rng = Rng::new(20);
    let layout = Layout { run_bits: 4, ..layout(2, 4) };
    let mut s = Scenario::new("random", "Packets drawn at random.", layout);
    let mut given = 0u64;
    for i in 0..300 {
        let obj_id = rng.below(10) as u32;
        let seq = Seq::new(OWN, rng.between(given.saturating_sub(6), given) as u32);
        let hdr = match rng.below(10) {
            0..=2 => w(obj_id),
            3..=4 => Repr { seq, ..done(obj_id, 0) },
            5 => Repr { seq, flags: Flags::COMPLETION, ..request(Op::WriteReply, obj_id) },
            6 => swept(rng.below(4) as u32),
            _ => r(obj_id),
        };
        given += u64::from(hdr.op == Op::Write);
        let all_or_nothing = if rng.chance(1, 2) { Flags::NOOP } else { Flags::WILDCARD };
        let hdr = if rng.chance(1, 20) { flagged(all_or_nothing, hdr) } else { hdr };
        s = s.step(
            &format!("{i}"),
            Repr {
                obj_id: ObjectId(hdr.obj_id.0.wrapping_mul(0x1111_1111)),
                session: SessionId(rng.next_u64()),
                request: RequestNumber(rng.next_u64()),
                attempt: rng.below(4) as u16,
                ..hdr
            },
        );
    }
    s
}

#[test]
fn golden_vectors() {
    let scenarios = [
        algorithm_1(),
        two_stages(),
        full_table(),
        sweep_scenario(),
        wildcard(),
        several_objects(),
        ids_and_widths(),
        other_packets(),
        unaided(),
        craq(),
        nopaxos(),
        nopaxos_harmonia(),
        random(),
    ];
    for scenario in scenarios {
        golden(scenario.name, &scenario.render());
    }
}
