//! Keys that are copied early, so that a copy of the state survives writes whose effect on one key
//! depends on others ([`crate::early`]): for the own snapshot, and for members that copy.

use alloc::vec::Vec;

use concord_core::Position;
use concord_engine::several::{Needs, needs};
use concord_engine::{Command, Engine, Progress, Touched};
use concord_wire::record::Record;

use crate::early::Copied;
use crate::quorum::QuorumReplica;
use crate::quorum::queue::Pending;

impl<E: Engine> QuorumReplica<E> {
    /// Whether any copy has only some of the objects that a write may concern.
    fn copies_early(&self) -> bool {
        let mut source = self.leading.followers.iter().filter_map(|f| f.outgoing_copy.as_ref());
        self.journal.copies_early() || source.any(|outgoing_copy| outgoing_copy.early.is_on())
    }

    /// The write at `position` is given to the engine next. The keys that it needs are copied
    /// before it.
    pub(in crate::quorum) fn copy_early(&mut self, position: Position) {
        if !self.copies_early() {
            return;
        }
        let record = self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
        let command = record.and_then(|record| Command::parse(record.command).ok());
        let Some(command) = command else { return };
        let keys = match needs(&command) {
            Needs::Nothing => return,
            Needs::All => return self.journal.postpone_snapshot(),
            Needs::Keys(keys) | Needs::Scripts(keys) => keys,
        };
        let before = Position(position.0 - 1);
        let mut chunk = Vec::new();
        match self.serving.engine.copy_keys(&keys, &mut chunk) {
            None => {}
            Some(Progress::Done) => self.copied_early(before, chunk, false),
            Some(Progress::Pending) => self.pending.push_back(Pending::Early(before)),
        }
    }

    /// The write at `position` was executed, and its scripts accessed these keys.
    pub(in crate::quorum) fn scripts_touched(
        &mut self,
        position: Position,
        touched: Option<Touched>,
    ) {
        if !self.copies_early() {
            return;
        }
        let record = self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
        let command = record.and_then(|record| Command::parse(record.command).ok());
        if !command.is_some_and(|command| matches!(needs(&command), Needs::Scripts(_))) {
            return;
        }
        match touched.filter(|touched| !touched.looked_at_all) {
            Some(touched) => {
                self.copied_early(Position(position.0 - 1), touched.chunk, true);
            }
            None => self.journal.postpone_snapshot(),
        }
    }

    /// Keys were copied early, as of `before`.
    pub(in crate::quorum) fn copied_early(
        &mut self,
        before: Position,
        chunk: Vec<u8>,
        is_script: bool,
    ) {
        let copied = Copied { before, chunk, is_script };
        self.count.keys_copied_early += u64::from(!copied.is_empty());
        let engine = &mut self.serving.engine;
        for follower in self.leading.followers.iter_mut() {
            // If too much waits for it, its copy restarts, as it does when a chunk is missing.
            follower.outgoing_copy.take_if(|outgoing_copy| {
                let is_on = outgoing_copy.early.is_on();
                let own = copied.fork(|rest| if is_on { engine.fork_copy(rest) } else { rest });
                is_on && own.is_none_or(|own| !outgoing_copy.early.add(&own))
            });
        }
        if !self.journal.copied_early(&copied)
            && let Some(rest) = copied.rest()
        {
            engine.release_copy(rest);
        }
    }
}
