//! The smallest storage engine: keys with a value, and GET, SET, INCR, MGET and MSET, which answer
//! at once.

use std::collections::BTreeMap;

use concord_core::hash::hash64;
use concord_engine::copy::BadChunk;
use concord_engine::{Class, Command, Completion, Context, Engine, Progress, resp};

/// Keys and values, in order, so that equal states have equal output.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers(BTreeMap<Vec<u8>, Vec<u8>>);

impl Registers {
    fn get(&self, key: &[u8], reply: &mut Vec<u8>) {
        match self.0.get(key) {
            Some(value) => resp::bulk(reply, value),
            None => reply.extend_from_slice(b"$-1\r\n"),
        }
    }
}

impl Engine for Registers {
    fn submit(
        &mut self,
        _context: &Context,
        _class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let args: Vec<&[u8]> = command.args().collect();
        match args[..] {
            [b"GET", key] => self.get(key, reply),
            [b"MGET", ref keys @ ..] => {
                resp::array(reply, keys.len());
                keys.iter().for_each(|key| self.get(key, reply));
            }
            [b"MSET", ref pairs @ ..] => {
                for pair in pairs.chunks_exact(2) {
                    self.0.insert(pair[0].to_vec(), pair[1].to_vec());
                }
                reply.extend_from_slice(b"+OK\r\n");
            }
            [b"SET", key, value] => {
                self.0.insert(key.to_vec(), value.to_vec());
                reply.extend_from_slice(b"+OK\r\n");
            }
            [b"INCR", key] => {
                let old = self.0.get(key).and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
                let new: i64 = old.unwrap_or(0) + 1;
                self.0.insert(key.to_vec(), new.to_string().into_bytes());
                reply.extend_from_slice(format!(":{new}\r\n").as_bytes());
            }
            _ => reply.extend_from_slice(b"-ERR unknown command\r\n"),
        }
        Progress::Done
    }

    fn poll(&mut self) -> Option<Completion> {
        None
    }

    fn prepare_copy(&mut self) -> bool {
        true
    }

    fn end_copy(&mut self) {}

    fn copy(&mut self, _from: u64, _bytes_max: usize, _chunk: &mut Vec<u8>) -> Progress {
        Progress::Done
    }

    fn install(&mut self, _chunk: &[u8]) -> Result<Progress, BadChunk> {
        Ok(Progress::Done)
    }

    fn clear(&mut self) -> Progress {
        self.0.clear();
        Progress::Done
    }

    fn next_expiry_ms(&self) -> Option<u64> {
        None
    }

    fn due(
        &self,
        _now_ms: u64,
        _after: Option<&(Vec<u8>, u64)>,
        _limit: usize,
        _skip: &dyn Fn(&[u8], u64) -> bool,
        _out: &mut Vec<(Vec<u8>, u64)>,
    ) {
    }

    fn lost(&self) -> bool {
        false
    }

    fn keys(&self) -> u64 {
        self.0.len() as u64
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn digest(&self) -> Option<u64> {
        Some(hash64(0, format!("{:?}", self.0).as_bytes()))
    }
}
