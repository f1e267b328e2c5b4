//! Transactions that append to lists and read several of them.

use concord_check::{Access, Reply, Transaction};
use concord_core::Rng;

use super::accounts::{Bank, Ended, Way};
use super::resp::{Command, Link, number, words};

/// The number of lists that are appended to at a time, and of transactions until others take their
/// place: the reply to a read is as long as the list.
pub(super) const LISTS: u64 = 8;
pub(super) const TRANSACTIONS_OF_LISTS: u64 = 800;
/// The maximum number of commands in a transaction.
const COMMANDS_MAX: u64 = 5;
/// A script that appends a value to a list, or reads the list if the value is empty, one list after
/// another. Lists are given as keys, or as arguments before their values.
const APPEND: &str = "local out, lists, values = {}, KEYS, ARGV
if #KEYS == 0 then
  lists, values = {}, {}
  for at = 1, #ARGV, 2 do lists[#lists + 1] = ARGV[at] values[#values + 1] = ARGV[at + 1] end
end
for at, list in ipairs(lists) do
  if values[at] == '' then out[at] = redis.call('LRANGE', list, 0, -1)
  else out[at] = redis.call('RPUSH', list, values[at]) end
end
return out";

/// A read of a list whose result is not known yet.
fn unread(key: u64) -> Access {
    Access::List(key, Vec::new())
}

fn is_read(access: &Access) -> bool {
    matches!(access, Access::List(..))
}

/// An access with its reply.
fn with_reply((access, reply): (Access, &Reply)) -> Access {
    let Access::List(key, _) = access else { return access };
    match reply {
        // Nobody wrote a value that is no number.
        Reply::Array(items) => {
            let values = items.iter().map(|item| number(item).unwrap_or(u64::MAX));
            Access::List(key, values.collect())
        }
        _ => Access::List(key, vec![u64::MAX]),
    }
}

impl Bank<'_> {
    fn command(&self, access: &Access) -> Command {
        match access {
            Access::Append(key, value) => words(&["RPUSH", &self.list(*key), &value.to_string()]),
            Access::List(key, _) | Access::Write(key, _) | Access::Read(key, _) => {
                words(&["LRANGE", &self.list(*key), "0", "-1"])
            }
        }
    }

    /// A script that makes the accesses, with its keys or without them.
    fn script(&self, accesses: &[Access], way: Way) -> Command {
        let name = if accesses.iter().all(is_read) { "EVAL_RO" } else { "EVAL" };
        let of = |access: &Access| match access {
            Access::Append(key, value) => (self.list(*key), value.to_string()),
            Access::List(key, _) | Access::Write(key, _) | Access::Read(key, _) => {
                (self.list(*key), String::new())
            }
        };
        let parts: Vec<(String, String)> = accesses.iter().map(of).collect();
        let keys = if way == Way::Undeclared { 0 } else { parts.len() };
        let mut command = words(&[name, APPEND, &keys.to_string()]);
        if way == Way::Undeclared {
            command.extend(parts.into_iter().flat_map(|(key, value)| [key, value]).map(Vec::from));
        } else {
            let (keys, values): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            command.extend(keys.into_iter().chain(values).map(Vec::from));
        }
        command
    }

    /// Appends to some lists, and reads others.
    pub(super) fn append(
        &self,
        link: &mut Link,
        rng: &mut Rng,
        ordinal: u64,
        way: Way,
    ) -> std::io::Result<Ended> {
        let first = ordinal / TRANSACTIONS_OF_LISTS * LISTS;
        let draw = |_| {
            let key = first + rng.below(LISTS);
            if rng.chance(1, 2) { Access::Append(key, self.value()) } else { unread(key) }
        };
        let count = 1 + ordinal % COMMANDS_MAX;
        let accesses: Vec<Access> = (0..count).map(draw).collect();
        let mut read = Vec::new();
        if way == Way::Watch {
            match self.look(link, &accesses)? {
                Some(found) => read = found,
                None => return Ok(Ended::Failed),
            }
        }
        let call_ns = self.now_ns();
        let (alone, scripted) = accesses.split_at(accesses.len() / 2);
        let reply = match way {
            Way::Multi | Way::Watch => {
                Bank::transact(link, accesses.iter().map(|access| self.command(access)).collect())
            }
            Way::Script | Way::Undeclared => link.call(&self.script(&accesses, way)),
            Way::Within => {
                let alone = alone.iter().map(|access| self.command(access));
                let commands = alone.chain([self.script(scripted, way)]).collect();
                Bank::transact(link, commands).map(flat)
            }
        };
        self.judge(reply, (call_ns, way), &read, accesses)
    }

    /// WATCHes the lists, and reads them. Each read is a transaction, too; returns the reads if
    /// none was refused.
    fn look(&self, link: &mut Link, accesses: &[Access]) -> std::io::Result<Option<Vec<Access>>> {
        let key_of = |access: &Access| match access {
            Access::Append(key, _)
            | Access::List(key, _)
            | Access::Write(key, _)
            | Access::Read(key, _) => *key,
        };
        let mut keys: Vec<u64> = accesses.iter().map(key_of).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut watch = words(&["WATCH"]);
        watch.extend(keys.iter().map(|key| self.list(*key).into_bytes()));
        let reads = keys.iter().map(|key| self.command(&unread(*key)));
        let commands: Vec<Command> = [watch].into_iter().chain(reads).collect();
        let call_ns = self.now_ns();
        let Some(found) = self.watch(link, &commands)? else { return Ok(None) };
        let return_ns = Some(self.now_ns());
        let read = keys.into_iter().map(unread).zip(&found).map(with_reply);
        let read: Vec<Access> = read.collect();
        for access in &read {
            let accesses = vec![access.clone()];
            self.note_lists(Transaction { call_ns, return_ns, accesses });
        }
        Ok(Some(read))
    }

    /// Notes the outcome of a transaction. If it was executed, the keys that it watched had not
    /// changed since it read them.
    fn judge(
        &self,
        reply: std::io::Result<Reply>,
        (call_ns, way): (u64, Way),
        read: &[Access],
        mut accesses: Vec<Access>,
    ) -> std::io::Result<Ended> {
        let return_ns = Some(self.now_ns());
        match &reply {
            Ok(Reply::Array(items)) if items.len() == accesses.len() => {
                let own = accesses.into_iter().zip(items).map(with_reply);
                let accesses = read.iter().cloned().chain(own).collect();
                self.note_lists(Transaction { call_ns, return_ns, accesses });
                return Ok(Ended::Done);
            }
            Ok(Reply::Nil) if way == Way::Watch => return Ok(Ended::Aborted),
            Ok(Reply::Error(text)) if !text.starts_with("UNKNOWN") => {
                self.note_error(text);
                return Ok(Ended::Failed);
            }
            Ok(reply) => self.note_error(match reply {
                Reply::Error(text) => text,
                _ => "an odd reply",
            }),
            Err(_) => {}
        }
        accesses.retain(|access| !is_read(access));
        self.note_lists(Transaction { call_ns, return_ns: None, accesses });
        reply.map(|_| Ended::Failed)
    }
}

/// The replies to commands and a final script, with the elements of the script's reply in its
/// place.
fn flat(reply: Reply) -> Reply {
    match reply {
        Reply::Array(mut items) => {
            if let Some(Reply::Array(inner)) = items.pop_if(|item| matches!(item, Reply::Array(_)))
            {
                items.extend(inner);
            }
            Reply::Array(items)
        }
        reply => reply,
    }
}
