//! Queues (`--queues`): producers push elements, each once; workers take them by BLPOP, BRPOP and
//! BLMOVE, and die now and then with a pending pop. Each element goes to one worker, with the
//! documented exception: one that is popped for a client that is gone is lost. An element that is
//! moved is not lost: a worker's successor finds it in the worker's list.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use concord_check::Reply;
use concord_core::Rng;
use concord_runtime::{Context, Error};

use super::resp::{Command, Link, is_passing, words};
use super::taken::{LostPop, Push, Pushed, Seen, Taken, Way, Wrong, judge};
use super::{RETRY_PAUSE, TOO_LITTLE, TortureArgs};

/// The maximum number of queues.
pub(super) const QUEUES_MAX: u64 = 64;
/// The number of queues that a worker waits for at once.
const WATCHED: u64 = 3;
/// The mean number of pops after which a worker dies.
const POPS_OF_AN_INCARNATION: u64 = 400;
/// The maximum time after it was given up in which a pop may still be executed.
const LATE: Duration = Duration::from_secs(6);

struct Queues<'a> {
    args: &'a TortureArgs,
    queues: u64,
    ends_at: Option<Instant>,
    timeout: Duration,
    begun: AtomicU64,
    began: Instant,
    /// Whether everything was pushed.
    is_over: AtomicBool,
    /// The time at which the workers end even if queues are not empty: a reply may take as long,
    /// and so may all of them.
    drains_until: Mutex<Option<Instant>>,
    broken: AtomicU64,
    lost: AtomicU64,
    seen: Mutex<Seen>,
}

/// A connection that is replaced, by one to the next target, when it breaks.
struct Client<'a> {
    of: &'a Queues<'a>,
    target: usize,
    link: Option<Link>,
}

impl Client<'_> {
    /// The connection; `None` if no target has answered for long.
    fn link(&mut self) -> Option<&mut Link> {
        let since = Instant::now();
        while self.link.is_none() {
            let targets = &self.of.args.target;
            match Link::open(targets[self.target % targets.len()], self.of.timeout) {
                Ok(open) => self.link = Some(open),
                Err(_) if since.elapsed() >= self.of.timeout => {
                    self.of.lost.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                Err(_) => {
                    self.target += 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
        self.link.as_mut()
    }

    fn leave(&mut self) {
        self.link = None;
        self.target += 1;
    }

    /// Executes a command; an error if the connection broke, or no target is left.
    fn call(&mut self, command: &Command) -> std::io::Result<Reply> {
        let Some(link) = self.link() else {
            return Err(std::io::ErrorKind::NotConnected.into());
        };
        let reply = link.call(command);
        match &reply {
            Ok(Reply::Error(text)) => self.of.note_error(text),
            Ok(_) => {}
            Err(_) => {
                self.of.broken.fetch_add(1, Ordering::Relaxed);
                self.leave();
            }
        }
        reply
    }

    /// Whether no target answers any more.
    fn is_lost(&self) -> bool {
        self.of.lost.load(Ordering::Relaxed) > 0
    }
}

impl Queues<'_> {
    fn queue(&self, n: u64) -> String {
        format!("{}queue:{n}", self.args.prefix)
    }

    /// The list of the elements that a worker has taken and not handled.
    fn own(&self, worker: u64) -> String {
        format!("{}worker:{worker}", self.args.prefix)
    }

    fn with_seen(&self, note: impl FnOnce(&mut Seen)) {
        note(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note_error(&self, text: &str) {
        let kind = text.split(' ').next().unwrap_or_default().to_string();
        self.with_seen(|seen| *seen.errors.entry(kind).or_default() += 1);
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Whether the workers have had all of their time.
    fn is_late(&self) -> bool {
        let until = *self.drains_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() >= until)
    }

    fn client(&self, index: u64) -> Client<'_> {
        Client { of: self, target: index as usize, link: None }
    }

    fn produce(&self, index: u64) {
        let mut rng = Rng::new(self.args.seed.wrapping_mul(1_000_003) ^ index);
        let mut client = self.client(index);
        let mut number = 0_u64;
        let is_late = || self.ends_at.is_some_and(|end| Instant::now() >= end);
        while self.begun.fetch_add(1, Ordering::Relaxed) < self.args.ops && !is_late() {
            let element = format!("{index}-{number}");
            number += 1;
            let number_of_queue = rng.below(self.queues);
            let (queue, call_ns) = (self.queue(number_of_queue), self.now_ns());
            let became = match client.call(&words(&["RPUSH", &queue, &element])) {
                Ok(Reply::Error(text)) if text.starts_with("UNKNOWN") => Pushed::Unknown,
                Ok(Reply::Error(_)) => Pushed::Refused,
                Ok(_) => Pushed::Done,
                Err(_) if client.is_lost() => return,
                Err(_) => Pushed::Unknown,
            };
            self.with_seen(|seen| {
                let push = Push { became, queue: number_of_queue, call_ns };
                seen.pushed.insert(element, push);
            });
            if number.is_multiple_of(64) {
                // The workers catch up, and wait.
                std::thread::sleep(Duration::from_millis(rng.below(10)));
            }
        }
    }

    fn work(&self, worker: u64) {
        let mut rng = Rng::new(self.args.seed.wrapping_mul(1_000_003) ^ worker << 32);
        let mut worker = Worker {
            index: worker,
            way: [Way::First, Way::Moved, Way::Last, Way::Moved][worker as usize % 4],
            client: self.client(worker),
            taken: Vec::new(),
            own: BTreeSet::new(),
            unknown: Vec::new(),
            moves_unknown: 0,
            died: 0,
        };
        while worker.step(&mut rng) {}
        self.with_seen(|seen| {
            seen.taken.push(worker.taken);
            seen.unknown.extend(worker.unknown);
            seen.moves_unknown += worker.moves_unknown;
            seen.died += worker.died;
        });
    }
}

/// A worker, which takes elements.
struct Worker<'a> {
    index: u64,
    way: Way,
    client: Client<'a>,
    taken: Vec<Taken>,
    /// The elements that were in its own list.
    own: BTreeSet<String>,
    unknown: Vec<LostPop>,
    moves_unknown: u64,
    died: u64,
}

impl Worker<'_> {
    /// Draws a pop, with the queues from which it may take an element.
    fn pop(&self, rng: &mut Rng) -> (Command, Vec<u64>) {
        let of = self.client.of;
        let first = rng.below(of.queues);
        let timeout = ["0.2", "0.5", "1"][rng.below(3) as usize];
        let name = match self.way {
            Way::First => "BLPOP",
            Way::Last => "BRPOP",
            Way::Moved => {
                let (queue, own) = (of.queue(first), of.own(self.index));
                let command = words(&["BLMOVE", &queue, &own, "LEFT", "RIGHT", timeout]);
                return (command, vec![first]);
            }
        };
        let mut command = words(&[name]);
        let count = 1 + rng.below(WATCHED.min(of.queues));
        let queues: Vec<u64> = (0..count).map(|n| (first + n) % of.queues).collect();
        command.extend(queues.iter().map(|n| of.queue(*n).into_bytes()));
        command.push(timeout.into());
        (command, queues)
    }

    /// Executes one pop; returns `false` once nothing is left to do.
    fn step(&mut self, rng: &mut Rng) -> bool {
        let was_over = self.client.of.is_over.load(Ordering::Relaxed);
        if was_over && self.client.of.is_late() {
            return false;
        }
        if self.way == Way::Moved && self.client.link.is_none() && !self.take_over() {
            return !self.client.is_lost();
        }
        let (command, queues) = self.pop(rng);
        if !was_over && rng.below(POPS_OF_AN_INCARNATION) == 0 {
            if let Some(link) = self.client.link() {
                // The worker dies, and nobody reads the reply.
                let _ = link.send(&[command]);
                self.died += 1;
                self.note_unknown(queues);
                self.client.leave();
            }
            return true;
        }
        match self.client.call(&command) {
            Ok(Reply::Nil) if was_over => return !self.is_empty(),
            Ok(Reply::Error(text)) if text.starts_with("UNKNOWN") => self.note_unknown(queues),
            Ok(Reply::Array(items)) => {
                if let [Reply::Bulk(key), Reply::Bulk(element)] = &items[..] {
                    self.take(&text(key), text(element));
                }
            }
            Ok(Reply::Bulk(element)) => {
                let element = text(&element);
                self.deal_with(element, &text(&command[1]));
            }
            Ok(Reply::Error(_)) => std::thread::sleep(RETRY_PAUSE),
            Ok(_) => {}
            Err(_) if self.client.is_lost() => return false,
            Err(_) => self.note_unknown(queues),
        }
        true
    }

    /// Whether all queues are empty.
    fn is_empty(&mut self) -> bool {
        let of = self.client.of;
        (0..of.queues)
            .all(|n| matches!(self.client.call(&words(&["LLEN", &of.queue(n)])), Ok(Reply::Int(0))))
    }

    fn note_unknown(&mut self, queues: Vec<u64>) {
        let until_ns = self.client.of.now_ns() + LATE.as_nanos() as u64;
        match self.way {
            Way::First | Way::Last => self.unknown.push(LostPop { queues, until_ns }),
            Way::Moved => self.moves_unknown += 1,
        }
    }

    fn take(&mut self, queue: &str, element: String) {
        let number = queue.rsplit(':').next().and_then(|n| n.parse().ok());
        self.taken.push(Taken { queue: number.unwrap_or(u64::MAX), element, way: self.way });
    }

    /// Handles an element that has come into its own list.
    fn deal_with(&mut self, element: String, queue: &str) {
        let own = self.client.of.own(self.index);
        let _ = self.client.call(&words(&["LREM", &own, "1", &element]));
        self.own.insert(element.clone());
        self.take(queue, element);
    }

    /// Takes over the elements that its predecessor had taken and not handled; returns `false` if
    /// they could not be read.
    fn take_over(&mut self) -> bool {
        let own = self.client.of.own(self.index);
        let Ok(Reply::Array(items)) = self.client.call(&words(&["LRANGE", &own, "0", "-1"])) else {
            return false;
        };
        for item in &items {
            let Reply::Bulk(element) = item else { continue };
            let element = text(element);
            let _ = self.client.call(&words(&["LREM", &own, "1", &element]));
            // It does not take again what it was told of before.
            if self.own.insert(element.clone()) {
                self.take("", element);
            }
        }
        true
    }
}

impl Queues<'_> {
    /// Reads the elements left in queues and in the workers' lists, some of which the workers know.
    fn drain(&self, workers: std::ops::Range<u64>) -> Result<(), Error> {
        let mut client = self.client(0);
        let (since, mut found) = (Instant::now(), Vec::new());
        let lists = (0..self.queues).map(|n| self.queue(n));
        for list in lists.chain(workers.map(|worker| self.own(worker))) {
            let items = loop {
                match client.call(&words(&["LRANGE", &list, "0", "-1"])) {
                    Ok(Reply::Array(items)) => break items,
                    Ok(Reply::Error(error)) if !is_passing(&error) => {
                        return Err(Error::new(format!("cannot look at {list}: {error}")));
                    }
                    other if since.elapsed() >= 2 * self.timeout => {
                        return Err(Error::new(format!("cannot look at {list}: {other:?}")));
                    }
                    _ => std::thread::sleep(RETRY_PAUSE),
                }
            };
            found.extend(items.into_iter().map(|item| (list.clone(), item)));
        }
        self.with_seen(|seen| {
            // A worker that knows of an element that it moved, and not that it was removed, has it
            // once.
            let moved = seen.taken.iter().flatten().filter(|taken| taken.way == Way::Moved);
            let moved: BTreeSet<String> = moved.map(|taken| taken.element.clone()).collect();
            let worker = self.own(0);
            let is_own = |list: &str| list.starts_with(worker.trim_end_matches('0'));
            for (list, item) in found {
                let Reply::Bulk(element) = item else { continue };
                let element = text(&element);
                if !(is_own(&list) && moved.contains(&element)) {
                    seen.left.push(element);
                }
            }
        });
        Ok(())
    }
}

/// Runs producers and workers.
///
/// # Errors
/// If no target answers.
pub(super) fn run(args: &TortureArgs, queues: u64) -> Result<ExitCode, Error> {
    if args.clients < 2 {
        return Err(Error::new("--queues needs two clients: one pushes, one pops"));
    }
    let began = Instant::now();
    let of = Queues {
        args,
        queues,
        ends_at: args.duration.map(|seconds| began + Duration::from_secs(seconds)),
        timeout: Duration::from_secs(args.timeout),
        begun: AtomicU64::new(0),
        began,
        is_over: AtomicBool::new(false),
        drains_until: Mutex::new(None),
        broken: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        seen: Mutex::default(),
    };
    let (first_worker, clients) = (args.clients / 2, args.clients);
    prepare(&of, first_worker..clients)?;
    eprintln!("{first_worker} producers, {} workers, {queues} queues", clients - first_worker);
    std::thread::scope(|scope| {
        let of = &of;
        for worker in first_worker..clients {
            scope.spawn(move || of.work(worker));
        }
        let producers: Vec<_> =
            (0..first_worker).map(|index| scope.spawn(move || of.produce(index))).collect();
        // If one of them panics, the run ends at the end of the scope.
        producers.into_iter().for_each(|producer| drop(producer.join()));
        *of.drains_until.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + of.timeout);
        of.is_over.store(true, Ordering::Relaxed);
    });
    let seconds = began.elapsed().as_secs_f64();
    if of.broken.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(LATE);
    }
    if let Err(error) = of.drain(first_worker..clients) {
        eprintln!("concord: {error}");
        of.with_seen(|seen| seen.is_left_unknown = true);
    }
    let (lost, broken) = (of.lost.into_inner(), of.broken.into_inner());
    let seen = of.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let wrong = judge(&seen);
    print(args, &seen, &wrong, (seconds, broken, lost));
    Ok(match (wrong.is_any(), lost) {
        (true, _) => ExitCode::FAILURE,
        (false, 0) if is_too_little(&seen) => ExitCode::from(TOO_LITTLE),
        // A run that ended early for want of a target proves too little.
        (false, 1..) => ExitCode::from(2),
        (false, 0) => ExitCode::SUCCESS,
    })
}

/// Empties the queues and the workers' lists.
fn prepare(of: &Queues<'_>, workers: std::ops::Range<u64>) -> Result<(), Error> {
    let target = of.args.target[0];
    let mut link = Link::open(target, of.timeout).cannot(format!("connect to {target}"))?;
    let lists = (0..of.queues).map(|n| of.queue(n)).chain(workers.map(|worker| of.own(worker)));
    for list in lists {
        let reply = link.call(&words(&["DEL", &list])).cannot(format!("use {target}"))?;
        if let Reply::Error(error) = reply {
            return Err(Error::new(format!("{target} refuses DEL: {error}")));
        }
    }
    Ok(())
}

/// The number of elements whose pushes were acknowledged and that a worker took; 0 if the elements
/// left are not known.
fn judged(seen: &Seen) -> usize {
    let is_done =
        |element: &str| seen.pushed.get(element).is_some_and(|push| push.became == Pushed::Done);
    let taken = seen.taken.iter().flatten().filter(|taken| is_done(&taken.element)).count();
    if seen.is_left_unknown { 0 } else { taken }
}

fn is_too_little(seen: &Seen) -> bool {
    concord_check::is_too_little(judged(seen), seen.pushed.len())
}

fn print(args: &TortureArgs, seen: &Seen, wrong: &Wrong, (seconds, broken, lost): (f64, u64, u64)) {
    let of = |way| seen.taken.iter().flatten().filter(|taken| taken.way == way).count();
    let pushed = |became| seen.pushed.values().filter(|push| push.became == became).count();
    let (first, last, moved) = (of(Way::First), of(Way::Last), of(Way::Moved));
    if args.json {
        let json = serde_json::json!({
            "verdict": match (wrong.is_any(), is_too_little(seen)) {
                (true, _) => "violation",
                (false, true) => "too little was judged",
                (false, false) => "ok",
            },
            "issued": seen.pushed.len(),
            "judged": judged(seen),
            "refused": pushed(Pushed::Refused),
            "pushed": pushed(Pushed::Done),
            "pushes_unknown": pushed(Pushed::Unknown),
            "blpop": first,
            "brpop": last,
            "blmove": moved,
            "left": seen.left.len(),
            "pops_unknown": seen.unknown.len(),
            "moves_unknown": seen.moves_unknown,
            "workers_died": seen.died,
            "twice": wrong.twice,
            "from_nowhere": wrong.from_nowhere,
            "lost": wrong.lost,
            "out_of_order": wrong.out_of_order,
            "seed": args.seed,
            "clients": args.clients,
            "errors": seen.errors,
            "connections_broken": broken,
            "clients_lost": lost,
        });
        return println!("{json}");
    }
    println!(
        "{} elements pushed, {first} taken by BLPOP, {last} by BRPOP, {moved} by BLMOVE in {seconds:.1} s, {broken} connections broken, {} workers died",
        pushed(Pushed::Done),
        seen.died,
    );
    for (kind, count) in &seen.errors {
        println!("  {count:>8} x {kind}");
    }
    let lists = [
        ("went to several workers", &wrong.twice),
        ("came from nowhere", &wrong.from_nowhere),
        ("went to nobody", &wrong.lost),
        ("were popped out of order", &wrong.out_of_order),
    ];
    for (what, elements) in lists {
        if let Some(first) = elements.first() {
            println!("{} elements {what}, {first} for example", elements.len());
        }
    }
    println!(
        "{} elements issued, {} judged, {} refused, {} of unknown outcome",
        seen.pushed.len(),
        judged(seen),
        pushed(Pushed::Refused),
        pushed(Pushed::Unknown)
    );
    if !wrong.is_any() && is_too_little(seen) {
        println!("TOO LITTLE WAS JUDGED");
    } else if !wrong.is_any() {
        println!(
            "each element went to one worker, but for at most {} pops that nobody heard of",
            seen.unknown.len()
        );
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
