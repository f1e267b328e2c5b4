//! The controllers' file: lost, or of yesterday, until the operator has the state made anew
//! (`controller --recover`).

use concord_control::{Recover, State};
use concord_core::SEC;
use concord_wire::GroupId;

use super::{Rack, Role};
use crate::world::CONTROLLER;

/// What controllers go on from.
#[derive(Clone, Debug)]
pub(super) struct StateFile {
    /// What the file says.
    pub stored: Option<State>,
    /// The newest state that was ever stored: what is in force, whatever the file says.
    pub newest: Option<State>,
    /// The first state of the run.
    first: Option<State>,
    /// When the operator sees that the file is wrong; `u64::MAX`: it is not.
    recover_ns: u64,
    /// A state is being made anew.
    is_recovering: bool,
    /// Its disk is full until then.
    full_until_ns: u64,
}

impl StateFile {
    pub(super) fn new(stored: Option<State>) -> StateFile {
        StateFile {
            newest: stored.clone(),
            stored,
            first: None,
            recover_ns: u64::MAX,
            is_recovering: false,
            full_until_ns: 0,
        }
    }

    /// Its disk has no room until then.
    pub(super) fn fill(&mut self, until_ns: u64) {
        self.full_until_ns = self.full_until_ns.max(until_ns);
    }

    /// It has room from now on.
    pub(super) fn make_room(&mut self) {
        self.full_until_ns = 0;
    }

    /// Whether nothing can be stored.
    pub(super) fn is_full(&self, now_ns: u64) -> bool {
        now_ns < self.full_until_ns
    }

    pub(super) fn store(&mut self, state: State) {
        self.first.get_or_insert_with(|| state.clone());
        // A controller that goes on from an old file, and has heard of nothing newer yet, makes
        // epochs that members ignore.
        if epoch_of(Some(&state)) >= epoch_of(self.newest.as_ref()) {
            self.newest = Some(state.clone());
            if self.is_recovering {
                self.is_recovering = false;
                self.recover_ns = u64::MAX;
            }
        }
        self.stored = Some(state);
    }

    /// Whether the file is lost or of yesterday, and not made anew yet.
    pub(super) fn is_old(&self) -> bool {
        self.is_recovering || epoch_of(self.stored.as_ref()) < epoch_of(self.newest.as_ref())
    }
}

fn epoch_of(state: Option<&State>) -> u32 {
    state.and_then(|s| s.config(GroupId::FIRST)).map_or(0, |c| c.epoch)
}

impl Rack<'_> {
    /// Controllers end, and one begins without the file, or with the one of the beginning.
    pub(super) fn lose_state(&mut self, is_gone: bool, for_ns: u64) {
        self.file.stored = if is_gone { None } else { self.file.first.clone() };
        self.file.recover_ns = self.world.now_ns + for_ns;
        self.restart_controller(None);
    }

    /// The operator has the state made anew, if the file is wrong and it is time, or `now`; and
    /// again some time later, if nothing came of it: somebody may have died meanwhile. Who is dead
    /// is known to be gone.
    pub(super) fn recover_state(&mut self, now: bool) {
        let is_time = self.file.recover_ns <= self.world.now_ns;
        let is_wrong = self.file.recover_ns != u64::MAX;
        if !(is_time || (now && is_wrong)) {
            return;
        }
        // It listens for twice the time of a failure.
        self.file.recover_ns = self.world.now_ns + 4 * self.plan.failure_ns + SEC;
        self.file.is_recovering = true;
        let members = self.config().map(|c| c.members.clone()).unwrap_or_default();
        let is_gone = |m: &concord_wire::control::Member| self.living(m).is_none();
        let gone = members.iter().filter(|m| is_gone(m));
        let gone = gone.map(|m| (GroupId::FIRST, m.node)).collect();
        self.restart_progress();
        self.restart_controller(Some(Recover { gone }));
    }

    fn restart_controller(&mut self, recover: Option<Recover>) {
        self.retire_counters(self.other_controller());
        self.retire_counters(CONTROLLER);
        let controller = self.controller(recover);
        self.place(CONTROLLER, Role::Controller(Box::new(controller)));
        self.tick(CONTROLLER);
    }
}
