//! The controllers' file: lost, or replaced by an old one, until the operator has the state made
//! anew (`controller --recover`).

use concord_control::{Recover, State};
use concord_core::SEC;
use concord_wire::GroupId;

use super::{Rack, Role};
use crate::world::CONTROLLER;

/// The state from which controllers continue.
#[derive(Clone, Debug)]
pub(super) struct StateFile {
    /// The content of the file.
    pub stored: Option<State>,
    /// The newest state that was ever stored: it is in force, whatever the file contains.
    pub newest: Option<State>,
    /// The first state of the run.
    first: Option<State>,
    /// The time at which the operator notices that the file is wrong, in ns; `u64::MAX` if it is
    /// right.
    recover_ns: u64,
    /// Whether a state is being made anew.
    is_recovering: bool,
    /// The time until which its disk is full, in ns.
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

    /// Fills its disk, until that time.
    pub(super) fn fill(&mut self, until_ns: u64) {
        self.full_until_ns = self.full_until_ns.max(until_ns);
    }

    /// Ends the lack of room.
    pub(super) fn make_room(&mut self) {
        self.full_until_ns = 0;
    }

    /// Whether nothing can be stored.
    pub(super) fn is_full(&self, now_ns: u64) -> bool {
        now_ns < self.full_until_ns
    }

    pub(super) fn store(&mut self, state: State) {
        self.first.get_or_insert_with(|| state.clone());
        // A controller that continues from an old file, and has not yet heard of a newer state,
        // makes epochs that members ignore.
        if epoch_of(Some(&state)) >= epoch_of(self.newest.as_ref()) {
            self.newest = Some(state.clone());
            if self.is_recovering {
                self.is_recovering = false;
                self.recover_ns = u64::MAX;
            }
        }
        self.stored = Some(state);
    }

    /// Whether the file is lost or old, and has not been made anew.
    pub(super) fn is_old(&self) -> bool {
        self.is_recovering || epoch_of(self.stored.as_ref()) < epoch_of(self.newest.as_ref())
    }
}

fn epoch_of(state: Option<&State>) -> u32 {
    state.and_then(|s| s.config(GroupId::FIRST)).map_or(0, |c| c.epoch)
}

impl Rack<'_> {
    /// Ends the controllers, and starts one without the file, or with the file as it was at the
    /// beginning.
    pub(super) fn lose_state(&mut self, is_gone: bool, for_ns: u64) {
        self.file.stored = if is_gone { None } else { self.file.first.clone() };
        self.file.recover_ns = self.world.now_ns + for_ns;
        self.restart_controller(None);
    }

    /// Lets the operator have the state made anew, if the file is wrong and it is time, or `now`;
    /// and again later if that did not succeed, since a member may have died meanwhile. The
    /// operator knows which members are dead.
    pub(super) fn recover_state(&mut self, now: bool) {
        let is_time = self.file.recover_ns <= self.world.now_ns;
        let is_wrong = self.file.recover_ns != u64::MAX;
        if !(is_time || (now && is_wrong)) {
            return;
        }
        // The controller listens for twice the time after which a silent node is removed.
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
