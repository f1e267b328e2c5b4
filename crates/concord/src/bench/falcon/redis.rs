//! Lists of a redis-server, for comparison with the rack: tasks are pushed to one list and popped
//! by BRPOP, over a connection for each executor; results are pushed to another list.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use concord_core::Instant;
use concord_runtime::{Error, clock};

use super::line::Line;
use super::{Queue, Single, WINDOW};
use crate::bench::rig::{Process, Scratch};
use crate::bench::ycsb::redis_server;

/// The number of tasks in one LPUSH: that of a submission to the switch.
const TOGETHER: u32 = 16;

#[derive(Debug)]
struct Redis(Line);

impl Redis {
    fn say(&mut self, words: &[&[u8]]) {
        let output = &mut self.0.output;
        output.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            output.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            output.extend_from_slice(word);
            output.extend_from_slice(b"\r\n");
        }
    }

    /// Reads a number, the reply to LPUSH.
    fn number(&mut self) -> Result<(), Error> {
        let line = self.0.expect_line()?;
        if line.starts_with(':') { Ok(()) } else { Err(Error::new(format!("redis says {line}"))) }
    }

    /// Reads the strings of an array; `None` for a nil array.
    fn array(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let line = self.0.expect_line()?;
        let wrong = || Error::new(format!("redis says {line}"));
        if line == "*-1" || line == "$-1" {
            return Ok(None);
        }
        let count: usize = line.strip_prefix('*').and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        let mut strings = Vec::new();
        for _ in 0..count {
            let length = self.0.expect_line()?;
            let length = length.strip_prefix('$').and_then(|n| n.parse().ok());
            strings.push(self.0.bytes(length.ok_or_else(wrong)?)?);
        }
        Ok(Some(strings))
    }
}

/// A server, its executors, and the submitter.
#[derive(Debug)]
pub(super) struct Lists {
    /// The connection that pushes tasks, and the one that pops results.
    push: Redis,
    pop: Redis,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    is_over: Arc<AtomicBool>,
    _server: (Process, Scratch),
}

fn work(server: SocketAddr, is_over: &AtomicBool) -> Result<(), Error> {
    let mut redis = Redis(Line::open(server)?);
    redis.say(&[b"BRPOP", b"tasks", b"1"]);
    redis.0.flush()?;
    while !is_over.load(Ordering::Relaxed) {
        if redis.array()?.is_none() {
            redis.say(&[b"BRPOP", b"tasks", b"1"]);
            redis.0.flush()?;
            continue;
        }
        let started = clock::now().instant.0.to_be_bytes();
        // The result and the next request are sent together.
        redis.say(&[b"LPUSH", b"results", &started]);
        redis.say(&[b"BRPOP", b"tasks", b"1"]);
        redis.0.flush()?;
        redis.number()?;
    }
    Ok(())
}

impl Lists {
    pub(super) fn start(executors: u16) -> Result<Lists, Error> {
        let (server, listen) = redis_server()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for _ in 0..executors {
            let is_over = Arc::clone(&is_over);
            workers.push(std::thread::spawn(move || work(listen, &is_over)));
        }
        let (push, pop) = (Redis(Line::open(listen)?), Redis(Line::open(listen)?));
        Ok(Lists { push, pop, workers, is_over, _server: server })
    }
}

impl Queue for Lists {
    fn single(&mut self) -> Result<Single, Error> {
        self.pop.say(&[b"BRPOP", b"results", b"0"]);
        self.pop.0.flush()?;
        let began = clock::now().instant;
        self.push.say(&[b"LPUSH", b"tasks", b"0123456789abcdef"]);
        self.push.0.flush()?;
        let result = self.pop.array()?.unwrap_or_default();
        let now = clock::now().instant;
        self.push.number()?;
        let started = result.get(1).and_then(|bytes| bytes.first_chunk());
        let started = Instant(started.map_or(0, |bytes| u64::from_be_bytes(*bytes)));
        Ok(Single { start_ns: started.since(began), result_ns: now.since(began) })
    }

    fn many(&mut self, count: u32) -> Result<(), Error> {
        let (mut submitted, mut done) = (0, 0);
        let window = WINDOW.to_string();
        while done < count {
            let mut answers = 0;
            while submitted < count && submitted - done < WINDOW {
                let next = TOGETHER.min(count - submitted).min(WINDOW - (submitted - done));
                let mut words: Vec<&[u8]> = vec![b"LPUSH", b"tasks"];
                words.extend((0..next).map(|_| &b"0123456789abcdef"[..]));
                self.push.say(&words);
                (submitted, answers) = (submitted + next, answers + 1);
            }
            self.push.0.flush()?;
            for _ in 0..answers {
                self.push.number()?;
            }
            self.pop.say(&[b"BRPOP", b"results", b"0"]);
            self.pop.say(&[b"RPOP", b"results", window.as_bytes()]);
            self.pop.0.flush()?;
            done += u32::from(self.pop.array()?.is_some());
            done += self.pop.array()?.map_or(0, |results| results.len() as u32);
        }
        Ok(())
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
