//! WAIT: a client asks how many replicas have what it wrote, and waits until they are enough. What
//! was acknowledged is at as many as the protocol says (docs/reference/semantics/blocking.md,
//! "Commands that wait"); so there is nothing to wait for but a change of the members, of which the
//! controller knows.

use alloc::vec::Vec;

use concord_client::Class;
use concord_core::{Duration, MS, Now};
use concord_engine::blocking::timeout_integer_ms;
use concord_engine::resp;
use concord_wire::Sink;
use concord_wire::control::{Membership, Message as _};

use crate::commands::Failure;
use crate::connection::{Connection, Slot, SlotState, Subject, Wait};
use crate::gateway::Gateway;
use crate::state::{CommandContext, Core, Flow};

/// WAIT numreplicas timeout: how many, and how long; `None`: for ever.
fn asked(args: &[&[u8]]) -> Result<(i64, Option<Duration>), Failure> {
    let wanted = resp::number(args[1]).ok_or("ERR value is not an integer or out of range")?;
    // Redis' words are plain text.
    let words = |text: &'static [u8]| core::str::from_utf8(text).unwrap_or("ERR syntax error");
    let ms = timeout_integer_ms(args[2]).map_err(words)?;
    Ok((wanted, (ms != 0).then(|| ms.saturating_mul(MS))))
}

impl Core {
    /// WAIT, once everything before it is answered.
    pub(crate) fn wait(
        &mut self,
        call: &mut CommandContext<'_>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let (wanted, timeout_ns) = asked(args)?;
        if !call.connection.slots.is_empty() {
            self.count.commands_waited += 1;
            call.connection.wait = Wait::Quiet;
            return Ok(Flow::Waits);
        }
        if !self.knows_members(call.now, call.connection, sink) {
            return Ok(Flow::Waits);
        }
        let count = self.members.count();
        if count >= wanted {
            call.connection.answer(|out| resp::integer(out, count));
            return Ok(Flow::Went);
        }
        self.members.wait(call.now.instant, call.connection.id, wanted, timeout_ns);
        let slot = Slot::waiting(Class::Read, Subject::AllKeys, call.connection.resp3);
        call.connection.push_slot(Slot { state: SlotState::Blocked, ..slot });
        call.connection.wait = Wait::Blocked;
        Ok(Flow::Went)
    }

    /// The reply to a WAIT inside of MULTI, where nothing waits; `None`: once the members are
    /// known.
    pub(crate) fn wait_now(
        &mut self,
        call: &mut CommandContext<'_>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        match asked(args) {
            Err(failure) => resp::error(&mut reply, failure.as_bytes()),
            Ok(_) if !self.knows_members(call.now, call.connection, sink) => return None,
            Ok(_) => resp::integer(&mut reply, self.members.count()),
        }
        Some(reply)
    }

    /// Whether it is known who the members are. If not, the controller is asked, and the connection
    /// waits for that.
    fn knows_members(
        &mut self,
        now: Now,
        connection: &mut Connection,
        sink: &mut impl Sink,
    ) -> bool {
        if self.setup.client.controller.is_none() || self.members.are_fresh(now.instant) {
            return true;
        }
        connection.wait = Wait::Members;
        if self.members.ask_for(now.instant, connection.id) {
            self.ask_members(sink);
        }
        false
    }

    fn ask_members(&self, sink: &mut impl Sink) {
        let Some(controller) = self.setup.client.controller else { return };
        let mut packet = Vec::new();
        Membership::WhoIsWho { client: self.setup.client.addr }.emit(&mut packet);
        sink.send(controller, &packet);
    }

    /// Time-outs, and questions to the controller that are due.
    pub(crate) fn look_after_members(&mut self, now: Now, sink: &mut impl Sink) {
        self.members.expire(now.instant);
        if self.members.must_ask(now.instant) {
            self.ask_members(sink);
        }
    }
}

impl Gateway {
    /// The controller's answer, if this is one.
    pub(crate) fn note_members(&mut self, now: Now, packet: &[u8]) {
        if let Ok(Membership::Configure(part)) = Membership::parse(packet) {
            self.core.members.told(now.instant, part);
        }
    }

    /// Continues the commands that waited for the members.
    pub(crate) fn wake_askers(&mut self, now: Now, sink: &mut impl Sink) {
        for id in self.core.members.take_askers() {
            if self.connections.get(&id).is_some_and(|c| c.wait == Wait::Members) {
                self.go_on(now, id, sink);
            }
        }
    }
}
