//! Tests of the pipeline, and of a switch with single packets.

use super::*;
use concord_core::{Incarnation, Rng};
use concord_wire::control::{Member, Program};

use crate::{AgentConfig, PortTable};

fn addr(node: u16) -> Addr {
    Addr { ip: 1, port: 7_000 + node }
}

const CLIENT: Addr = Addr { ip: 9, port: 9_000 };

fn settings(node: u16, layout: ChainLayout, guards: Guards) -> Settings {
    let mut told = AgentConfig::new(Incarnation(1), addr(node), addr(0));
    (told.sections.chain, told.guards) = (layout, guards);
    told.settings()
}

fn small() -> ChainLayout {
    ChainLayout { cells: 2, sessions: 2, value_bytes: 32, patience_ns: 100 }
}

fn chain(epoch: u32, nodes: &[u16]) -> Config {
    let member = |node: &u16| Member { node: *node, incarnation: 1, addr: addr(*node) };
    Config {
        epoch,
        group: GroupId::FIRST,
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: addr(0),
        kind: GroupKind::Switches,
        program: Program::NetCraq,
        members: nodes.iter().map(member).collect(),
        joining: Vec::new(),
    }
}

fn load(node: u16, guards: Guards) -> NetCraq {
    NetCraq::load(&settings(node, small(), guards)).unwrap()
}

/// A switch that is a chain of one.
fn alone() -> NetCraq {
    alone_with(Guards::ALL)
}

fn alone_with(guards: Guards) -> NetCraq {
    let mut program = load(1, guards);
    program.install(Now::default(), &chain(1, &[1])).unwrap();
    program
}

/// Runs all passes of a packet; returns the last verdict, and the packet if it leaves.
fn passes(program: &mut NetCraq, packet: &Repr) -> (Verdict<DropReason>, Option<Repr>) {
    let (mut bytes, ports) = (packet.packet(), PortTable::default());
    let mut ingress = Ingress::first(Now::default(), CLIENT, &ports);
    loop {
        let verdict = program.process(&ingress, &mut bytes);
        match verdict {
            Verdict::Recirculate { metadata, size_bytes } => {
                bytes.truncate(size_bytes);
                ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
            }
            Verdict::Forward { size_bytes, .. } | Verdict::Mirror { size_bytes, .. } => {
                return (verdict, Repr::parse(&bytes[..size_bytes]).ok());
            }
            other => return (other, None),
        }
    }
}

fn write(request: u32, command: Command, condition: Condition) -> Repr {
    let stamp = Stamp::new(0, 1, request);
    let name = Name::new(b"a").unwrap();
    Repr { command, condition, stamp, name, client: CLIENT, ..Repr::new(Op::Write, 1, 4) }
}

fn set(request: u32, text: &[u8]) -> Repr {
    let (state, value) = (State::present(0, text.len() as u8, false), Words::new(text).unwrap());
    Repr { state, value, ..write(request, Command::Set, Condition::Always) }
}

fn read() -> Repr {
    Repr { op: Op::Read, ..write(0, Command::Set, Condition::Always) }
}

fn outcome(program: &mut NetCraq, packet: &Repr) -> (Outcome, u64) {
    let answer = passes(program, packet).1.unwrap();
    (answer.outcome, answer.basis)
}

/// Versions never return: a delete is a version too, and the next value has a higher one (hole N8).
#[test]
fn n8_a_delete_is_a_version_and_none_comes_back() {
    let mut program = alone();
    let del = |request| write(request, Command::Del, Condition::Always);
    assert_eq!(outcome(&mut program, &read()), (Outcome::Absent, 0));
    assert_eq!(outcome(&mut program, &del(1)), (Outcome::Absent, 0));
    assert_eq!(outcome(&mut program, &set(2, b"x")), (Outcome::Done, 1));
    assert_eq!(outcome(&mut program, &del(3)), (Outcome::Done, 2));
    assert_eq!(outcome(&mut program, &read()), (Outcome::Absent, 2));
    assert_eq!(outcome(&mut program, &set(4, b"y")), (Outcome::Done, 3));
    assert_eq!(outcome(&mut program, &read()), (Outcome::Done, 3));
}

/// A cell belongs to one name; another name can take it once that key is deleted (hole N8).
#[test]
fn n8_a_cell_is_one_names_until_its_key_is_deleted() {
    let mut program = alone();
    let b = |packet: Repr| {
        let stamp = Stamp::new(1, 1, packet.stamp.request());
        Repr { stamp, name: Name::new(b"b").unwrap(), ..packet }
    };
    assert_eq!(outcome(&mut program, &set(1, b"x")), (Outcome::Done, 1));
    assert_eq!(outcome(&mut program, &b(set(1, b"y"))), (Outcome::Taken, 1));
    assert_eq!(outcome(&mut program, &b(read())), (Outcome::Taken, 1));
    assert_eq!(
        outcome(&mut program, &write(2, Command::Del, Condition::Always)),
        (Outcome::Done, 2)
    );
    // A retry gets the same answer as before.
    assert_eq!(outcome(&mut program, &b(set(1, b"y"))), (Outcome::Taken, 1));
    assert_eq!(outcome(&mut program, &b(set(2, b"y"))), (Outcome::Done, 3));
    assert_eq!(outcome(&mut program, &read()), (Outcome::Taken, 3));
}

/// An INCR of A, one of B, and a late duplicate of A's; then one that is older than A's last (hole
/// N7, trap T31).
#[test]
fn n7_a_late_duplicate_of_an_increment_adds_nothing() {
    let mut program = alone();
    let incr = |slot, request| {
        let packet = write(request, Command::Incr, Condition::Always);
        Repr { stamp: Stamp::new(slot, 1, request), number: 1, ..packet }
    };
    let number = |program: &mut NetCraq, packet: &Repr| {
        let answer = passes(program, packet).1.unwrap();
        (answer.outcome, answer.number)
    };
    assert_eq!(number(&mut program, &incr(0, 1)), (Outcome::Done, 1));
    assert_eq!(number(&mut program, &incr(1, 1)), (Outcome::Done, 2));
    assert_eq!(number(&mut program, &incr(0, 1)), (Outcome::Done, 1));
    assert_eq!(number(&mut program, &incr(0, 2)), (Outcome::Done, 3));
    assert_eq!(outcome(&mut program, &incr(0, 1)).0, Outcome::Stale);
    assert_eq!(program.peek(1).2.0[0], 3);
}

#[test]
fn conditions_and_numbers_are_looked_at_before_a_write() {
    let mut program = alone();
    let with = |packet: Repr, condition| Repr { condition, ..packet };
    let incr =
        |request, number| Repr { number, ..write(request, Command::Incr, Condition::Always) };
    assert_eq!(outcome(&mut program, &with(set(1, b"x"), Condition::Present)).0, Outcome::Absent);
    assert_eq!(outcome(&mut program, &with(set(2, b"x"), Condition::Absent)), (Outcome::Done, 1));
    assert_eq!(outcome(&mut program, &with(set(3, b"x"), Condition::Absent)).0, Outcome::Refused);
    let if_version =
        |request, basis| Repr { basis, ..with(set(request, b"y"), Condition::Version) };
    assert_eq!(outcome(&mut program, &if_version(4, 7)), (Outcome::Refused, 1));
    assert_eq!(outcome(&mut program, &if_version(5, 1)), (Outcome::Done, 2));
    assert_eq!(outcome(&mut program, &incr(6, 1)), (Outcome::NotNumber, 2));
    let if_equal = |request, expected: &[u8]| Repr {
        expected: Words::new(expected).unwrap(),
        expected_state: (expected.len() as u8, false),
        ..with(set(request, b"z"), Condition::Equal)
    };
    assert_eq!(outcome(&mut program, &if_equal(7, b"y\0")).0, Outcome::Refused, "it is longer");
    assert_eq!(outcome(&mut program, &if_equal(8, b"y")), (Outcome::Done, 3));
    assert_eq!(outcome(&mut program, &write(9, Command::Del, Condition::Always)).0, Outcome::Done);
    assert_eq!(outcome(&mut program, &incr(10, i64::MAX as u64)).0, Outcome::Done);
    assert_eq!(outcome(&mut program, &incr(11, 1)).0, Outcome::NotNumber, "the sum is none");
    let none = Repr { cell: 2, ..read() };
    assert_eq!(outcome(&mut program, &none).0, Outcome::NoCell);
    let none = Repr { stamp: Stamp::new(2, 1, 1), ..set(1, b"x") };
    assert_eq!(outcome(&mut program, &none).0, Outcome::NoCell);
}

/// A member that was the old head's successor, and is now the tail, does not acknowledge an update
/// of the old head, since the version of that number is another write's (hole N5).
#[test]
fn n5_an_update_of_an_earlier_epoch_is_not_acknowledged() {
    let delayed = |guards| {
        let (mut old, mut member) = (load(1, guards), load(2, guards));
        for program in [&mut old, &mut member] {
            program.install(Now::default(), &chain(1, &[1, 2])).unwrap();
        }
        let update = passes(&mut old, &set(1, b"old")).1.unwrap();
        assert_eq!((update.op, update.state.version()), (Op::Update, 1));
        // Its successor is the head, and gives another write that number; then this switch is the
        // tail of a later chain.
        member.install(Now::default(), &chain(2, &[2])).unwrap();
        let new = Repr { stamp: Stamp::new(1, 1, 1), ..set(1, b"new") };
        assert_eq!(outcome(&mut member, &new), (Outcome::Done, 1));
        member.install(Now::default(), &chain(3, &[3, 2])).unwrap();
        assert!(member.install(Now::default(), &chain(2, &[2])).is_err(), "an older epoch");
        passes(&mut member, &update).0
    };
    assert_eq!(delayed(Guards::ALL), Verdict::Drop(DropReason::OtherEpoch));
    #[cfg(feature = "mutants")]
    assert!(matches!(
        delayed(Guards::without(Guard::ChainEpoch)),
        Verdict::Mirror { to: CLIENT, .. }
    ));
}

/// A packet from outside does not count as an injection, nor a client as a member.
#[test]
fn a_resend_or_an_update_from_outside_is_dropped() {
    let mut program = load(2, Guards::ALL);
    program.install(Now::default(), &chain(1, &[1, 2])).unwrap();
    let dropped = |program: &mut NetCraq, packet: &Repr| passes(program, packet).0;
    let epoch = Epoch(1);
    let resend = Repr { epoch, from: NodeId(2), ..Repr::new(Op::Resend, 0, 4) };
    assert_eq!(dropped(&mut program, &resend), Verdict::Drop(DropReason::Misdirected));
    let update = Repr { client: CLIENT, ..Repr::new(Op::Update, 0, 4) };
    assert_eq!(dropped(&mut program, &update), Verdict::Drop(DropReason::Misdirected));
    let other_size = Repr { words: 8, ..read() };
    assert_eq!(dropped(&mut program, &other_size), Verdict::Drop(DropReason::OtherSize));
    let nobody = Repr { client: Addr::default(), ..read() };
    assert_eq!(dropped(&mut program, &nobody), Verdict::Drop(DropReason::NoAddress));
    program.install(Now::default(), &chain(2, &[1, 3])).unwrap();
    assert_eq!(dropped(&mut program, &read()), Verdict::Drop(DropReason::Unconfigured));
}

/// The tail's answer says which member sent it the read; a member's own answer names none.
#[test]
fn an_answer_of_the_tail_says_who_sent_it_the_read() {
    let mut tail = load(2, Guards::ALL);
    tail.install(Now::default(), &chain(1, &[1, 2])).unwrap();
    // A read of a client has no stamp.
    let asked = Repr { stamp: Stamp(0), ..read() };
    let own = passes(&mut tail, &asked).1.unwrap();
    assert_eq!((own.from, own.sent_on_by()), (NodeId(2), None));
    let sent_on = Repr { from: NodeId(1), epoch: Epoch(1), ..asked };
    let answer = passes(&mut tail, &sent_on).1.unwrap();
    assert_eq!((answer.from, answer.sent_on_by()), (NodeId(2), Some(NodeId(1))));
    assert_eq!(Repr::parse(&answer.packet()).unwrap().sent_on_by(), Some(NodeId(1)));
}

#[test]
fn a_version_that_stays_dirty_is_sent_again_after_two_sweeps() {
    let mut program = load(1, Guards::ALL);
    program.install(Now::default(), &chain(1, &[1, 2])).unwrap();
    let _ = passes(&mut program, &set(1, b"x"));
    assert!(program.upkeep(Instant(0)).is_none(), "the first sweep saw it");
    assert_eq!(program.deadline().at, Instant(100));
    let mut injection = program.upkeep(Instant(100)).unwrap();
    assert!(program.upkeep(Instant(100)).is_none());
    let ports = PortTable::default();
    let ingress = Ingress::first(Now::default(), addr(1), &ports);
    let verdict = program.process(&ingress, injection.packet());
    assert!(matches!(verdict, Verdict::Forward { to, .. } if to == addr(2)), "{verdict:?}");
    let update = Repr::parse(injection.packet()).unwrap();
    assert_eq!(
        (update.op, update.stamp, update.value),
        (Op::Update, Stamp::new(0, 1, 1), set(1, b"x").value)
    );
}

/// Packets that are in consecutive stages at the same time leave the registers as if they had
/// passed one after the other: a value's words are of one write, all or none.
#[test]
fn packets_in_the_pipeline_do_not_mix() {
    let draw = |rng: &mut Rng| {
        let state = State::present(rng.between(1, 4), 8, false);
        let seen = match rng.below(2) {
            0 => state.as_version(state.version() - 1),
            _ => state.as_version(state.version() - 1).dirty(),
        };
        let ask = match rng.below(7) {
            0 => Ask::Look,
            1 => Ask::Claim(if rng.chance(1, 2) { State(0) } else { seen }),
            2 => Ask::Hold(seen),
            3 => Ask::Record,
            4 => Ask::Clean,
            5 => Ask::Inherit,
            _ => Ask::Apply,
        };
        let number = rng.next_u64();
        Phv {
            pass: concord_pisa::Pass::begin(),
            ask,
            is_tail: rng.chance(1, 2),
            cell: rng.below(2) as u32,
            state,
            has_state: false,
            name: Name([number; 4]),
            writer: Stamp(0),
            stamp: Stamp::new(rng.below(2) as u16, 1, rng.below(9) as u32),
            session: Stamp(0),
            has_session: false,
            outcome: Outcome::Done,
            basis: state.version(),
            number,
            value: Words([number; WORDS_MAX]),
            deadline: number,
            at: Instant(rng.below(9)),
            time: rng.below(9),
        }
    };
    let layout = ChainLayout { value_bytes: 64, ..small() };
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut one: Vec<Phv> = (0..24).map(|_| draw(&mut rng)).collect();
        let mut rng = Rng::new(seed);
        let mut other: Vec<Phv> = (0..24).map(|_| draw(&mut rng)).collect();
        let mut in_turn = Stages::new(&layout, Guards::ALL);
        one.iter_mut().for_each(|phv| in_turn.run(phv));
        let mut staged = Stages::new(&layout, Guards::ALL);
        for tick in 0..24 + usize::from(stages::STAGES) {
            for (index, phv) in other.iter_mut().enumerate() {
                if let Some(stage) = tick.checked_sub(index)
                    && stage < usize::from(stages::STAGES)
                {
                    staged.stage(stage as u8, phv);
                }
            }
        }
        assert!(in_turn.cells().eq(staged.cells()), "seed {seed}");
        for cell in 0..2 {
            let (name, value) = staged.peek(cell);
            let deadline = staged.peek_deadline(cell);
            let words = value.0.iter().chain(&name.0).chain([&deadline]);
            assert!(words.copied().all(|word| word == deadline), "seed {seed}");
        }
    }
}

/// Runs a packet of a switch's own control plane, and says what leaves.
fn injects(program: &mut NetCraq, own: Addr, at: u64, mut injection: Injection) -> Option<Repr> {
    let ports = PortTable::default();
    let mut ingress = Ingress::first(now(at), own, &ports);
    loop {
        match program.process(&ingress, injection.packet()) {
            Verdict::Recirculate { metadata, .. } => {
                ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
            }
            Verdict::Forward { size_bytes, .. } => {
                return Repr::parse(&injection.packet()[..size_bytes]).ok();
            }
            _ => return None,
        }
    }
}

fn now(at: u64) -> Now {
    Now { instant: Instant(at), unix_ms: 0 }
}

fn passes_at(program: &mut NetCraq, at: u64, packet: &Repr) -> Option<Repr> {
    let (mut bytes, ports) = (packet.packet(), PortTable::default());
    let mut ingress = Ingress::first(now(at), CLIENT, &ports);
    loop {
        match program.process(&ingress, &mut bytes) {
            Verdict::Recirculate { metadata, size_bytes } => {
                bytes.truncate(size_bytes);
                ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
            }
            Verdict::Forward { size_bytes, .. } | Verdict::Mirror { size_bytes, .. } => {
                return Repr::parse(&bytes[..size_bytes]).ok();
            }
            _ => return None,
        }
    }
}

/// A key ends at its deadline by a write of the head, with a version of its own (trap T12); what
/// leaves the deadline alone, moves it or removes it.
#[test]
fn t12_a_key_ends_by_a_write_of_the_head() {
    let mut program = alone();
    let lasting = |request| Repr { deadline: 1_000, ..set(request, b"x") };
    let reads = |program: &mut NetCraq, at| {
        let answer = passes_at(program, at, &read()).unwrap();
        (answer.outcome, answer.basis, answer.deadline)
    };
    let ends = |program: &mut NetCraq, at| {
        let injection = program.upkeep(Instant(at)).unwrap();
        assert_eq!(injects(program, addr(1), at, injection), None);
    };
    assert!(program.upkeep(Instant(0)).is_none());
    assert!(passes_at(&mut program, 50, &lasting(1)).is_some());
    assert_eq!(program.deadline().at, Instant(100), "a sweep");
    assert_eq!(reads(&mut program, 250), (Outcome::Done, 1, 800));
    assert!(program.upkeep(Instant(1_049)).is_none());
    assert_eq!(program.deadline().at, Instant(1_050));
    assert_eq!(reads(&mut program, 1_060), (Outcome::Done, 1, 1), "nobody has numbered that");
    ends(&mut program, 1_060);
    assert_eq!(reads(&mut program, 1_061), (Outcome::Absent, 2, 0));
    assert_eq!(program.counters().expired, 1);
    let keeps = Repr { keeps_deadline: true, ..set(3, b"y") };
    let incr = Repr { number: 1, ..write(6, Command::Incr, Condition::Always) };
    let expire = |request, ttl_ns| Repr {
        deadline: ttl_ns,
        ..write(request, Command::Expire, Condition::Always)
    };
    let done = |program: &mut NetCraq, packet: &Repr| {
        passes_at(program, 2_000, packet).map(|answer| answer.outcome)
    };
    assert_eq!(done(&mut program, &lasting(2)), Some(Outcome::Done));
    assert_eq!(done(&mut program, &keeps), Some(Outcome::Done));
    assert_eq!(reads(&mut program, 2_100), (Outcome::Done, 4, 900));
    assert_eq!(done(&mut program, &set(4, b"z")), Some(Outcome::Done));
    assert_eq!(reads(&mut program, 2_100).2, 0, "a SET ends it");
    assert_eq!(done(&mut program, &expire(5, 0)), Some(Outcome::Refused));
    assert_eq!(done(&mut program, &incr), Some(Outcome::NotNumber));
    assert_eq!(done(&mut program, &expire(7, 500)), Some(Outcome::Done));
    assert_eq!(reads(&mut program, 2_100), (Outcome::Done, 6, 400));
    assert_eq!(done(&mut program, &expire(8, 0)), Some(Outcome::Done));
    assert_eq!(reads(&mut program, 2_100), (Outcome::Done, 7, 0));
    assert_eq!(done(&mut program, &expire(9, 10)), Some(Outcome::Done));
    // A write finds that it is over: the key ends first, and the write comes again.
    assert_eq!(passes_at(&mut program, 3_000, &keeps_of(10)), None);
    assert_eq!(reads(&mut program, 3_000), (Outcome::Absent, 9, 0));
    assert_eq!(passes_at(&mut program, 3_001, &keeps_of(10)).unwrap().outcome, Outcome::Done);
    assert_eq!(reads(&mut program, 3_002), (Outcome::Done, 10, 0), "there was nothing to keep");
}

/// A read at the deadline, before the head has numbered the end, finds the key, as a read at
/// another member would (trap T12); or, without the guard, nothing, which that one may contradict.
#[test]
fn t12_a_key_is_there_until_its_end_is_numbered() {
    let read_at_the_deadline = |guards| {
        let mut program = alone_with(guards);
        assert!(passes_at(&mut program, 50, &Repr { deadline: 1_000, ..set(1, b"x") }).is_some());
        let answer = passes_at(&mut program, 1_060, &read()).unwrap();
        (answer.outcome, answer.basis)
    };
    assert_eq!(read_at_the_deadline(Guards::ALL), (Outcome::Done, 1));
    #[cfg(feature = "mutants")]
    assert_eq!(read_at_the_deadline(Guards::without(Guard::ExpiryNumbered)), (Outcome::Absent, 1));
}

/// Two clients were given the same session, and open it at the same time, each between the passes
/// of the other: it is one's alone.
#[test]
fn bug_24_45_a_session_is_opened_by_one_client() {
    let opened = |guards| {
        let mut program = alone_with(guards);
        let ports = PortTable::default();
        let open = |number| {
            let open = Repr { number, ..write(0, Command::Open, Condition::Always) };
            Repr { cell: 1, ..open }.packet()
        };
        let mut under_way = [open(11), open(22)].map(|mut bytes| {
            let ingress = Ingress::first(Now::default(), CLIENT, &ports);
            let verdict = program.process(&ingress, &mut bytes);
            let Verdict::Recirculate { metadata, size_bytes } = verdict else { panic!() };
            bytes.truncate(size_bytes);
            (metadata, bytes)
        });
        let answers = under_way.each_mut().map(|(metadata, bytes)| {
            let first = Ingress::first(Now::default(), CLIENT, &ports);
            let ingress = Ingress { passes: 1, metadata: *metadata, ..first };
            let verdict = program.process(&ingress, bytes);
            let Verdict::Forward { size_bytes, .. } = verdict else { panic!() };
            let answer = Repr::parse(&bytes[..size_bytes]).unwrap();
            (answer.outcome, answer.number)
        });
        let again = passes(&mut program, &Repr::parse(&open(22)).unwrap()).1.unwrap();
        (answers, (again.outcome, again.number))
    };
    let (first, other) = ((Outcome::Refused, 11), (Outcome::Busy, 22));
    assert_eq!(opened(Guards::ALL), ([first, other], first));
    #[cfg(feature = "mutants")]
    assert_eq!(
        opened(Guards::without(Guard::SecondPass)).0,
        [first, (Outcome::Refused, 22)],
        "both have opened it"
    );
}

/// A member that has a request's outcome from the packet, and one that has it from a copy of the
/// cell, have the same: for each request that leaves a number.
#[test]
fn bug_24_44_a_copied_cell_says_the_same_of_its_request() {
    let incr = Repr { number: 4, ..write(1, Command::Incr, Condition::Always) };
    let expire = Repr { deadline: 500, ..write(2, Command::Expire, Condition::Always) };
    let number = State::present(0, 8, true);
    let set = Repr { state: number, ..set(3, &7_u64.to_be_bytes()) };
    let mut old = alone();
    for packet in [incr, expire, set] {
        assert_eq!(outcome(&mut old, &packet).0, Outcome::Done);
        old.install(Now::default(), &chain(2, &[1, 2])).unwrap();
        let mut new = load(2, Guards::ALL);
        new.install(Now::default(), &chain(2, &[1, 2])).unwrap();
        let copy =
            Repr { epoch: Epoch(2), client: addr(2), from: NodeId(2), ..Repr::new(Op::Copy, 1, 4) };
        let of_cell = passes(&mut old, &Repr { has_content: true, ..copy }).1.unwrap();
        let _ = passes(&mut new, &Repr { client: Addr::default(), ..of_cell });
        let words = |program: &NetCraq| program.stages.words_of_session(0).collect::<Vec<_>>();
        assert_eq!(words(&new), words(&old), "{packet:?}");
        old.install(Now::default(), &chain(2, &[1])).unwrap();
    }
}

fn keeps_of(request: u32) -> Repr {
    Repr { keeps_deadline: true, ..set(request, b"w") }
}

/// A member whose clock shows something else is the head: the key lives on for as long as it was
/// to (hole N9), or, without the guard, ends at once.
#[test]
fn n9_a_new_heads_time_goes_on_from_the_old_ones() {
    let ends_after = |guards| {
        let (mut old, mut member) = (load(1, guards), load(2, guards));
        for program in [&mut old, &mut member] {
            program.install(Now::default(), &chain(1, &[1, 2])).unwrap();
        }
        let lasting = Repr { deadline: 1_000, ..set(1, b"x") };
        let update = passes_at(&mut old, 50, &lasting).unwrap();
        assert_eq!((update.op, update.deadline, update.time), (Op::Update, 1_050, 50));
        // Its clock is 70,000 ns ahead; the packet was on its way for 5.
        assert!(passes_at(&mut member, 70_055, &update).is_some());
        member.install(now(70_100), &chain(2, &[2])).unwrap();
        (70_100..71_100).find(|at| program_ends(&mut member, *at))
    };
    let program_ends_at = ends_after(Guards::ALL);
    assert_eq!(program_ends_at, Some(71_055));
    #[cfg(feature = "mutants")]
    assert_eq!(ends_after(Guards::without(Guard::ChainClock)), Some(70_100));
}

fn program_ends(program: &mut NetCraq, at: u64) -> bool {
    if let Some(injection) = program.upkeep(Instant(at)) {
        injects(program, addr(2), at, injection);
    }
    program.counters().expired > 0
}

/// An EXPIRE from outside ends nothing.
#[test]
fn an_expire_from_outside_is_dropped() {
    let mut program = alone();
    assert!(passes_at(&mut program, 0, &Repr { deadline: 1, ..set(1, b"x") }).is_some());
    let expire = Repr { epoch: Epoch(1), from: NodeId(1), ..Repr::new(Op::Expire, 1, 4) };
    assert_eq!(passes_at(&mut program, 9, &expire), None);
    assert_eq!(passes_at(&mut program, 9, &read()).unwrap().outcome, Outcome::Done);
}

#[test]
fn any_bytes_leave_a_switch_standing() {
    let mut rng = Rng::new(51);
    let mut program = load(2, Guards::ALL);
    program.install(Now::default(), &chain(1, &[1, 2, 3])).unwrap();
    let ports = PortTable::default();
    for _ in 0..200_000 {
        let op = [Op::Read, Op::Write, Op::Update, Op::Acknowledgement, Op::Resend, Op::Expire]
            [rng.below(6) as usize];
        let words = if op == Op::Acknowledgement { 0 } else { 4 };
        let mut bytes =
            Repr { epoch: Epoch(1), from: NodeId(1), client: CLIENT, ..Repr::new(op, 0, words) }
                .packet();
        for _ in 0..rng.below(8) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.below(256) as u8;
        }
        let metadata = Metadata([rng.below(4), 1]);
        let sender = if rng.chance(1, 4) { addr(2) } else { CLIENT };
        let first = Ingress::first(Now::default(), sender, &ports);
        let ingress = Ingress { passes: rng.below(2) as u8, metadata, ..first };
        let _ = program.process(&ingress, &mut bytes);
    }
}

/// With the default settings the program fits an ASIC: ten stages, at most two arrays in each.
#[test]
fn netcraq_fits_an_asic_by_itself() {
    let program = NetCraq::load(&settings(1, ChainLayout::DEFAULT, Guards::ALL)).unwrap();
    let report = program.describe();
    assert_eq!(report.excess(&concord_pisa::ASIC), None);
    assert_eq!((report.stages(), report.recirculations_max), (10, 1));
    assert!((0..10).all(|stage| report.arrays_in(stage) <= 2));
    let largest = ChainLayout { cells: CELLS_MAX, sessions: CELLS_MAX, ..ChainLayout::DEFAULT };
    let program = NetCraq::load(&settings(1, largest, Guards::ALL)).unwrap();
    assert_eq!(program.describe().excess(&concord_pisa::ASIC), None);
}

#[test]
fn a_store_that_no_switch_can_have_is_refused_in_one_line() {
    let refused = |layout: ChainLayout| layout.check().unwrap_err();
    let base = ChainLayout::DEFAULT;
    for layout in [
        ChainLayout { cells: 3, ..base },
        ChainLayout { cells: 2 * CELLS_MAX, ..base },
        ChainLayout { sessions: 0, ..base },
        ChainLayout { value_bytes: 24, ..base },
        ChainLayout { patience_ns: 0, ..base },
    ] {
        let said = alloc::format!("{}", refused(layout));
        assert!(said.starts_with("the chain") && !said.contains('\n'), "{said}");
        assert_eq!(
            NetCraq::load(&settings(1, layout, Guards::ALL)).unwrap_err(),
            LoadError::Chain(refused(layout))
        );
    }
    let mut program = load(1, Guards::ALL);
    let replicas = Config { kind: GroupKind::Workers, ..chain(1, &[1]) };
    assert!(program.install(Now::default(), &replicas).is_err());
}
