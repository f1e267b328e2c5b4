//! Keys that are copied early, so that a copy of the state survives writes whose effect on one key
//! depends on others ([`crate::early`]): for the own snapshot, and for joining replicas.

use alloc::vec::Vec;

use concord_core::Position;
use concord_engine::several::{Needs, needs};
use concord_engine::{Command, Engine, Progress, Touched};

use concord_wire::record::Record;

use super::Replica;
use super::queue::Pending;
use crate::early::Copied;
use crate::pending::PendingWrite;

impl<E: Engine> Replica<E> {
    /// Whether any copy has only some of the objects that a write may concern.
    fn copies_early(&self) -> bool {
        self.journal.copies_early() || self.source.copy_early()
    }

    /// The write at `position` is given to the engine next. The keys that it needs are copied
    /// before it.
    pub(super) fn copy_early(&mut self, position: Position, command: &Command<'_>) {
        if !self.copies_early() {
            return;
        }
        let keys = match needs(command) {
            Needs::Nothing => return,
            Needs::All => return self.journal.postpone_snapshot(),
            Needs::Keys(keys) | Needs::Scripts(keys) => keys,
        };
        let before = Position(position.0 - 1);
        let mut chunk = Vec::new();
        match self.serving.engine.copy_keys(&keys, &mut chunk) {
            None => {}
            Some(Progress::Done) => self.copied_early(before, chunk, false),
            Some(Progress::Pending) => self.queue.push(Pending::Early(before)),
        }
    }

    /// The write at `position` was executed, and its scripts accessed these keys.
    pub(super) fn scripts_touched(
        &mut self,
        position: Position,
        command: &[u8],
        touched: Option<Touched>,
    ) {
        if !self.copies_early() {
            return;
        }
        let Ok(command) = Command::parse(command) else { return };
        if !matches!(needs(&command), Needs::Scripts(_)) {
            return;
        }
        match touched.filter(|touched| !touched.looked_at_all) {
            Some(touched) => {
                self.copied_early(Position(position.0 - 1), touched.chunk, true);
            }
            None => self.journal.postpone_snapshot(),
        }
    }

    /// The engine completed the write of `operation`. The node that orders kept its `command`.
    pub(super) fn script_ran(
        &mut self,
        operation: &PendingWrite,
        command: &[u8],
        touched: Option<Touched>,
    ) {
        if !self.copies_early() {
            return;
        }
        let record =
            || self.ordered.log.record(operation.position).and_then(|r| Record::parse(r).ok());
        let logged = if operation.deciding { None } else { record() };
        let command = logged.map_or(command, |record| record.command).to_vec();
        self.scripts_touched(operation.position, &command, touched);
    }

    /// Keys were copied early, as of `before`.
    pub(super) fn copied_early(&mut self, before: Position, chunk: Vec<u8>, is_script: bool) {
        let copied = Copied { before, chunk, is_script };
        self.count.keys_copied_early += u64::from(!copied.is_empty());
        let engine = &mut self.serving.engine;
        self.source.copied_early(&copied, |rest| engine.fork_copy(rest));
        if !self.journal.copied_early(&copied)
            && let Some(rest) = copied.rest()
        {
            engine.release_copy(rest);
        }
    }
}
