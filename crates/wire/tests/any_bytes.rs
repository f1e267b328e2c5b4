//! Every header, drawn at random from a seed: what is written is read as it was, with a tag and
//! padding behind it; what is cut short, changed or random is refused or is another packet, and
//! never a panic.
#![allow(clippy::unwrap_used)]

use concord_core::{
    Epoch, Instant, NodeId, ObjectId, Position, RequestNumber, Rng, Seq, SessionId, SwitchId,
};
use concord_wire::control::{
    Compared, Config, CopyMessage, DataDir, Heard, Held, LeaseMessage, LogEnd, Member, Membership,
    Message, PLACES_MAX, Program, Protocol, ReplicaAlive, Standing, VoterOutcome, VotersTold,
    Voting,
};
use concord_wire::craq::{VersionAnswer, VersionQuery};
use concord_wire::falcon::{
    Answer, Asker, Assigned, CLASSES_MAX, Parameters, Reply, Request, Submission, SubmissionMut,
    Sweep, Task, TaskFlags, hand_over,
};
use concord_wire::flair::{self, CaughtUp, Followers, Group, Heartbeat, SessionMessage, Sid, Step};
use concord_wire::fragment::{FRAGMENT_BYTES, FragmentHdr};
use concord_wire::header::{COMMON_BYTES, Header, TAG_BYTES, at};
use concord_wire::link::{Ack, Data, PIECE_BYTES_MAX, append_record};
use concord_wire::nopaxos::Stamp;
use concord_wire::record::Record;
use concord_wire::rpc::{BODY_BYTES_MAX, Reason};
use concord_wire::tasks::{Attempt, BodyName, Ended, RESULT_BYTES_MAX, Run, TaskMessage};
use concord_wire::vr::{CrashVectorEntry, LastRecord, SwitchIncarnation, VrBody, VrMessage};
use concord_wire::{
    Addr, DATAGRAM_BYTES_MAX, Flags, FurtherIds, GroupId, Kind, Op, Packet, PacketMut, Repr, Status,
};

const ROUNDS: u64 = 2_000;
const SEED: u64 = 17;

/// A number of any width: small ones as often as large ones.
fn number(rng: &mut Rng) -> u64 {
    let bits = rng.below(64);
    rng.next_u64() >> bits
}

fn word(rng: &mut Rng) -> u32 {
    number(rng) as u32
}

fn short(rng: &mut Rng) -> u16 {
    number(rng) as u16
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.between(0, most as u64);
    (0..length).map(|_| rng.below(256) as u8).collect()
}

fn addr(rng: &mut Rng) -> Addr {
    Addr { ip: word(rng), port: short(rng) }
}

fn end(rng: &mut Rng) -> LogEnd {
    LogEnd { position: number(rng), hash: number(rng) }
}

fn further(rng: &mut Rng) -> FurtherIds {
    let ids: Vec<ObjectId> = (0..rng.below(8)).map(|_| ObjectId(word(rng))).collect();
    FurtherIds::new(&ids).unwrap()
}

fn request(rng: &mut Rng) -> Repr {
    Repr {
        op: one_of(rng, Op::ALL),
        group: GroupId(short(rng)),
        flags: Flags(short(rng)),
        obj_id: ObjectId(word(rng)),
        further: further(rng),
        seq: Seq::from_u64(number(rng)),
        last_committed: Seq::from_u64(number(rng)),
        index: word(rng),
        session: SessionId(number(rng)),
        request: RequestNumber(number(rng)),
        client: addr(rng),
        attempt: short(rng),
        low_delta: short(rng),
        after_delta: short(rng),
        time_ms: number(rng),
        epoch: Epoch(word(rng)),
        node: NodeId(short(rng)),
        status: one_of(rng, Status::ALL),
        reason: one_of(rng, Reason::ALL),
    }
}

fn config(rng: &mut Rng) -> Config {
    let member =
        |rng: &mut Rng| Member { node: short(rng), incarnation: number(rng), addr: addr(rng) };
    let protocols = [
        Protocol::PrimaryBackup,
        Protocol::Chain,
        Protocol::Vr,
        Protocol::Craq,
        Protocol::NoPaxos,
        Protocol::Raft,
    ];
    let protocol = one_of(rng, &protocols);
    let program = Program::of(protocol, rng.chance(1, 2));
    // One of four takes several packets.
    let members_max = if rng.chance(1, 4) { PLACES_MAX as u64 - 12 } else { 65 };
    let (members, joining) = (rng.below(members_max), rng.below(12));
    Config {
        epoch: word(rng),
        group: GroupId(short(rng)),
        rack: number(rng),
        switch_id: word(rng),
        switch_incarnation: number(rng),
        switch: addr(rng),
        kind: protocol.into(),
        program,
        members: (0..members).map(|_| member(rng)).collect(),
        joining: (0..joining).map(|_| member(rng)).collect(),
    }
}

fn replica(rng: &mut Rng, heard: Heard) -> ReplicaAlive {
    ReplicaAlive {
        member: Member { node: short(rng), incarnation: number(rng), addr: addr(rng) },
        sent_at: number(rng),
        heard,
        standing: Standing::Opening { caught_up: rng.chance(1, 2) },
        held: Held { epoch: word(rng), position: number(rng) },
        data_dir: rng.chance(1, 2).then(|| DataDir { id: number(rng), run: number(rng) }),
        unheard: (0..rng.below(64)).map(|_| short(rng)).collect(),
    }
}

fn compared(rng: &mut Rng) -> Compared {
    Compared {
        position: number(rng),
        hash: number(rng),
        first: short(rng),
        end: short(rng),
        keys: word(rng),
        digest: number(rng),
    }
}

fn membership(rng: &mut Rng) -> Membership {
    let heard = Heard { rack: number(rng), epoch: word(rng), switch_id: word(rng) };
    let (epoch, from) = (word(rng), short(rng));
    match rng.below(14) {
        0 => Membership::ReplicaAlive(replica(rng, heard)),
        12 => Membership::WasDurable {
            incarnation: number(rng),
            held: Held { epoch: word(rng), position: number(rng) },
        },
        13 => Membership::Compared {
            node: from,
            incarnation: number(rng),
            made: (0..rng.below(16)).map(|_| compared(rng)).collect(),
        },
        10 => Membership::ChangeVoter {
            client: addr(rng),
            number: number(rng),
            change: rng.chance(1, 2).then(|| (short(rng), rng.chance(1, 2))),
        },
        11 => Membership::VotersTold(VotersTold {
            number: number(rng),
            node: from,
            outcome: if rng.chance(1, 2) { VoterOutcome::Done } else { VoterOutcome::Behind },
            members: (0..rng.below(64)).map(|_| short(rng)).collect(),
            voters: number(rng),
            is_committed: rng.chance(1, 2),
        }),
        9 => {
            let last = LastRecord { term: word(rng), position: number(rng) };
            let voting = Voting { last, voters: number(rng) };
            Membership::VoterAlive { alive: replica(rng, heard), voting }
        }
        1 => Membership::SwitchAlive {
            incarnation: number(rng),
            addr: addr(rng),
            sent_at: number(rng),
            epoch,
            heard,
            standby: rng.chance(1, 2),
        },
        2 => {
            let mut parts: Vec<_> = config(rng).parts().collect();
            let at = rng.below(parts.len() as u64) as usize;
            Membership::Configure(parts.swap_remove(at))
        }
        3 => Membership::WhoIsWho { client: addr(rng) },
        4 => Membership::SwitchRetired { incarnation: number(rng), switch: addr(rng) },
        5 => {
            let (end, ask) = (end(rng), rng.chance(1, 2));
            Membership::EpochState { epoch, from, end, ask, waits: rng.chance(1, 2) }
        }
        6 => Membership::Open { epoch, from, end: end(rng), waits: rng.chance(1, 2) },
        7 => Membership::Opened { epoch, from },
        _ => Membership::Reach { epoch, from, ask: rng.chance(1, 2) },
    }
}

fn copy(rng: &mut Rng) -> CopyMessage {
    let (epoch, from, attempt) = (word(rng), short(rng), number(rng));
    let (position, total_bytes, index) = (number(rng), word(rng), word(rng));
    let (part, end) = (number(rng), end(rng));
    match rng.below(7) {
        0 => CopyMessage::Fetch { epoch, from, position, index, missing: number(rng) },
        1 => {
            let (hash, piece) = (number(rng), bytes(rng, FRAGMENT_BYTES));
            CopyMessage::Fetched { epoch, position, hash, total_bytes, index, piece }
        }
        2 => CopyMessage::Resume { epoch, from, attempt, end },
        3 => CopyMessage::Resumed { epoch, from, attempt },
        4 => CopyMessage::LogMismatch { epoch, from, attempt },
        5 => CopyMessage::Ask { epoch, from, attempt, part, index },
        _ => {
            let piece = bytes(rng, FRAGMENT_BYTES);
            CopyMessage::Piece { epoch, attempt, part, position, total_bytes, index, piece }
        }
    }
}

fn view(rng: &mut Rng) -> VrMessage {
    let entry = |rng: &mut Rng| CrashVectorEntry { count: word(rng), incarnation: number(rng) };
    let switch = SwitchIncarnation { id: word(rng), incarnation: number(rng), addr: addr(rng) };
    let (asked_at, end) = (number(rng), end(rng));
    let last = LastRecord { term: word(rng), position: number(rng) };
    let body = match rng.below(9) {
        0 => VrBody::Suspect,
        8 => VrBody::VotersAre { end, switch, voters: number(rng), before: number(rng) },
        6 => VrBody::RequestVote { last, handed: rng.chance(1, 2) },
        7 => VrBody::Voted { granted: true, committed: number(rng), switch },
        1 => VrBody::DoViewChange { last_normal: word(rng), end, committed: number(rng), switch },
        2 => VrBody::LeaseGrant { asked_at, to: entry(rng) },
        3 => VrBody::StartView { end, switch, floor: word(rng) },
        4 => VrBody::Follow { stream: short(rng), end, committed: end },
        _ => VrBody::RecoveryResponse { leader: Some((end, switch, word(rng))) },
    };
    let crash_vector = (0..rng.below(65)).map(|_| entry(rng)).collect();
    VrMessage { body, group: number(rng), from: short(rng), view: word(rng), crash_vector }
}

fn about_a_task(rng: &mut Rng) -> TaskMessage {
    let of = Attempt { uid: number(rng), jid: word(rng), tid: word(rng), attempt: short(rng) };
    let run = Run { session: number(rng), run: word(rng), worker: addr(rng) };
    let (asked_at, granted) = (number(rng), rng.chance(1, 2));
    let name = BodyName { uid: number(rng), jid: word(rng), tid: word(rng) };
    match rng.below(12) {
        0 => TaskMessage::Claim { of, run, asked_at },
        1 => TaskMessage::Claimed { of, run, asked_at, granted },
        2 => TaskMessage::Running { of, run, asked_at },
        3 => TaskMessage::Extended { of, run, asked_at },
        4 => {
            let ended = [Ended::Done, Ended::Failed, Ended::TimedOut];
            let status = rng.below(256) as u8;
            let ended = match rng.below(5) {
                3 => Ended::Exited(status),
                4 => Ended::Killed(status),
                at => ended[at as usize],
            };
            let (output_bytes, output) = (number(rng), bytes(rng, RESULT_BYTES_MAX));
            TaskMessage::Result { of, run, ended, output_bytes, output }
        }
        5 => TaskMessage::Returned { of, run },
        6 => TaskMessage::Known { of, run },
        7 => {
            let (first, count) = (word(rng), rng.below(256) as u8);
            TaskMessage::Fetch { name, worker: addr(rng), first, count }
        }
        8 => {
            let (total_bytes, index) = (word(rng), word(rng));
            let bytes = bytes(rng, concord_wire::tasks::FRAGMENT_BYTES);
            TaskMessage::Fragment { name, total_bytes, index, bytes }
        }
        9 => TaskMessage::FetchOutput { run, first: word(rng), count: rng.below(256) as u8 },
        10 => {
            let (total_bytes, index) = (word(rng), word(rng));
            let bytes = bytes(rng, concord_wire::tasks::FRAGMENT_BYTES);
            TaskMessage::OutputFragment { run, total_bytes, index, bytes }
        }
        _ => TaskMessage::Cancel { of, run },
    }
}

/// A reply has its command behind it, or not.
fn with_echo(rng: &mut Rng, body: &[u8]) -> flair::Repr {
    let ops = [Op::Write, Op::Read, Op::WriteReply, Op::ReadReply];
    let empty = (Seq::NONE, 0);
    let mut common = Repr { op: one_of(rng, &ops), ..request(rng) };
    (common.last_committed, common.index) = empty;
    flair::Repr {
        common,
        log_idx: Position(number(rng)),
        cflwrs: Followers(word(rng) as u8),
        echo: rng.between(0, body.len() as u64) as u16,
        switch: SwitchId(word(rng)),
    }
}

fn of_a_session(rng: &mut Rng) -> SessionMessage {
    let (view, from, switch, sid) = (word(rng), short(rng), word(rng), Sid(word(rng)));
    let group = |rng: &mut Rng| Group {
        log_idx: number(rng),
        followers: Followers(word(rng) as u8),
        is_stable: rng.chance(1, 2),
    };
    let (chunk, probe) = (word(rng), number(rng));
    match rng.below(5) {
        0 => {
            let replicas = (0..rng.below(9)).map(|_| short(rng)).collect();
            SessionMessage::Begin { view, from, switch, sid, replicas, all_keys: group(rng) }
        }
        1 => {
            let groups = (0..rng.below(65)).map(|_| group(rng)).collect();
            SessionMessage::Groups { view, from, switch, sid, chunk, groups }
        }
        2 => SessionMessage::Activate { view, from, switch, sid, probe },
        3 => {
            let weights = core::array::from_fn(|_| short(rng));
            SessionMessage::Weights { view, from, switch, sid, round: chunk, weights }
        }
        _ => {
            let begun = Step::Begun { groups: word(rng), load_awareness: rng.chance(1, 2) };
            let steps =
                [begun, Step::Chunk { chunk }, Step::Active, Step::Weighed { round: chunk }];
            let step = one_of(rng, &steps);
            SessionMessage::Confirmed { view, from, switch, sid, step, probe }
        }
    }
}

/// Reads `bytes` as whatever they say they are, as a record and as a fragment.
fn read(bytes: &[u8]) {
    let mut changed = bytes.to_vec();
    if let Ok(packet) = Packet::parse(bytes) {
        let repr = packet.repr();
        let mut again = Vec::new();
        repr.emit(packet.body(), &mut again);
        assert_eq!(Packet::parse(&again).unwrap().repr(), repr);
        let mut packet = PacketMut::parse(&mut changed).unwrap();
        packet.set_seq(Seq::NONE);
        packet.set_reason(Reason::Fast);
        packet.set_full(true, false);
    }
    if append_record(&mut changed.clone(), b"a record") {
        assert!(bytes.len() < DATAGRAM_BYTES_MAX);
    }
    if let Ok(packet) = flair::Packet::parse(bytes) {
        let repr = packet.repr();
        let mut again = Vec::new();
        repr.emit(packet.body(), &mut again);
        assert_eq!(flair::Packet::parse(&again).unwrap().repr(), repr);
        assert!(packet.command().len() <= packet.body().len());
        let mut packet = flair::PacketMut::parse(&mut again).unwrap();
        if packet.ask_again(SwitchId(1), Seq::NONE) {
            assert!(flair::Packet::parse(&again).is_ok());
        } else {
            let length = packet.refuse();
            assert_eq!(Packet::parse(&again).unwrap().bytes().len(), length);
        }
        let length = flair::PacketMut::parse(&mut changed.clone()).unwrap().leave();
        assert!(length <= bytes.len());
    }
    if let Ok(mut packet) = flair::PacketMut::enter(&mut changed.clone()) {
        packet.stamp(SwitchId(1), Seq::NONE, Position(7));
        packet.leave();
    }
    let _ = Heartbeat::parse(bytes);
    let _ = Heartbeat::answer(&mut changed.clone(), Instant(7));
    let _ = SessionMessage::parse(bytes);
    let _ = Header::parse(bytes);
    let _ = Data::parse(bytes);
    let _ = Ack::parse(bytes);
    let _ = VersionQuery::parse(bytes);
    let _ = VersionAnswer::parse(bytes);
    let _ = Stamp::parse(bytes);
    let _ = Membership::parse(bytes);
    let _ = LeaseMessage::parse(bytes);
    let _ = CopyMessage::parse(bytes);
    let _ = VrMessage::parse(bytes);
    let _ = Record::parse(bytes);
    let _ = Record::split_first(bytes);
    let _ = Submission::parse(bytes);
    let _ = Request::parse(bytes);
    let _ = Reply::parse(bytes);
    let _ = Sweep::parse(bytes);
    let _ = TaskMessage::parse(bytes);
    let _ = hand_over(&mut bytes.to_vec(), 7, Addr::default());
    if let Ok(mut packet) = SubmissionMut::parse(&mut bytes.to_vec()) {
        packet.push_ticket(7);
        let _ = packet.first();
        assert!(packet.pop_task().size_bytes() <= bytes.len());
    }
    if let Ok((hdr, _)) = FragmentHdr::parse(bytes) {
        assert!(hdr.range().len() <= FRAGMENT_BYTES);
    }
}

/// Cuts a packet short, changes bytes of it, and reads what is left.
fn corrupt(rng: &mut Rng, packet: &[u8]) {
    read(&packet[..rng.below(packet.len() as u64) as usize]);
    let mut changed = packet.to_vec();
    for _ in 0..rng.between(1, 4) {
        let at = match rng.below(2) {
            0 => rng.below(packet.len().min(96) as u64),
            _ => rng.below(packet.len() as u64),
        };
        changed[at as usize] = one_of(rng, &[0, 1, 7, 0x7f, 0x80, 0xff]);
        read(&changed);
    }
}

/// What was written fits a datagram beside a tag; the same with a tag and padding behind.
fn padded(rng: &mut Rng, packet: &[u8]) -> Vec<u8> {
    assert!((COMMON_BYTES..=DATAGRAM_BYTES_MAX - TAG_BYTES).contains(&packet.len()));
    let mut padded = packet.to_vec();
    padded.extend_from_slice(&[0xa5; TAG_BYTES]);
    padded.extend(bytes(rng, 64));
    padded
}

#[test]
fn requests_survive_the_wire() {
    let rng = &mut Rng::new(SEED);
    let mut out = Vec::new();
    for _ in 0..ROUNDS {
        let (repr, body) = (request(rng), bytes(rng, BODY_BYTES_MAX));
        repr.emit(&body, &mut out);
        let with_tag = padded(rng, &out);
        let packet = Packet::parse(&with_tag).unwrap();
        assert_eq!((packet.repr(), packet.body(), packet.bytes()), (repr, &body[..], &out[..]));
        corrupt(rng, &out);
    }
}

#[test]
fn what_flair_says_survives_the_wire() {
    let rng = &mut Rng::new(SEED);
    let mut out = Vec::new();
    for _ in 0..ROUNDS {
        let body = bytes(rng, BODY_BYTES_MAX);
        let repr = with_echo(rng, &body);
        repr.emit(&body, &mut out);
        let with_tag = padded(rng, &out);
        let packet = flair::Packet::parse(&with_tag).unwrap();
        assert_eq!((packet.repr(), packet.body(), packet.bytes()), (repr, &body[..], &out[..]));
        corrupt(rng, &out);
        let beat = Heartbeat {
            group: GroupId(short(rng)),
            from: NodeId(short(rng)),
            view: Epoch(word(rng)),
            sid: Sid(word(rng)),
            switch: SwitchId(word(rng)),
            probe: Instant(number(rng)),
            caught_up: CaughtUp {
                log_idx: Position(number(rng)),
                followers: Followers(short(rng) as u8),
            },
        };
        beat.emit(&mut out);
        assert_eq!(Heartbeat::parse(&padded(rng, &out)), Ok(beat));
        corrupt(rng, &out);
    }
}

#[test]
fn what_replicas_stream_survives_the_wire() {
    let rng = &mut Rng::new(SEED);
    let mut out = Vec::new();
    for _ in 0..ROUNDS {
        let (epoch, from) = (Epoch(word(rng)), NodeId(short(rng)));
        let (stream, committed) = (short(rng), Position(number(rng)));
        let piece = bytes(rng, PIECE_BYTES_MAX);
        let (first, last, link_seq) = (rng.chance(1, 2), rng.chance(1, 2), number(rng));
        let data = Data { epoch, from, stream, link_seq, committed, first, last, piece: &piece };
        data.emit(&mut out);
        assert_eq!(Data::parse(&padded(rng, &out)).unwrap(), data);
        corrupt(rng, &out);
        let (next, held, applied) = (number(rng), number(rng), Position(number(rng)));
        let (entry, is_short) = (word(rng), last);
        let queue = word(rng);
        let ack = Ack {
            epoch,
            from,
            stream,
            next,
            held,
            applied,
            committed,
            entry,
            is_short,
            is_at_work: !last,
            queue,
        };
        ack.emit(&mut out);
        assert_eq!(Ack::parse(&padded(rng, &out)).unwrap(), ack);
        corrupt(rng, &out);
        let query = VersionQuery { epoch, from, asker: addr(rng), number: next };
        query.emit(&mut out);
        assert_eq!(VersionQuery::parse(&padded(rng, &out)).unwrap(), query);
        corrupt(rng, &out);
        let answer = VersionAnswer { epoch, from, number: next, committed };
        answer.emit(&mut out);
        assert_eq!(VersionAnswer::parse(&padded(rng, &out)).unwrap(), answer);
        corrupt(rng, &out);
        let (now_ms, memory_full, disk_full) = (number(rng), first, last);
        let stamp = Stamp { view: epoch, from, now_ms, memory_full, disk_full };
        stamp.emit(&mut out);
        assert_eq!(Stamp::parse(&padded(rng, &out)).unwrap(), stamp);
        corrupt(rng, &out);
    }
}

#[test]
fn tasks_survive_the_wire() {
    fn task(rng: &mut Rng) -> Task {
        Task {
            tid: word(rng),
            attempt: short(rng),
            function: short(rng),
            flags: TaskFlags(short(rng) as u8),
            needs: short(rng) as u8 % CLASSES_MAX,
            limit_ms: word(rng),
            parameters: Parameters::new(&bytes(rng, 16)).unwrap(),
            tag: number(rng),
        }
    }
    let rng = &mut Rng::new(SEED);
    let mut out = Vec::new();
    for _ in 0..ROUNDS {
        let added = rng.below(17);
        let submission = Submission {
            group: GroupId(short(rng)),
            uid: SessionId(number(rng)),
            jid: word(rng),
            owner: addr(rng),
            number: word(rng),
            switch_id: SwitchId(word(rng)),
            answer: one_of(rng, Answer::ALL),
            queue: short(rng) as u8,
            priority: short(rng) as u8,
            retrieve_ptr: word(rng),
            add_ptr: word(rng),
            tickets: (0..added).map(|_| word(rng)).collect(),
            tasks: (added..rng.between(added, 16)).map(|_| task(rng)).collect(),
        };
        submission.emit(&mut out);
        assert_eq!(Submission::parse(&padded(rng, &out)).unwrap(), submission);
        corrupt(rng, &out);
        let asker = Asker {
            session: SessionId(number(rng)),
            number: word(rng),
            slot: short(rng),
            addr: addr(rng),
        };
        let (queue, wait_us) = (short(rng) as u8, word(rng));
        let request = Request { group: GroupId(short(rng)), asker, queue, wait_us };
        request.emit(&mut out);
        assert_eq!(Request::parse(&padded(rng, &out)).unwrap(), request);
        corrupt(rng, &out);
        let (ticket, switch_id) = (word(rng), SwitchId(word(rng)));
        let reply = if rng.chance(1, 2) {
            let (uid, jid, owner) = (SessionId(number(rng)), word(rng), addr(rng));
            Reply::Task(Assigned { uid, jid, owner, ticket, switch_id, queue, task: task(rng) })
        } else {
            Reply::NoOp { answer: one_of(rng, Answer::ALL), ticket, switch_id }
        };
        reply.put(&mut out).unwrap();
        assert_eq!(Reply::parse(&padded(rng, &out)).unwrap(), (asker, reply));
        corrupt(rng, &out);
    }
}

#[test]
fn rare_messages_survive_the_wire() {
    fn survives<M: Message + PartialEq + std::fmt::Debug>(rng: &mut Rng, message: &M) {
        let mut out = Vec::new();
        message.emit(&mut out);
        assert_eq!(M::parse(&padded(rng, &out)).as_ref(), Ok(message));
        corrupt(rng, &out);
    }
    let rng = &mut Rng::new(SEED);
    for _ in 0..ROUNDS {
        let message = membership(rng);
        survives(rng, &message);
        let (epoch, from, asked_at) = (word(rng), short(rng), number(rng));
        survives(rng, &LeaseMessage::Request { epoch, from, asked_at });
        survives(rng, &LeaseMessage::Grant { epoch, from, asked_at });
        survives(rng, &LeaseMessage::Release { from, incarnation: asked_at });
        let message = copy(rng);
        survives(rng, &message);
        let message = view(rng);
        survives(rng, &message);
        let message = about_a_task(rng);
        survives(rng, &message);
        let message = of_a_session(rng);
        survives(rng, &message);
    }
}

#[test]
fn records_survive_one_behind_the_other() {
    let rng = &mut Rng::new(SEED);
    for _ in 0..ROUNDS {
        let (command, reply) = (bytes(rng, 300), bytes(rng, 300));
        let record = Record {
            position: Position(number(rng)),
            hash: 0,
            epoch: Epoch(word(rng)),
            flags: Flags(short(rng)),
            low_delta: short(rng),
            seq: Seq::from_u64(number(rng)),
            session: SessionId(number(rng)),
            request: RequestNumber(number(rng)),
            now_ms: number(rng),
            obj_id: ObjectId(word(rng)),
            further: further(rng),
            after_delta: short(rng),
            attempt: short(rng),
            client: addr(rng),
            refused: one_of(rng, Status::ALL),
            command: &command,
            reply: &reply,
        };
        let mut two = Vec::new();
        let hash = record.emit(7, &mut two);
        let length = two.len();
        let again = record.emit(hash, &mut two);
        let (first, rest) = Record::split_first(&two).unwrap();
        assert_eq!((first.len(), rest.len()), (length, length));
        assert_eq!(Record::parse(first).unwrap(), Record { hash, ..record });
        assert_eq!(Record::parse(rest).unwrap(), Record { hash: again, ..record });
        corrupt(rng, first);
    }
}

#[test]
fn random_bytes_behind_a_right_header_are_no_panic() {
    let rng = &mut Rng::new(SEED);
    for _ in 0..20 * ROUNDS {
        let header = Header {
            group: GroupId(short(rng)),
            node: NodeId(short(rng)),
            epoch: Epoch(word(rng)),
            ..Header::new(one_of(rng, Kind::ALL), rng.below(40) as u8)
        };
        let body = bytes(rng, 200);
        let mut packet = header.bytes(COMMON_BYTES + body.len()).to_vec();
        packet.extend_from_slice(&body);
        read(&packet);
        packet[at::LENGTH].fill(rng.below(256) as u8);
        read(&packet);
        read(&body);
    }
}
