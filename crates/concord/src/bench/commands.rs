//! `concord bench commands`: commands of applications beyond SET and GET, with a rack of each
//! engine and with one redis-server, in one run. The ratio of each command to SET or GET shows what
//! it costs more here than there.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use concord_runtime::{Context, Error};

use super::load::check_stop;
use super::peers::benchmark_of;
use super::rig::{Rig, Shape};
use super::ycsb::{installed, redis_server};
use crate::results::{Results, Table, load_average, median, spread};
use crate::systems::store::{Engine, Protocol};

/// The number of keys from which commands choose.
const KEYS: u64 = 100_000;
/// The number of keys of an MSET and an MGET.
const TOGETHER: usize = 8;
/// The number of clients that wait for elements.
const WAITING: usize = 16;
/// The number of clients that have subscribed.
const SUBSCRIBERS: usize = 50;
/// The maximum time to wait for what was pushed or published.
const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 64 << 10;

/// A script that takes a lock, and releases it if it is the holder's.
const LOCK: &str = "if redis.call('set',KEYS[1],ARGV[1],'NX','PX',30000) and redis.call('get',KEYS[1])==ARGV[1] \
                    then return redis.call('del',KEYS[1]) else return 0 end";
const ELEMENT: &str = "0123456789abcdef";

/// `concord bench commands`.
#[derive(Args, Clone, Debug)]
pub struct CommandsArgs {
    /// Number of runs of each command, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Number of replicas of the racks
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub replicas: u16,
    /// Number of requests in each run; half as many messages are published
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub requests: u64,
}

/// A measured command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Get,
    Set,
    MGet,
    MSet,
    Lock,
    Lists,
    Messages,
}

impl What {
    const ALL: [What; 7] =
        [What::Set, What::Get, What::MSet, What::MGet, What::Lock, What::Lists, What::Messages];

    fn name(self) -> &'static str {
        match self {
            What::Get => "GET",
            What::Set => "SET",
            What::MGet => "MGET of 8 keys",
            What::MSet => "MSET of 8 keys",
            What::Lock => "EVAL of a lock",
            What::Lists => "LPUSH beside BRPOP",
            What::Messages => "PUBLISH to 50",
        }
    }

    /// Whether it is compared with GET, as a read; all others are compared with SET.
    fn is_read(self) -> bool {
        matches!(self, What::Get | What::MGet)
    }

    /// Measures its rate per second.
    fn measure(self, listen: SocketAddr, requests: u64) -> Result<f64, Error> {
        let run = |words: &[String], requests| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            benchmark_of(Some(KEYS), listen, &words, 1, requests)
        };
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let key = "key:__rand_int__";
        match self {
            What::Get => run(&words(&["GET", key]), requests),
            What::Set => run(&words(&["SET", key, ELEMENT]), requests),
            What::MGet => run(&words(&[&["MGET"][..], &[key; TOGETHER]].concat()), requests),
            What::MSet => run(
                &words(&[&["MSET"][..], &[[key, ELEMENT]; TOGETHER].concat()].concat()),
                requests,
            ),
            What::Lock => run(&words(&["EVAL", LOCK, "1", "lock:__rand_int__", ELEMENT]), requests),
            What::Lists => {
                let push = || run(&words(&["LPUSH", "list", ELEMENT]), requests);
                beside(requests, push, |taken| wait_for_elements(listen, requests, taken), WAITING)
            }
            What::Messages => {
                let published = requests / 2;
                let all = published * SUBSCRIBERS as u64;
                let publish = || run(&words(&["PUBLISH", "channel", ELEMENT]), published);
                let rate = beside(all, publish, |taken| hear(listen, all, taken), SUBSCRIBERS)?;
                Ok(rate / SUBSCRIBERS as f64)
            }
        }
    }
}

/// The rate per second at which `takers` clients take everything that `give` gives, from when all
/// of them are ready to the last element.
fn beside(
    all: u64,
    give: impl FnOnce() -> Result<f64, Error>,
    take: impl Fn(&Taken) -> Result<(), Error> + Sync,
    takers: usize,
) -> Result<f64, Error> {
    let taken = Taken::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..takers).map(|_| scope.spawn(|| take(&taken))).collect();
        let there = until(|| taken.ready.load(Ordering::Relaxed) == takers as u64);
        let began = Instant::now();
        let given = there.and_then(|()| give());
        let given = given.and_then(|_| until(|| taken.count() >= all));
        let took = began.elapsed().as_secs_f64();
        // Nobody waits for elements that will not come.
        taken.count.fetch_max(all, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap_or_else(|_| Err(Error::new("a client ended")))?;
        }
        given.map(|()| all as f64 / took)
    })
}

/// The number of elements taken, and of takers that are ready.
#[derive(Default)]
struct Taken {
    ready: AtomicU64,
    count: AtomicU64,
}

impl Taken {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, count: u64) {
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    fn is_there(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }
}

fn until(is_so: impl Fn() -> bool) -> Result<(), Error> {
    let began = Instant::now();
    while !is_so() {
        check_stop()?;
        if began.elapsed() > WAIT_MAX {
            return Err(Error::new("what was sent has not come in a minute"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// A connection that reads replies of a known length.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn open(listen: SocketAddr) -> Result<Client, Error> {
        let stream = TcpStream::connect(listen).cannot(format!("connect to {listen}"))?;
        stream.set_nodelay(true).cannot("set up a connection")?;
        stream.set_read_timeout(Some(LOOK)).cannot("set up a connection")?;
        Ok(Client { stream, buffer: vec![0; READ_BYTES] })
    }

    fn send(&mut self, words: &[&str]) -> Result<(), Error> {
        let mut text = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| text += &format!("${}\r\n{word}\r\n", word.len()));
        self.stream.write_all(text.as_bytes()).cannot("send")
    }

    /// Reads; returns the number of bytes, 0 if none arrived for a while.
    fn read(&mut self) -> Result<usize, Error> {
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err(Error::new("the server closed a connection")),
            Ok(count) => Ok(count),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(0),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e).cannot("receive"),
        }
    }

    /// Waits for this number of bytes.
    fn expect(&mut self, bytes: usize) -> Result<(), Error> {
        let (began, mut came) = (Instant::now(), 0);
        while came < bytes {
            came += self.read()?;
            if began.elapsed() > WAIT_MAX {
                return Err(Error::new("the server says nothing any more"));
            }
        }
        Ok(())
    }
}

/// Takes elements of the list, one after the other, until all are taken.
fn wait_for_elements(listen: SocketAddr, all: u64, taken: &Taken) -> Result<(), Error> {
    let mut client = Client::open(listen)?;
    taken.is_there();
    let popped = format!("*2\r\n$4\r\nlist\r\n${}\r\n{ELEMENT}\r\n", ELEMENT.len());
    while taken.count() < all {
        check_stop()?;
        client.send(&["BRPOP", "list", "0.5"])?;
        let mut came = 0;
        // `*-1` is shorter than the reply to a pop.
        loop {
            came += client.read()?;
            if came == popped.len() {
                taken.add(1);
                break;
            }
            if came > 0 && client.buffer.starts_with(b"*-1\r\n") {
                break;
            }
            if client.buffer.starts_with(b"-") && came > 0 {
                return Err(Error::new("BRPOP is refused"));
            }
        }
    }
    Ok(())
}

/// Subscribes, and receives messages until all subscribers have `all` of them.
fn hear(listen: SocketAddr, all: u64, taken: &Taken) -> Result<(), Error> {
    let mut client = Client::open(listen)?;
    let head = |kind: &str| format!("*3\r\n${}\r\n{kind}\r\n$7\r\nchannel\r\n", kind.len());
    client.send(&["SUBSCRIBE", "channel"])?;
    client.expect(head("subscribe").len() + ":1\r\n".len())?;
    taken.is_there();
    let length = head("message").len() + format!("${}\r\n{ELEMENT}\r\n", ELEMENT.len()).len();
    let (mut bytes, mut counted) = (0, 0);
    while taken.count() < all {
        check_stop()?;
        bytes += client.read()?;
        let heard = (bytes / length) as u64;
        taken.add(heard - counted);
        counted = heard;
    }
    Ok(())
}

fn rack(args: &CommandsArgs, engine: Engine) -> Result<Rig, Error> {
    Rig::start(Shape { engine, ..Shape::new(Protocol::Chain, args.replicas) })
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &CommandsArgs, results: &Results) -> Result<(), Error> {
    for program in ["redis-server", "redis-benchmark"] {
        if !installed(program) {
            return Err(Error::new("install Debian's redis to compare with it"));
        }
    }
    let (redis, redis_listen) = redis_server()?;
    let memory = rack(args, Engine::Memory)?;
    let behind = rack(args, Engine::Redis)?;
    let sides = [
        ("redis-server", redis_listen),
        ("memory engine", memory.listen),
        ("Redis engine", behind.listen),
    ];
    let mut table = Table::new(&["command", "target", "repeat", "a second", "load avg"]);
    for (_, listen) in sides {
        What::Set.measure(listen, args.requests)?;
    }
    let mut rates = vec![[const { Vec::new() }; 3]; What::ALL.len()];
    for repeat in 0..args.repeats as usize {
        for (at, what) in What::ALL.into_iter().enumerate() {
            for rotation in 0..sides.len() {
                let side = (repeat + rotation) % sides.len();
                let (name, listen) = sides[side];
                let rate = what
                    .measure(listen, args.requests)
                    .map_err(|e| Error::new(format!("{}, {name}: {e}", what.name())))?;
                rates[at][side].push(rate);
                let (repeat, rate) = (repeat.to_string(), format!("{rate:.0}"));
                table.row(vec![what.name().into(), name.into(), repeat, rate, load_average()]);
                table.print_last();
            }
        }
    }
    drop((redis, memory, behind));
    let summary = summarise(&rates);
    summary.print();
    results.csv("commands", &table)?;
    results.csv("commands-summary", &summary)
}

fn summarise(rates: &[[Vec<f64>; 3]]) -> Table {
    let mut table = Table::new(&[
        "command",
        "redis-server",
        "memory engine",
        "Redis engine",
        "memory / redis-server",
        "Redis engine / redis-server",
        "memory: to that of SET or GET",
        "Redis engine: to that of SET or GET",
    ]);
    let ratio = |at: usize, side: usize| {
        let pairs = rates[at][side].iter().zip(&rates[at][0]).map(|(own, redis)| own / redis);
        pairs.collect::<Vec<f64>>()
    };
    for (at, what) in What::ALL.into_iter().enumerate() {
        let plain = if what.is_read() { What::Get } else { What::Set };
        let plain = What::ALL.iter().position(|other| *other == plain).unwrap_or(0);
        let to_plain =
            |side| format!("{:.2}", median(&ratio(at, side)) / median(&ratio(plain, side)));
        let mut cells = vec![what.name().to_string()];
        cells.extend(rates[at].iter().map(|rates| spread(rates, 0)));
        cells.extend((1..3).map(|side| spread(&ratio(at, side), 2)));
        cells.extend((1..3).map(to_plain));
        table.row(cells);
    }
    table
}
