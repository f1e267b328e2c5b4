//! The machine around the program: what a switch's own processor does. It tells the controller
//! that the switch lives, installs configurations, keeps completions coming (trap T18), sweeps
//! (trap T19), and asks for a new switch id before the numbers run out (trap T20).

use concord_core::machine::Deadline;
use concord_core::{
    Duration, Epoch, Guards, Incarnation, Instant, LogClock, MS, Now, ObjectId, SwitchId,
};
use concord_pisa::Verdict;
use concord_wire::control::{Config, Heard, Membership, Message as _};
use concord_wire::nopaxos::Stamp;
use concord_wire::{Addr, Flags, Kind, Op, PacketMut, Repr, Sink, kind};

use alloc::vec::Vec;

use crate::faults::{FaultCounters, FaultRates, Faults};
use crate::harmonia::{ConfigError, Counters, Harmonia, Layout, Tables};

/// What an agent is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct AgentConfig {
    /// This life of the switch. A new one gets a new switch id (trap T20).
    pub incarnation: Incarnation,
    /// It takes over when the active switch is silent, not at once.
    pub standby: bool,
    /// Where the switch listens, as its peers reach it.
    pub addr: Addr,
    /// Where the controller listens.
    pub controller: Addr,
    /// The size of the registers.
    pub layout: Layout,
    /// Which guards are on: all, but in tests that remove one.
    pub guards: Guards,
    /// Faults on purpose; none by default.
    pub faults: FaultRates,
    /// Time from one sign of life to the next, in ns.
    pub alive_interval_ns: Duration,
    /// How long `last_committed` may stand still while something is in flight, in ns.
    pub noop_interval_ns: Duration,
    /// Time from one chunk of a sweep to the next, in ns.
    pub sweep_interval_ns: Duration,
    /// Sweep packets in a chunk, each for one index of every stage.
    pub sweep_chunk: u32,
}

impl AgentConfig {
    /// The defaults. A lap of the sweep over 64K slots takes 128 chunks, 0.64 s.
    #[must_use]
    pub const fn new(incarnation: Incarnation, addr: Addr, controller: Addr) -> AgentConfig {
        AgentConfig {
            incarnation,
            standby: false,
            addr,
            controller,
            layout: Layout::DEFAULT,
            guards: Guards::ALL,
            faults: FaultRates { seed: 0, drop_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0 },
            alive_interval_ns: 100 * MS,
            noop_interval_ns: 20 * MS,
            sweep_interval_ns: 5 * MS,
            sweep_chunk: 512,
        }
    }
}

concord_core::counters! {
    /// What the agent did.
    pub struct AgentCounters {
        /// Configurations installed.
        configured,
        /// Configurations ignored because their epoch is over.
        configures_old,
        /// Configurations ignored because they cannot be: no members, a switch id that was used
        /// before, help turned on or off under one switch id.
        configures_refused,
        /// Configurations for another life of this switch, ignored.
        configures_other_life,
        /// Configurations that name another switch: this one fell silent.
        deposed,
        /// Control messages that are malformed.
        control_malformed,
        /// Datagrams that a switch has nothing to do with.
        misdirected,
        /// Writes dropped by a switch that orders, and has not heard the log's time yet (NOPaxos).
        unstamped,
        /// Numbered no-ops sent (trap T18).
        noops_sent,
        /// Laps of the sweep begun (trap T19).
        sweep_laps,
        /// New switch ids asked for because the numbers run out (trap T20).
        switch_ids_asked,
    }
}

/// What `concord status` says about a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The switch's id; 0 before the first configuration.
    pub switch_id: SwitchId,
    /// The epoch of the last configuration accepted; 0 if none.
    pub epoch: Epoch,
    /// Whether the switch helps.
    pub accelerated: bool,
    /// The last number given out.
    pub seq: u32,
    /// The largest number known to be committed.
    pub last_committed: u32,
    /// Cells of the dirty set in use.
    pub occupied: u32,
    /// Cells of the dirty set.
    pub slots: u32,
    /// The program's counters.
    pub program: Counters,
    /// The agent's counters.
    pub agent: AgentCounters,
    /// What the faults did.
    pub faults: FaultCounters,
}

/// A lap of the sweep over the indices of the dirty set.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    /// `last_committed` moved since the last lap began: there may be new strays.
    wanted: bool,
    /// The next index.
    next: u32,
    /// Indices left of this lap.
    left: u32,
    /// When the next chunk is due.
    at: Instant,
}

/// The switch as a machine: hand it every datagram, wake it at its deadline.
#[derive(Clone, Debug)]
pub struct Agent {
    config: AgentConfig,
    program: Harmonia,
    faults: Faults,
    /// Never falls: a configuration of a lower epoch is ignored.
    epoch: Epoch,
    /// The last switch id that was installed; kept when another switch takes over. Never falls.
    switch_id: SwitchId,
    /// The highest switch id of any configuration, and the rack of the last one.
    heard: Heard,
    /// What the controller knows this life by. Counted up to ask for a new switch id.
    incarnation: Incarnation,
    /// The highest id that it heard of, its own or another switch's.
    newest_id: u32,
    /// The life to which the last switch id was granted; 0 if none was.
    granted: Incarnation,
    standby: bool,
    /// The switch id for which a successor was asked already.
    asked_for: SwitchId,
    /// When the next sign of life is due.
    alive_at: Instant,
    /// `last_committed` when last looked at.
    committed_seen: u32,
    /// Whether something was in flight when last looked at.
    waiting: bool,
    /// When the next no-op is due if `last_committed` still stands still then. Meaningful only
    /// while `waiting`.
    noop_at: Instant,
    sweep: Sweep,
    /// Where the switch orders: the log's time, by its leader's word; without it writes are dropped.
    clock: LogClock,
    /// The latest view in which a leader said so, and whether its data takes more than its limit.
    stamped_in: Epoch,
    memory_full: bool,
    counters: AgentCounters,
    /// For control messages, which are encoded into a buffer.
    buffer: Vec<u8>,
}

impl Agent {
    /// A switch that knows nobody but its controller.
    ///
    /// # Errors
    /// [`ConfigError`] if the layout cannot be.
    pub fn new(config: AgentConfig) -> Result<Agent, ConfigError> {
        Ok(Agent {
            program: Harmonia::new(config.layout, config.guards)?,
            faults: Faults::new(config.faults),
            epoch: Epoch(0),
            switch_id: SwitchId(0),
            heard: Heard::default(),
            incarnation: config.incarnation,
            newest_id: 0,
            granted: Incarnation(0),
            standby: config.standby,
            asked_for: SwitchId(0),
            alive_at: Instant(0),
            committed_seen: 0,
            waiting: false,
            noop_at: Instant::NEVER,
            sweep: Sweep::default(),
            clock: LogClock::default(),
            stamped_in: Epoch(0),
            memory_full: false,
            counters: AgentCounters::default(),
            buffer: Vec::new(),
            config,
        })
    }

    /// Takes one datagram, which it may rewrite, and sends what results.
    #[inline]
    pub fn handle(&mut self, now: Now, packet: &mut [u8], sink: &mut impl Sink) {
        match kind(packet) {
            Ok(Kind::Harmonia) => {
                if !self.faults.loses_input() {
                    self.forward(now, packet, sink);
                    self.look(now.instant);
                }
            }
            Ok(Kind::Membership) => self.on_membership(now, packet, sink),
            Ok(Kind::NoPaxos) => match Stamp::parse(packet) {
                Ok(stamp) => self.on_stamp(now, &stamp, sink),
                Err(_) => self.counters.control_malformed += 1,
            },
            Ok(Kind::Lease | Kind::Copy | Kind::Vr | Kind::Link | Kind::Craq) => {
                self.counters.misdirected += 1;
            }
            Err(error) => {
                let _: Verdict<_> = self.program.malformed(error);
            }
        }
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let clock = now;
        let now = now.instant;
        if now >= self.alive_at {
            self.alive_at = now.after(self.config.alive_interval_ns);
            self.send_alive(now, sink);
        }
        if self.waiting && now >= self.noop_at {
            self.send_noop(clock, sink);
        }
        if self.sweeping() && now >= self.sweep.at {
            self.sweep_chunk(now);
        }
        self.faults.flush(now, sink);
    }

    /// When to be woken, and why.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let mut deadline = Deadline { at: self.alive_at, reason: "sign of life" };
        if self.waiting {
            deadline = deadline.min(Deadline { at: self.noop_at, reason: "no-op (T18)" });
        }
        if self.sweeping() {
            deadline = deadline.min(Deadline { at: self.sweep.at, reason: "sweep (T19)" });
        }
        deadline.min(self.faults.deadline())
    }

    /// How the switch is.
    #[must_use]
    pub fn status(&self) -> Status {
        let tables = self.program.tables();
        Status {
            switch_id: tables.map_or(SwitchId(0), |t| t.switch_id),
            epoch: self.epoch,
            accelerated: tables.is_some_and(|t| t.accelerated),
            seq: self.program.seq(),
            last_committed: self.program.last_committed(),
            occupied: self.program.occupied(),
            slots: self.program.capacity(),
            program: *self.program.counters(),
            agent: self.counters,
            faults: *self.faults.counters(),
        }
    }

    /// The program, for its stage table and its registers.
    #[must_use]
    pub fn program(&self) -> &Harmonia {
        &self.program
    }

    /// One Harmonia packet through the pipeline and out.
    #[inline]
    fn forward(&mut self, now: Now, packet: &mut [u8], sink: &mut impl Sink) {
        // The log's time at which the packet arrived: the leader's word and the switch's own clock.
        if self.program.is_sequencer()
            && let Ok(mut write) = PacketMut::parse(packet)
            && write.view().op() == Op::Write
        {
            if self.clock.is_unset() {
                self.counters.unstamped += 1;
                return;
            }
            write.set_time_ms(self.clock.read(now.unix_ms));
            write.set_memory_full(self.memory_full);
        }
        match self.program.process(packet) {
            Verdict::Forward { to, size_bytes } => {
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                self.faults.sink(now.instant, sink).send(to, packet);
            }
            Verdict::Multicast { size_bytes } => {
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                for (_, to) in self.program.tables().iter().flat_map(|t| &t.replicas) {
                    self.faults.sink(now.instant, sink).send(*to, packet);
                }
            }
            // The program has counted the drop; it never recirculates.
            Verdict::Drop(_) | Verdict::Recirculate => {}
        }
    }

    /// Looks at the registers after they may have changed, and sets the timers that follow.
    #[inline]
    fn look(&mut self, now: Instant) {
        let last_committed = self.program.last_committed();
        let progressed = last_committed != self.committed_seen;
        self.committed_seen = last_committed;
        let waiting = self.waits(last_committed);
        if waiting && (progressed || !self.waiting) {
            self.noop_at = now.after(self.config.noop_interval_ns);
        }
        self.waiting = waiting;
        if progressed {
            if !self.sweeping() {
                self.sweep.at = now.after(self.config.sweep_interval_ns);
            }
            self.sweep.wanted = true;
        }
        if self.program.seq() >= self.ask_at() {
            self.ask_for_switch_id(now);
        }
    }

    /// Whether a completion must come, by a no-op's if by no other (trap T18). If every number
    /// given out is committed, all entries are stray: the sweep is enough.
    fn waits(&self, last_committed: u32) -> bool {
        if !self.program.tables().is_some_and(|t| t.accelerated) {
            return false;
        }
        let in_flight = last_committed < self.program.seq()
            && (self.program.occupied() > 0 || self.program.wildcard_seq() > last_committed);
        last_committed == 0 || in_flight
    }

    /// Trap T20: the number at which a successor of the switch id is asked for, while there are
    /// enough left to go on with.
    fn ask_at(&self) -> u32 {
        let max = self.config.layout.counter_max();
        max - max / 16
    }

    /// A new life is what the controller grants a new switch id to.
    fn ask_for_switch_id(&mut self, now: Instant) {
        if self.asked_for != self.switch_id {
            self.asked_for = self.switch_id;
            self.incarnation = Incarnation(self.incarnation.0.wrapping_add(1));
            self.alive_at = now;
            self.counters.switch_ids_asked += 1;
        }
    }

    fn on_membership(&mut self, now: Now, packet: &[u8], sink: &mut impl Sink) {
        match Membership::parse(packet) {
            Ok(Membership::Configure(config)) => self.on_configure(now, &config, sink),
            Ok(Membership::SwitchRetired { incarnation, switch }) => {
                if Incarnation(incarnation) == self.incarnation {
                    self.stand_down(switch);
                    self.alive_at = now.instant;
                }
            }
            Ok(
                Membership::ReplicaAlive { .. }
                | Membership::SwitchAlive { .. }
                | Membership::EpochState { .. }
                | Membership::Open { .. }
                | Membership::Opened { .. }
                | Membership::WhoIsWho { .. }
                | Membership::Reach { .. },
            ) => self.counters.misdirected += 1,
            Err(_) => self.counters.control_malformed += 1,
        }
    }

    /// NOPaxos: a leader's word on what is stamped on writes. The time never falls: if the leader is
    /// ahead, it is caught up with.
    fn on_stamp(&mut self, now: Now, stamp: &Stamp, sink: &mut impl Sink) {
        let Stamp { view, now_ms, memory_full, .. } = *stamp;
        if view < self.stamped_in {
            return;
        }
        (self.stamped_in, self.memory_full) = (view, memory_full);
        let is_first = self.clock.is_unset();
        if is_first || now_ms > self.clock.read(now.unix_ms) {
            self.clock.note(now_ms, now.unix_ms);
        }
        if is_first && self.program.is_sequencer() {
            self.send_noop(now, sink);
        }
    }

    fn on_configure(&mut self, now: Now, config: &Config, sink: &mut impl Sink) {
        // Under VR epochs are views, and those of a group that was founded anew begin at 1. Ids are granted
        // in order, whatever the group.
        let is_later_id = config.protocol.is_quorum() && config.switch_id > self.newest_id;
        if Epoch(config.epoch) < self.epoch && !is_later_id {
            self.counters.configures_old += 1;
            return;
        }
        // A quorum's epochs are its views, which the controller does not count.
        let epoch = if config.protocol.is_quorum() { 0 } else { config.epoch };
        self.heard = Heard {
            rack: config.rack,
            epoch: self.heard.epoch.max(epoch),
            switch_id: self.heard.switch_id.max(config.switch_id),
        };
        // Another switch is active: this one's fast reads and numbers are refused from now on
        // (Harmonia §6.3), so it falls silent.
        if config.switch != self.config.addr {
            self.epoch = Epoch(config.epoch);
            self.newest_id = self.newest_id.max(config.switch_id);
            return self.stand_down(config.switch);
        }
        // This switch was started again since: what its predecessor was to do is not for it.
        let life = Incarnation(config.switch_incarnation);
        if life != self.incarnation && life != self.granted {
            self.counters.configures_other_life += 1;
            return;
        }
        let Some(tables) = Tables::of(config).filter(|t| self.accepts(t)) else {
            self.counters.configures_refused += 1;
            return;
        };
        self.newest_id = self.newest_id.max(tables.switch_id.0);
        let activated = tables.switch_id > self.switch_id && tables.accelerated;
        if Epoch(config.epoch) > self.epoch || is_later_id {
            // The controller learns at once that the epoch is installed.
            self.alive_at = now.instant;
        }
        self.epoch = Epoch(config.epoch);
        self.granted = life;
        self.standby = false;
        self.switch_id = tables.switch_id;
        self.program.install(tables);
        self.counters.configured += 1;
        // What `look` compares with is the empty registers of a new switch id.
        self.look(now.instant);
        if activated {
            self.send_noop(now, sink);
        }
    }

    /// Another switch, or another life, was given the place. This one comes again as a new life: the
    /// old one is granted nothing any more. It stands by, unless nobody else has its address.
    fn stand_down(&mut self, active: Addr) {
        self.waiting = false;
        self.counters.deposed += 1;
        self.standby = active != self.config.addr;
        self.program.uninstall();
        self.incarnation = Incarnation(self.incarnation.0.wrapping_add(1));
    }

    /// A switch id is granted once (trap T20): a known one means something only as long as the
    /// registers that belong to it are there. And under one id the switch cannot begin to help:
    /// writes that it let through without a number may still be in flight.
    fn accepts(&self, tables: &Tables) -> bool {
        let same = |own: &Tables| {
            own.switch_id == tables.switch_id && own.accelerated == tables.accelerated
        };
        tables.switch_id > self.switch_id || self.program.tables().is_some_and(same)
    }

    fn send_alive(&mut self, now: Instant, sink: &mut impl Sink) {
        let alive = Membership::SwitchAlive {
            incarnation: self.incarnation.0,
            addr: self.config.addr,
            sent_at: now.0,
            epoch: self.epoch.0,
            heard: self.heard,
            standby: self.standby,
        };
        alive.emit(&mut self.buffer);
        sink.send(self.config.controller, &self.buffer);
    }

    /// Trap T18: a write that changes nothing, whose completion brings the fast path (back) and
    /// turns entries of lost writes into strays.
    fn send_noop(&mut self, now: Now, sink: &mut impl Sink) {
        let noop = Repr {
            flags: Flags::NOOP,
            obj_id: ObjectId(0),
            client: self.config.addr,
            ..Repr::new(Op::Write)
        };
        self.counters.noops_sent += 1;
        self.forward(now, &mut noop.header(0), sink);
        self.look(now.instant);
        self.noop_at = now.instant.after(self.config.noop_interval_ns);
    }

    /// Whether a lap is under way or due: there are entries, and some may be stray.
    fn sweeping(&self) -> bool {
        (self.sweep.left > 0 || self.sweep.wanted) && self.program.occupied() > 0
    }

    /// Trap T19: the next sweep packets through the pipeline.
    fn sweep_chunk(&mut self, now: Instant) {
        if self.sweep.left == 0 {
            self.sweep.wanted = false;
            self.sweep.left = self.config.layout.slots;
            self.counters.sweep_laps += 1;
        }
        for _ in 0..self.sweep.left.min(self.config.sweep_chunk) {
            let mut packet = Repr { index: self.sweep.next, ..Repr::new(Op::Sweep) }.header(0);
            let _: Verdict<_> = self.program.process(&mut packet);
            self.sweep.next = (self.sweep.next + 1) % self.config.layout.slots;
            self.sweep.left -= 1;
        }
        self.sweep.at = now.after(self.config.sweep_interval_ns);
        self.look(now);
    }
}
