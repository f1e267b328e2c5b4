//! XREAD BLOCK with `$`: the ids of the last entries are read first, all at one moment, so that
//! every try asks for later entries.

use alloc::vec::Vec;

use concord_client::Class;
use concord_core::Now;
use concord_engine::ttl::EXEC_COMMAND;
use concord_engine::{CommandBuf, resp_scan};
use concord_wire::Sink;

use crate::blocking::attempt::Wanted;
use crate::connection::{Connection, SlotState, Subject, Wait};
use crate::state::{CommandContext, Core, Flow};

/// The id for a stream without entries.
const BEGIN: &[u8] = b"0-0";

impl Core {
    /// Reads the last ids that `wanted` asks for by `$`.
    pub(crate) fn ask_for_ends(
        &mut self,
        call: &mut CommandContext<'_>,
        wanted: Wanted,
        sink: &mut impl Sink,
    ) -> Flow {
        let ends = wanted.ends();
        let last = |key: &&[u8]| {
            let words = [&b"XREVRANGE"[..], key, b"+", b"-", b"COUNT", b"1"];
            CommandBuf::new().encode(1, words).to_vec()
        };
        let parts: Vec<Vec<u8>> = ends.iter().map(last).collect();
        let parts = parts.iter().map(Vec::as_slice);
        self.command.encode(0, [EXEC_COMMAND].into_iter().chain(parts));
        let subject = Subject::of_keys(ends);
        let state = SlotState::Asking(alloc::boxed::Box::new(wanted));
        let flow = self.submit(call, Class::Read, subject, state, sink);
        let is_asked = call.connection.slots.back();
        if is_asked.is_some_and(|slot| matches!(slot.state, SlotState::Asking(_))) {
            call.connection.wait = Wait::Blocked;
        }
        flow
    }

    /// Has the command in this slot wait, if it is one whose last ids came by `reply`.
    pub(crate) fn take_ends(
        &mut self,
        now: Now,
        connection: &mut Connection,
        slot: u64,
        reply: &[u8],
    ) -> bool {
        let Some(slot) = connection.slot_mut(slot) else { return false };
        if !matches!(slot.state, SlotState::Asking(_)) {
            return false;
        }
        let asked = core::mem::replace(&mut slot.state, SlotState::Blocked);
        let SlotState::Asking(wanted) = asked else { return false };
        match last_ids(reply) {
            Ok(ids) => {
                let wanted = wanted.behind(ids);
                self.waiters.begin(now.instant, connection.id, wanted, connection.resp3);
            }
            Err(error) => connection.unblock(error),
        }
        true
    }
}

/// The ids that a reply to that read names, in its order; an error if one of the keys is no stream.
pub(crate) fn last_ids(reply: &[u8]) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    if reply.starts_with(b"-") {
        return Err(reply.to_vec());
    }
    let mut ids = Vec::new();
    for of_key in resp_scan::elements(reply) {
        if of_key.starts_with(b"-") {
            return Err(of_key.to_vec());
        }
        let entry = resp_scan::elements(of_key).next();
        let id = entry.and_then(|entry| resp_scan::elements(entry).next());
        ids.push(id.and_then(resp_scan::text).unwrap_or(BEGIN).to_vec());
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ids_are_those_of_the_last_entries() {
        let reply = b"*2\r\n*1\r\n*2\r\n$3\r\n7-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n*0\r\n";
        assert_eq!(last_ids(reply), Ok(alloc::vec![b"7-1".to_vec(), b"0-0".to_vec()]));
        let reply = b"*2\r\n*0\r\n-WRONGTYPE no\r\n";
        assert_eq!(last_ids(reply), Err(b"-WRONGTYPE no\r\n".to_vec()));
    }
}
