//! NATS, for comparison with the rack: a core queue group, and a JetStream work queue with
//! acknowledgements, in memory.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use concord_core::Instant;
use concord_runtime::{Error, clock};

use super::line::Line;
use super::{Queue, Single, WINDOW};
use crate::bench::rig::{Process, Scratch, free_port};

/// The kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Core,
    JetStream,
}

/// The maximum number of successive reads without a message when one must arrive.
const LOOKS_MAX: u32 = 300;
const RESULTS: &str = "results";
const ACKS: &str = "acks";
const TASKS: &str = "tasks";
const DELIVERED: &str = "delivered";
const ANSWERS: &str = "answers";

/// A message.
struct Message {
    subject: String,
    reply: Option<String>,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Nats(Line);

impl Nats {
    fn open(server: SocketAddr) -> Result<Nats, Error> {
        let mut line = Line::open(server)?;
        line.expect_line()?;
        line.output.extend_from_slice(
            b"CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"rust\",\"version\":\"0\"}\r\nPING\r\n",
        );
        line.flush()?;
        while line.expect_line()? != "PONG" {}
        Ok(Nats(line))
    }

    fn subscribe(&mut self, subject: &str, group: &str, number: u32) -> Result<(), Error> {
        let line = format!("SUB {subject} {group} {number}\r\nPING\r\n");
        self.0.output.extend_from_slice(line.replace("  ", " ").as_bytes());
        self.0.flush()?;
        while self.0.expect_line()? != "PONG" {}
        Ok(())
    }

    fn publish(&mut self, subject: &str, reply: &str, payload: &[u8]) {
        let length = payload.len();
        let space = if reply.is_empty() { "" } else { " " };
        let line = format!("PUB {subject}{space}{reply} {length}\r\n");
        self.0.output.extend_from_slice(line.as_bytes());
        self.0.output.extend_from_slice(payload);
        self.0.output.extend_from_slice(b"\r\n");
    }

    /// The next message; `None` if none arrived for a while.
    fn next(&mut self) -> Result<Option<Message>, Error> {
        loop {
            let Some(line) = self.0.line()? else { return Ok(None) };
            let words: Vec<&str> = line.split(' ').collect();
            let (subject, reply, length) = match &words[..] {
                ["MSG", subject, _, length] => (subject, None, length),
                ["MSG", subject, _, reply, length] => (subject, Some(reply), length),
                ["PING", ..] => {
                    self.0.output.extend_from_slice(b"PONG\r\n");
                    self.0.flush()?;
                    continue;
                }
                ["-ERR", ..] => return Err(Error::new(format!("NATS says {line}"))),
                _ => continue,
            };
            let length = length.parse().map_err(|_| Error::new(format!("NATS says {line}")))?;
            let (subject, reply) = (subject.to_string(), reply.map(ToString::to_string));
            return Ok(Some(Message { subject, reply, payload: self.0.bytes(length)? }));
        }
    }

    fn expect(&mut self) -> Result<Message, Error> {
        for _ in 0..LOOKS_MAX {
            if let Some(message) = self.next()? {
                return Ok(message);
            }
        }
        Err(Error::new("NATS says nothing any more"))
    }

    /// Makes a request to JetStream's API.
    fn ask(&mut self, subject: &str, body: &str) -> Result<(), Error> {
        self.publish(subject, ANSWERS, body.as_bytes());
        self.0.flush()?;
        let answer = String::from_utf8_lossy(&self.expect()?.payload).into_owned();
        match answer.contains("\"error\"") {
            true => Err(Error::new(format!("JetStream refused {subject}: {answer}"))),
            false => Ok(()),
        }
    }
}

/// A server, its workers, and the submitter.
#[derive(Debug)]
pub(super) struct Group {
    kind: Kind,
    client: Nats,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    is_over: Arc<AtomicBool>,
    _server: Process,
    _scratch: Scratch,
}

/// Runs a worker: each task is done as soon as it arrives, and results are sent when no further
/// task is there.
fn work(mut nats: Nats, is_over: &AtomicBool) -> Result<(), Error> {
    while !is_over.load(Ordering::Relaxed) {
        let Some(message) = nats.next()? else { continue };
        let started = clock::now().instant.0.to_be_bytes();
        if let Some(reply) = message.reply.filter(|reply| reply.starts_with("$JS")) {
            nats.publish(RESULTS, "", &started);
            nats.publish(&reply, "", b"+ACK");
        } else {
            nats.publish(RESULTS, "", &started);
        }
        if nats.0.is_drained() {
            nats.0.flush()?;
        }
    }
    Ok(())
}

impl Group {
    pub(super) fn start(kind: Kind, workers: u16) -> Result<Group, Error> {
        let scratch = Scratch::new()?;
        let listen = free_port()?;
        let mut command = Command::new("nats-server");
        command.args(["-a", &listen.ip().to_string(), "-p", &listen.port().to_string()]);
        if kind == Kind::JetStream {
            command.arg("-js").arg("-sd").arg(scratch.path.join("store"));
        }
        let mut server = Process::start(&mut command, scratch.path.join("nats.log"))?;
        server
            .wait_until(|printed| printed.contains("Server is ready"))
            .map_err(|e| Error::new(format!("nats-server did not start: {e}")))?;
        let mut client = Nats::open(listen)?;
        for (number, subject) in (1..).zip([RESULTS, ACKS, ANSWERS]) {
            client.subscribe(subject, "", number)?;
        }
        if kind == Kind::JetStream {
            let stream = "{\"name\":\"T\",\"subjects\":[\"tasks\"],\"storage\":\"memory\",\
                          \"retention\":\"workqueue\"}";
            client.ask("$JS.API.STREAM.CREATE.T", stream)?;
            let consumer = "{\"stream_name\":\"T\",\"config\":{\"durable_name\":\"w\",\
                \"deliver_subject\":\"delivered\",\"deliver_group\":\"w\",\"ack_policy\":\"explicit\"}}";
            client.ask("$JS.API.CONSUMER.DURABLE.CREATE.T.w", consumer)?;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..workers {
            let mut nats = Nats::open(listen)?;
            nats.subscribe(if kind == Kind::Core { TASKS } else { DELIVERED }, "w", 1)?;
            let is_over = Arc::clone(&is_over);
            threads.push(std::thread::spawn(move || work(nats, &is_over)));
        }
        Ok(Group { kind, client, workers: threads, is_over, _server: server, _scratch: scratch })
    }

    fn submit(&mut self) {
        let reply = if self.kind == Kind::JetStream { ACKS } else { "" };
        self.client.publish(TASKS, reply, b"0123456789abcdef");
    }

    fn result(&mut self) -> Result<u64, Error> {
        loop {
            let message = self.client.expect()?;
            if message.subject == RESULTS {
                let first = message.payload.first_chunk();
                return Ok(first.map_or(0, |bytes| u64::from_be_bytes(*bytes)));
            }
        }
    }
}

impl Queue for Group {
    fn single(&mut self) -> Result<Single, Error> {
        let began = clock::now().instant;
        self.submit();
        self.client.0.flush()?;
        let started = Instant(self.result()?);
        let now = clock::now().instant;
        Ok(Single { start_ns: started.since(began), result_ns: now.since(began) })
    }

    fn many(&mut self, count: u32) -> Result<(), Error> {
        let (mut submitted, mut done) = (0, 0);
        while done < count {
            while submitted < count && submitted - done < WINDOW {
                self.submit();
                submitted += 1;
            }
            self.client.0.flush()?;
            // As many as arrived at once, but enough room for the next batch of tasks.
            let enough = (done + WINDOW / 2).min(count);
            while done < enough {
                self.result()?;
                done += 1;
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
