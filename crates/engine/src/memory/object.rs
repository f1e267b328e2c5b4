//! OBJECT (Redis 7.0 `object.c`): the encoding is the one that Redis would choose for the value as
//! it is.

use super::store::Value;
use super::{Call, Failure, Handler, fixed};
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 1] = [(b"OBJECT", object)];

/// Redis' bounds of its packed encodings.
const PACKED_HASH_MAX: usize = 512;
const PACKED_SORTED_MAX: usize = 128;
const PACKED_BYTES_MAX: usize = 64;
const INTS_MAX: usize = 512;
const EMBEDDED_BYTES_MAX: usize = 44;

fn object(call: &mut Call<'_>) -> Result<(), Failure> {
    let Some(value) = call.store.get(call.args[2]) else {
        call.null();
        return Ok(());
    };
    match UpperName::of(call.args[1]).bytes() {
        b"ENCODING" => resp::bulk(call.reply, encoding(value)),
        b"REFCOUNT" => call.integer(1),
        b"FREQ" => {
            return Err(fixed(
                b"ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        _ => {
            return Err(fixed(
                b"ERR Concord does not support OBJECT IDLETIME: replicas share the reads, and note none",
            ));
        }
    }
    Ok(())
}

fn encoding(value: &Value) -> &'static [u8] {
    let is_short = |text: &[u8]| text.len() <= PACKED_BYTES_MAX;
    match value {
        Value::String(bytes) if resp::number(bytes).is_some() => b"int",
        Value::String(bytes) if bytes.len() <= EMBEDDED_BYTES_MAX => b"embstr",
        Value::String(_) => b"raw",
        Value::List(_) => b"quicklist",
        Value::Hash(hash) => {
            let short = |(field, value): (&alloc::boxed::Box<[u8]>, &alloc::boxed::Box<[u8]>)| {
                is_short(field) && is_short(value)
            };
            let is_packed = hash.map().len() <= PACKED_HASH_MAX && hash.map().iter().all(short);
            if is_packed { b"listpack" } else { b"hashtable" }
        }
        Value::Set(set) => {
            let members = set.members();
            let is_packed =
                members.len() <= INTS_MAX && members.iter().all(|m| resp::number(m).is_some());
            if is_packed { b"intset" } else { b"hashtable" }
        }
        Value::Sorted(sorted) => {
            let is_packed =
                sorted.len() <= PACKED_SORTED_MAX && sorted.iter().all(|s| is_short(&s.member));
            if is_packed { b"listpack" } else { b"skiplist" }
        }
        Value::Stream(_) => b"stream",
    }
}
