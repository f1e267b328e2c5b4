//! Scripts. The gateway remembers their text, so that replicas depend on no cache: EVALSHA becomes
//! EVAL. After a restart of the gateway clients get NOSCRIPT, and send the text again.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;

use concord_core::hash;
use concord_engine::resp;
use concord_engine::table::UpperName;
use sha1::Digest;

use crate::commands::Failure;
use crate::connection::Subject;
use crate::dispatch::{Core, Turn, no_subcommand};

/// Most scripts that are remembered, and their bytes together; the oldest go first.
const SCRIPTS_MAX: usize = 1_000;
const BYTES_MAX: usize = 16 << 20;
const NEEDS_REDIS: &str = "ERR scripts need the Redis engine: concord up --engine redis";

/// SHA-1 in lower-case hex: the name of a script, as Redis gives it.
type Sha = [u8; 40];

fn sha1_hex(script: &[u8]) -> Sha {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 40];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(sha1::Sha1::digest(script)) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
    hex
}

fn sha_of(text: &[u8]) -> Option<Sha> {
    let mut sha: Sha = text.try_into().ok()?;
    sha.make_ascii_lowercase();
    Some(sha)
}

/// The scripts that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    by_sha: BTreeMap<Sha, Vec<u8>>,
    order: VecDeque<Sha>,
    bytes: usize,
}

impl Scripts {
    fn get(&self, sha: &[u8]) -> Option<&[u8]> {
        self.by_sha.get(&sha_of(sha)?).map(Vec::as_slice)
    }

    fn remember(&mut self, script: &[u8]) -> Sha {
        let sha = sha1_hex(script);
        if let Entry::Vacant(place) = self.by_sha.entry(sha) {
            place.insert(script.to_vec());
            self.order.push_back(sha);
            self.bytes += script.len();
        }
        while self.order.len() > SCRIPTS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.by_sha.remove(&oldest).map_or(0, |script| script.len());
        }
        sha
    }
}

impl Core {
    fn has_scripts(&self) -> Result<(), Failure> {
        self.setup.table.find(b"EVAL").map(|_| ()).ok_or(NEEDS_REDIS.into())
    }

    /// Encodes EVAL script numkeys key ...; all keys must be one and the same.
    pub(crate) fn encode_script(
        &mut self,
        by_sha: bool,
        read_only: bool,
        args: &[&[u8]],
    ) -> Result<Subject, Failure> {
        self.has_scripts()?;
        let Some(numkeys) = resp::number(args[2]) else {
            return Err("ERR value is not an integer or out of range".into());
        };
        if numkeys < 0 {
            return Err("ERR Number of keys can't be negative".into());
        }
        let Some(keys) = usize::try_from(numkeys).ok().and_then(|n| args[3..].get(..n)) else {
            return Err("ERR Number of keys can't be greater than number of args".into());
        };
        let Some((first, others)) = keys.split_first() else {
            return Err("ERR Concord supports scripts on one key only: numkeys is 0".into());
        };
        if others.iter().any(|key| key != first) {
            return Err("CROSSKEY Concord supports scripts on one key only".into());
        }
        if args.len() > concord_engine::command::ARGS_MAX {
            return Err("ERR too many arguments (Concord's limit is 65535)".into());
        }
        let script = if by_sha {
            let script = self.scripts.get(args[1]);
            script.ok_or("NOSCRIPT No matching script. Please use EVAL.")?
        } else {
            self.scripts.remember(args[1]);
            args[1]
        };
        let name: &[u8] = if read_only { b"EVAL_RO" } else { b"EVAL" };
        let args = [name, script].into_iter().chain(args[2..].iter().copied());
        self.command.encode(3, args);
        Ok(Subject::Object(hash::object_id(first)))
    }
}

/// SCRIPT LOAD, EXISTS, FLUSH.
pub(crate) fn script(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    core.has_scripts()?;
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"LOAD", [script]) => {
            let sha = core.scripts.remember(script);
            turn.connection.answer(|out| resp::bulk(out, &sha));
        }
        (b"EXISTS", shas @ [_, ..]) => {
            let scripts = &core.scripts;
            turn.connection.answer(|out| {
                resp::array(out, shas.len());
                shas.iter()
                    .for_each(|sha| resp::integer(out, i64::from(scripts.get(sha).is_some())));
            });
        }
        (b"FLUSH", [] | [_]) => {
            core.scripts = Scripts::default();
            turn.connection.ok();
        }
        (b"LOAD" | b"EXISTS" | b"FLUSH", _) => {
            let sub = UpperName::of(args[1]).lower();
            let text = format!("ERR wrong number of arguments for 'script|{sub}' command");
            return Err(text.into());
        }
        _ => return Err(no_subcommand("script", args[1])),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_found_by_sha1_in_any_case_and_the_oldest_go() {
        let mut scripts = Scripts::default();
        let sha = scripts.remember(b"return 1");
        assert_eq!(&sha, b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(scripts.get(&sha.to_ascii_uppercase()), Some(&b"return 1"[..]));
        assert_eq!(scripts.get(b"e0e1"), None);
        for i in 0..SCRIPTS_MAX {
            scripts.remember(format!("return {i}0").as_bytes());
        }
        assert_eq!(scripts.get(&sha), None);
        scripts.remember(&alloc::vec![b'x'; BYTES_MAX]);
        assert_eq!((scripts.order.len(), scripts.by_sha.len()), (1, 1));
    }
}
