//! Commands for a chain's keys: which ones they are, and when one is sent and answered.

use alloc::vec::Vec;

use concord_client::coord_commands::CoordCall;
use concord_client::{Class, Done, Request, Size};
use concord_core::{Instant, Now, ObjectId, RequestNumber, Rng};
use concord_engine::table::UpperName;
use concord_engine::{CommandSpec, resp};
use concord_wire::{Flags, FurtherIds, Kind, Sink};

use crate::chain::callers::{Chain, ChainSetup, Underway};
use crate::commands::keys::{Keys, keys};
use crate::commands::{Failure, Handling};
use crate::connection::id::ConnectionId;
use crate::connection::{Slot, SlotState, Subject, Wait};
use crate::gateway::{Gateway, list};
use crate::state::{CommandContext, Core, Flow};

impl Core {
    /// Whether one of a command's keys is the chain's.
    fn names_chain(&self, handling: Handling, name: &UpperName, args: &[&[u8]]) -> bool {
        let Some(chain) = &self.chain else { return false };
        let is_own = |at: usize| args.get(at).is_some_and(|arg| chain.is_own(arg));
        let any = |from: usize| (from..args.len()).any(is_own);
        let of_spec = |spec: Option<&CommandSpec>| match spec
            .map_or(Keys::None, |spec| keys(spec, name.bytes(), args))
        {
            Keys::One(key) => is_own(key.into()),
            Keys::Several(at) | Keys::AndOthers(at) => at.into_iter().any(is_own),
            Keys::BadNumber | Keys::Unsupported => any(1),
            Keys::None => false,
        };
        match handling {
            Handling::Multi
            | Handling::Exec
            | Handling::Discard
            | Handling::Wait
            | Handling::Function
            | Handling::PubSub(_)
            | Handling::Info
            | Handling::Local(_)
            | Handling::Always(_)
            | Handling::Refused(_) => false,
            Handling::OneKey(_, key) => is_own(key.into()),
            Handling::Several(several) => (1..args.len()).step_by(several.step).any(is_own),
            Handling::Keys(_) | Handling::Blocks(_) | Handling::AllKeys(_) | Handling::Cursor => {
                of_spec(self.setup.table.find(name.bytes()))
            }
            Handling::Container => {
                let sub = args.get(1).copied().unwrap_or_default();
                of_spec(self.setup.table.find_sub(name.bytes(), sub))
            }
            Handling::Script { .. } | Handling::Call { .. } => {
                let keys = args.get(2).and_then(|count| resp::number(count)).unwrap_or(0);
                (3..args.len()).take(usize::try_from(keys).unwrap_or(0)).any(is_own)
            }
            // What is explained is looked at by itself.
            Handling::Explain => false,
            Handling::Watch => any(1),
        }
    }

    /// Deals with a command that has a key of the chain; `None`: it has none.
    pub(crate) fn on_chain(
        &mut self,
        call: &mut CommandContext<'_>,
        handling: Handling,
        name: &UpperName,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Option<Flow>, Failure> {
        let is_explained = matches!(handling, Handling::Explain)
            && UpperName::of(args[1]).is(b"EXPLAIN")
            && args.len() > 2;
        let args = if is_explained { &args[2..] } else { args };
        let inner = UpperName::of(args[0]);
        let (handling, name) = match is_explained {
            true => match self.commands.find(&inner).map(|index| self.commands.entry(index)) {
                Some(entry) if entry.accepts(args.len()) => (entry.handling, &inner),
                _ => return Ok(None),
            },
            false => (handling, name),
        };
        if !self.names_chain(handling, name, args) {
            return Ok(None);
        }
        if is_explained && self.must_pause(call, handling) {
            call.connection.wait = Wait::Paused;
            return Ok(Some(Flow::Waits));
        }
        let refused = match handling {
            _ if call.connection.multi.is_some() => "transactions",
            Handling::Watch => "transactions",
            Handling::Script { .. } | Handling::Call { .. } => "scripts",
            _ if call.connection.tracking.is_some() => "clients that track keys",
            _ => "",
        };
        if !refused.is_empty() {
            return Err(alloc::format!("ERR keys of the chain are not for {refused}").into());
        }
        let Some(chain) = &mut self.chain else { return Ok(None) };
        let mut words: Vec<&[u8]> = args.to_vec();
        words[0] = name.bytes();
        let value_bytes = chain.setup.value_bytes.into();
        let asked = CoordCall::new(&words, value_bytes, call.now.unix_ms)?;
        let connection = &mut *call.connection;
        if !connection.slots.is_empty() {
            // Trap T22: what came before it may be of the other system.
            connection.wait = Wait::Quiet;
            return Ok(Some(Flow::Waits));
        }
        let resp3 = connection.resp3;
        let (id, began) = (Some(connection.id), call.now.instant);
        let underway = Underway { connection: id, call: asked, resp3, is_explained, began };
        connection.wait = Wait::Chain;
        if !chain.begin(call.now, underway, sink) {
            chain.waiting.push_back(connection.id);
            return Ok(Some(Flow::Waits));
        }
        call.is_executed = true;
        self.count.commands_chain += 1;
        let slot = Slot::waiting(Class::Read, Subject::AllKeys, resp3);
        connection.push_slot(Slot { state: SlotState::Blocked, ..slot });
        Ok(Some(Flow::Went))
    }
}

impl Gateway {
    /// Gives clients the keys of a chain that begin with a prefix. No two starts have the same
    /// `rng`.
    pub fn serve_chain(&mut self, setup: ChainSetup, mut rng: Rng) {
        let own = self.core.setup.client.addr;
        self.core.chain = Some(Chain::new(setup, own, &mut rng));
    }

    /// A packet of a switch of the chain, if this is one.
    pub(crate) fn on_chain_packet(
        &mut self,
        now: Now,
        packet: &[u8],
        sink: &mut impl Sink,
    ) -> bool {
        let is_chains = matches!(concord_wire::kind(packet), Ok(Kind::NetCraq | Kind::Chain));
        if let Some(chain) = self.core.chain.as_mut().filter(|_| is_chains) {
            chain.handle(now, packet, sink);
            self.answer_chain(now, sink);
        }
        is_chains
    }

    /// Asks the chain again, where that is due.
    pub(crate) fn look_after_chain(&mut self, now: Now, sink: &mut impl Sink) {
        if let Some(chain) = &mut self.core.chain {
            chain.tick(now, sink);
            self.answer_chain(now, sink);
        }
    }

    /// Answers calls that have ended; the commands after them go on, and those that waited for a
    /// caller.
    fn answer_chain(&mut self, now: Now, sink: &mut impl Sink) {
        // First those that wait: the others may have many more commands. Callers of clients that
        // are gone are free, too, with nobody to answer.
        while let Some(next) = self.core.chain.as_mut().and_then(Chain::next_waiting) {
            self.go_on(now, next, sink);
        }
        while let Some((id, reply)) = self.next_chain_reply() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if let Some(text) = reply.strip_prefix(b"-") {
                self.core.errors.note(text);
            }
            connection.unblock(reply);
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
            self.go_on(now, id, sink);
        }
    }

    fn next_chain_reply(&mut self) -> Option<(ConnectionId, Vec<u8>)> {
        self.core.chain.as_mut()?.ended.pop_front()
    }
}

impl Core {
    pub(crate) fn chain_deadline(&self) -> Instant {
        self.chain.as_ref().map_or(Instant::NEVER, Chain::deadline)
    }

    /// When the next step of the search for keys of the store is due that nobody reaches.
    pub(crate) fn shadowed_deadline(&self) -> Instant {
        let may_ask = self.client.is_registered() && self.client.has_room(Class::Read, Size::Small);
        let chain = self.chain.as_ref().filter(|_| may_ask);
        chain.map_or(Instant::NEVER, |chain| chain.shadowed.deadline())
    }

    /// Takes that step, if it is due.
    pub(crate) fn look_for_shadowed(&mut self, now: Now, sink: &mut impl Sink) {
        if now.instant < self.shadowed_deadline() {
            return;
        }
        let Some(shadowed) = self.chain.as_mut().map(|chain| &mut chain.shadowed) else { return };
        let Some(words) = shadowed.step(now.instant) else { return };
        let command = self.command.encode(0, words);
        let (class, obj_id, flags) = (Class::Read, ObjectId(0), Flags::WILDCARD);
        let further = FurtherIds::NONE;
        let request = Request { class, obj_id, further, flags, after: None, command };
        shadowed.sent(self.client.submit(now, request, sink).ok());
    }

    /// Whether a request is such a step.
    pub(crate) fn looks_for_shadowed(&self, request: RequestNumber) -> bool {
        self.chain.as_ref().is_some_and(|chain| chain.shadowed.is_asked(request))
    }

    pub(crate) fn take_shadowed(&mut self, now: Instant, done: &Done) {
        if let Some(chain) = &mut self.chain {
            chain.shadowed.take(now, done);
        }
    }

    pub(crate) fn forget_chain(&mut self, id: ConnectionId) {
        if let Some(chain) = &mut self.chain {
            chain.forget(id);
        }
    }
}
