//! A slot of the queue, as words of the register arrays: a task that waits for an executor, or an
//! executor that waits for a task.

use concord_core::{Instant, SessionId, SwitchId};
use concord_wire::Addr;
use concord_wire::falcon::{Asker, Assigned, CLASSES_MAX, Parameters, Task, TaskFlags};

/// The number of words of a task.
pub(super) const TASK_WORDS: usize = 7;
/// The number of words of a waiting executor, which uses the first ones.
pub(super) const WAITER_WORDS: usize = 4;
/// The names of the words' arrays. For an executor `uid` has its session, `task` its request number
/// and slot, `client` its address, and `tdesc` the time until which it waits.
pub(super) const NAMES: [&str; TASK_WORDS] =
    ["uid", "task", "client", "tdesc", "parameters", "parameters", "tag"];

/// The shift of the class in `tdesc`: the lowest five bits of its byte are the length of the
/// parameters, and the class is above them.
const NEEDS_SHIFT: u32 = 32 + 5;
const LENGTH: u8 = (1 << 5) - 1;

pub(super) type Words = [u64; TASK_WORDS];

fn addr_word(addr: Addr, low: u16) -> u64 {
    u64::from(addr.ip) << 32 | u64::from(addr.port) << 16 | u64::from(low)
}

fn addr_of(word: u64) -> Addr {
    Addr { ip: (word >> 32) as u32, port: (word >> 16) as u16 }
}

/// A task: TASK_INFO, client_IP and client_port (Falcon §3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) uid: u64,
    pub(super) jid: u32,
    pub(super) owner: Addr,
    pub(super) task: Task,
}

impl Entry {
    #[inline]
    pub(super) fn words(&self) -> Words {
        let task = &self.task;
        let ([first, second], length) = task.parameters.words();
        let tdesc = u64::from(task.function) << 48
            | u64::from(task.flags.0) << 40
            | u64::from(length) << 32
            | u64::from(task.needs) << NEEDS_SHIFT
            | u64::from(task.limit_ms);
        [
            self.uid,
            u64::from(self.jid) << 32 | u64::from(task.tid),
            addr_word(self.owner, task.attempt),
            tdesc,
            first,
            second,
            task.tag,
        ]
    }

    #[inline]
    pub(super) fn of(words: &Words) -> Entry {
        let [uid, task, client, tdesc, first, second, tag] = *words;
        Entry {
            uid,
            jid: (task >> 32) as u32,
            owner: addr_of(client),
            task: Task {
                tid: task as u32,
                attempt: client as u16,
                function: (tdesc >> 48) as u16,
                flags: TaskFlags((tdesc >> 40) as u8),
                needs: (tdesc >> NEEDS_SHIFT) as u8 & (CLASSES_MAX - 1),
                limit_ms: tdesc as u32,
                parameters: Parameters::of_words([first, second], (tdesc >> 32) as u8 & LENGTH),
                tag,
            },
        }
    }

    #[inline]
    pub(super) fn assigned(&self, ticket: u32, switch_id: SwitchId, queue: u8) -> Assigned {
        let (uid, jid, owner, task) = (SessionId(self.uid), self.jid, self.owner, self.task);
        Assigned { uid, jid, owner, ticket, switch_id, queue, task }
    }
}

/// A waiting executor, and until when it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) asker: Asker,
    pub(super) until: Instant,
}

impl Waiter {
    #[inline]
    pub(super) fn words(&self) -> Words {
        let asker = &self.asker;
        let request = u64::from(asker.number) << 32 | u64::from(asker.slot);
        [asker.session.0, request, addr_word(asker.addr, 0), self.until.0, 0, 0, 0]
    }

    #[inline]
    pub(super) fn of(words: &Words) -> Waiter {
        let [session, request, addr, until, ..] = *words;
        let asker = Asker {
            session: SessionId(session),
            number: (request >> 32) as u32,
            slot: request as u16,
            addr: addr_of(addr),
        };
        Waiter { asker, until: Instant(until) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slot_holds_is_what_was_put_there() {
        let entry = Entry {
            uid: u64::MAX - 1,
            jid: 5,
            owner: Addr { ip: 0x0a00_00c8, port: 9000 },
            task: Task {
                tid: u32::MAX,
                attempt: 0xabcd,
                function: 0xfedc,
                flags: TaskFlags(0x81),
                needs: 7,
                limit_ms: u32::MAX - 7,
                parameters: Parameters::new(b"sixteen bytes ..").unwrap(),
                tag: 0x0123_4567_89ab_cdef,
            },
        };
        assert_eq!(Entry::of(&entry.words()), entry);
        let addr = Addr { ip: 0xff00_0001, port: 0xffff };
        let asker = Asker { session: SessionId(u64::MAX), number: u32::MAX, slot: 9, addr };
        let waiter = Waiter { asker, until: Instant(77) };
        assert_eq!(Waiter::of(&waiter.words()), waiter);
    }
}
