//! Copies in pieces beside writes, keys that are copied early, and scripts that are undone: each
//! piece is as of the point at which its object was begun.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use concord_core::rng::Rng;

use crate::backend::{Backend, Submitted};
use crate::command::{Command, CommandBuf};
use crate::copy::{Copied, Object, PLACE_EARLY, PLACE_END, place_of_cursor, place_of_key};
use crate::databases;
use crate::memory::{Memory, dump};
use crate::ttl::step_of;
use crate::{Class, Context};

/// About how many bytes a piece has.
const PIECE_BYTES: usize = 300;
const KEYS: u64 = 9;

/// What keys held at one point.
type Point = BTreeMap<String, u64>;

fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).map(|n| format!("k{n}"))
}

fn point(source: &Memory) -> Point {
    keys().map(|key| (key.clone(), dump::digest(&source.store, key.as_bytes()))).collect()
}

fn run(memory: &mut Memory, line: &str, entropy: u64) {
    let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let several = matches!(args[0], b"RENAME" | b"COPY" | b"FLUSHALL" | b"XREADGROUP" | b"XGROUP");
    let key_index = u8::from(!several);
    let bytes = CommandBuf::new().encode(key_index, args.iter().copied()).to_vec();
    let commands = [Command::parse(&bytes).unwrap()];
    let step = step_of(Class::Write, commands[0].key(), &commands);
    let context = Context { now_ms: 1_000, entropy, position: 1, ..Context::default() };
    memory.submit(&context, &step, &mut Vec::new());
}

/// A write, and the keys that it touches.
fn write(rng: &mut Rng) -> (String, Vec<String>) {
    let [n, other, m, v] = [KEYS, KEYS, 300, 900].map(|max| rng.below(max));
    let (key, other) = (format!("k{n}"), format!("k{other}"));
    // What takes all of a key away is rarer: keys are to be large.
    let kinds = if rng.chance(1, 5) { 26 } else { 20 };
    let one = match rng.below(kinds) {
        0..=2 => format!("HSET {key} f{m} {v} g{v} {m}"),
        3 | 4 => format!("RPUSH {key} a{v} b{v} c{v}"),
        5 => format!("LPOP {key}"),
        6 | 7 => format!("SADD {key} m{m} x{v}"),
        8 => format!("SPOP {key}"),
        9..=11 => format!("ZADD {key} {v} m{m}"),
        12 => format!("APPEND {key} piece{v}"),
        13 | 14 => format!("XADD {key} * f {v}"),
        15 => format!("HDEL {key} f{m}"),
        16 => format!("SETRANGE {key} {m} xyz"),
        17 => format!("LREM {key} 1 a{v}"),
        18 => format!("XGROUP CREATE {key} g{} 0", m % 3),
        19 => format!("XREADGROUP GROUP g{} c{} COUNT 9 STREAMS {key} >", m % 3, v % 5),
        20 => format!("SET {key} instead"),
        21 => format!("DEL {key}"),
        22 | 23 => return (format!("RENAME {key} {other}"), vec![key, other]),
        _ => return (format!("COPY {key} {other} REPLACE"), vec![key, other]),
    };
    (one, vec![key])
}

/// Large keys of each type.
fn fill(source: &mut Memory, rng: &mut Rng) {
    for n in 0..KEYS {
        for m in 0..120 {
            let v = rng.below(900);
            let line = match n % 6 {
                0 => format!("HSET k{n} f{m} {v}"),
                1 => format!("RPUSH k{n} a{v} b{m}"),
                2 => format!("SADD k{n} m{m}"),
                3 => format!("ZADD k{n} {v} m{m}"),
                4 => format!("APPEND k{n} piece{v}"),
                _ => format!("XADD k{n} * f {v}"),
            };
            run(source, &line, v);
        }
    }
}

/// One that copies: it executes nothing, so that what it holds is what it was given last.
struct Copier {
    target: Memory,
    /// What comes next.
    cursor: u64,
    /// Objects of which pieces are here: the cursor of the rest, what they were, and whether they
    /// were copied early.
    rest: Option<(u64, Point, bool)>,
    /// What was copied early and is not here yet: the copied, and what it was.
    early: VecDeque<(Copied, Point)>,
    pieces: u32,
    whole: u32,
}

impl Copier {
    fn begin() -> Copier {
        let (target, early) = (Memory::new(0), VecDeque::new());
        Copier { target, cursor: 0, rest: None, early, pieces: 0, whole: 0 }
    }

    fn install(&mut self, copied: &Copied) {
        let objects: Vec<Object<'_>> = copied
            .pieces()
            .map(|(key, value, piece)| Object { key, value, deadline_ms: 0, piece })
            .collect();
        assert!(matches!(self.target.install(&objects), Ok(Submitted::Done(_))));
    }

    /// All of these keys are here, as they were.
    fn check(&mut self, point: &Point, is_here: impl Fn(&str) -> bool) {
        for (key, was) in point.iter().filter(|(key, was)| **was != 0 && is_here(key)) {
            let is = dump::digest(&self.target.store, key.as_bytes());
            assert_eq!(is, *was, "{key}");
            self.whole += 1;
        }
    }

    fn take(&mut self, copied: &Copied, was: Point, is_early: bool) {
        self.install(copied);
        let (from, next) = (place_of_cursor(self.cursor), copied.next);
        if next != place_of_cursor(next) {
            self.rest = Some((next, was, is_early));
            return;
        }
        self.rest = None;
        if is_early {
            return self.check(&was, |_| true);
        }
        self.cursor = next;
        let here = from..next;
        self.check(&was, |key| here.contains(&place_of_key(key.as_bytes())));
    }

    /// The next part.
    fn step(&mut self, source: &mut Memory) {
        if let Some((cursor, was, is_early)) = self.rest.take() {
            let copied = source.copy(cursor, PIECE_BYTES).unwrap();
            if !copied.continues {
                // All keys were gone meanwhile.
                *self = Copier { pieces: self.pieces, whole: self.whole, ..Copier::begin() };
                return;
            }
            self.pieces += 1;
            return self.take(&copied, was, is_early);
        }
        if let Some((copied, was)) = self.early.pop_front() {
            return self.take(&copied, was, true);
        }
        let was = point(source);
        let copied = source.copy(self.cursor, PIECE_BYTES).unwrap();
        assert!(!copied.continues);
        self.take(&copied, was, false);
    }
}

/// These keys are copied early, for all.
fn copy_early(source: &mut Memory, copiers: &mut [Copier], keys: &[String]) {
    let keys = if keys.len() == 2 && keys[0] == keys[1] { &keys[..1] } else { keys };
    let names: Vec<Vec<u8>> = keys.iter().map(|key| key.clone().into_bytes()).collect();
    let was: Point = point(source).into_iter().filter(|(key, _)| keys.contains(key)).collect();
    let copied = source.copy_keys(&names, (PIECE_BYTES, PIECE_BYTES), PLACE_EARLY).unwrap();
    for copier in copiers.iter_mut() {
        let next = match copied.next == PLACE_EARLY {
            true => PLACE_EARLY,
            false => source.fork_copy(copied.next),
        };
        let mut own = copied.clone();
        own.next = next;
        copier.early.push_back((own, was.clone()));
    }
    source.release_copy(copied.next);
}

/// A script that touches keys, each of which is copied early before, and is undone or not.
fn script(source: &mut Memory, copiers: &mut [Copier], rng: &mut Rng) {
    let (before, stays) = (source.digest(), rng.chance(1, 2));
    source.begin_script();
    source.begin_undo(true);
    let mut touched = BTreeSet::new();
    for _ in 0..=rng.below(8) {
        let (line, keys) = match rng.below(60) {
            0 => ("FLUSHALL".to_string(), vec![]),
            _ => write(rng),
        };
        // Before the script touches them for the first time.
        let is_new = keys.iter().all(|key| !touched.contains(key));
        if is_new && rng.chance(1, 3) {
            copy_early(source, copiers, &keys);
        }
        touched.extend(if keys.is_empty() { self::keys().collect() } else { keys });
        run(source, &line, rng.next_u64());
    }
    source.end_undo(stays);
    source.end_script(Class::Write, &mut Vec::new());
    assert!(stays || source.digest() == before, "a script that was undone");
}

/// An object is copied as of one point, whatever is written, copied early, or undone while its
/// pieces are made, and whoever else copies.
#[test]
fn bug_22_1_pieces_are_of_one_point_beside_undone_scripts() {
    let (mut pieces, mut whole) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut source = Memory::new(0);
        fill(&mut source, &mut rng);
        let mut copiers = [Copier::begin(), Copier::begin()];
        for _ in 0..600 {
            match rng.below(20) {
                0 => {
                    let (_, keys) = write(&mut rng);
                    copy_early(&mut source, &mut copiers, &keys);
                }
                1 | 2 => script(&mut source, &mut copiers, &mut rng),
                3 if rng.chance(1, 30) => {
                    run(&mut source, "FLUSHALL", 0);
                    fill(&mut source, &mut rng);
                }
                3..=8 => run(&mut source, &write(&mut rng).0, rng.next_u64()),
                _ => {
                    let index = usize::from(rng.chance(1, 3));
                    copiers[index].step(&mut source);
                    if copiers[index].cursor == PLACE_END {
                        pieces += copiers[index].pieces;
                        whole += copiers[index].whole;
                        copiers[index] = Copier::begin();
                    }
                }
            }
        }
        source.end_copy();
    }
    assert!(pieces > 3_000 && whole > 1_000, "{pieces} pieces of {whole} objects");
}

/// A key that a flush of its database deleted while it was copied is in nobody's way: a write to it
/// and to another key that is copied gets ready.
#[test]
fn bug_22_160_a_write_to_a_flushed_key_gets_ready() {
    let other = databases::stored(1, b"c").into_owned();
    let (a, b): (&[u8], &[u8]) = (b"a", b"b");
    let mut source = Memory::new(0).with_ready_bytes(PIECE_BYTES);
    let begin = |source: &mut Memory, key: &[u8]| {
        source.store.set_string(key, &vec![b'v'; 10 * PIECE_BYTES]);
        let copied = source.copy_keys(&[key.to_vec()], (PIECE_BYTES, PIECE_BYTES), PLACE_EARLY);
        assert_ne!(copied.unwrap().next, PLACE_EARLY, "in pieces");
    };
    begin(&mut source, a);
    begin(&mut source, &other);
    source.store.clear_database(0);
    begin(&mut source, b);
    assert!((0..100).any(|_| source.make_ready(&[a, b])));
}
