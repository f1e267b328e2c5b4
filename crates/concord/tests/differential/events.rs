//! Keyspace events of the same commands: a subscriber at each server gets the same ones in the same
//! order.

use std::net::SocketAddr;

use crate::{Link, words};

/// All classes that Redis has, but that of reads that find nothing.
const CLASSES: &str = "KEAn";
/// A database that no command of the test uses has the key that says where a batch ends.
const MARKS: &str = "14";
/// What is told where a key is due: when Redis notices that is its own affair.
const EXPIRED: &str = "expired";

/// A subscriber at a server, and who writes the marks.
struct Listener {
    subscriber: Link,
    writer: Link,
}

impl Listener {
    fn open(target: SocketAddr) -> Listener {
        let (mut subscriber, mut writer) = (Link::open(target), Link::open(target));
        assert_eq!(writer.say(&format!("CONFIG SET notify-keyspace-events {CLASSES}")), b"+OK\r\n");
        assert_eq!(writer.say(&format!("SELECT {MARKS}")), b"+OK\r\n");
        assert!(subscriber.say("PSUBSCRIBE __key*@*__:*").starts_with(b"*3\r\n"));
        Listener { subscriber, writer }
    }

    /// What has been told since the last call.
    fn heard(&mut self, mark: u64) -> Vec<String> {
        self.writer.say(&format!("PSETEX mark{mark} 100000000 x"));
        let end = format!("__keyevent@{MARKS}__:expire mark{mark}");
        let mut all = Vec::new();
        loop {
            let message = self.subscriber.reply(&words("(an event)"));
            let parts: Vec<String> = concord_engine::resp_scan::elements(&message)
                .filter_map(concord_engine::resp_scan::text)
                .map(|part| String::from_utf8_lossy(part).into_owned())
                .collect();
            let told = format!("{} {}", parts[2], parts[3]);
            if told == end {
                self.writer.say(&format!("DEL mark{mark}"));
                return all;
            }
            if !told.contains(&format!("@{MARKS}__")) && !told.contains(EXPIRED) {
                all.push(told);
            }
        }
    }
}

/// One at the rack, and one at the plain server.
pub struct Listeners {
    rack: Listener,
    plain: Listener,
    marks: u64,
    /// How many were the same.
    pub equal: u64,
}

impl Listeners {
    pub fn open(rack: SocketAddr, plain: SocketAddr) -> Listeners {
        let (rack, plain) = (Listener::open(rack), Listener::open(plain));
        Listeners { rack, plain, marks: 0, equal: 0 }
    }

    /// What was told of a batch, if it was not the same.
    pub fn compare(&mut self) -> Option<String> {
        self.marks += 1;
        let (ours, theirs) = (self.rack.heard(self.marks), self.plain.heard(self.marks));
        if ours == theirs {
            self.equal += ours.len() as u64;
            return None;
        }
        let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        let from = same.saturating_sub(6);
        let show = |all: &[String]| all.iter().skip(from).take(12).cloned().collect::<Vec<_>>();
        Some(format!("events\n    rack  {:?}\n    redis {:?}", show(&ours), show(&theirs)))
    }
}
