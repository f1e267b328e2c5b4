//! The seat of switch programs: what every switch does, whichever programs it runs. It sends
//! keepalives to the controller, installs configurations, acts as a standby and steps down, asks
//! for a new switch id before a program runs out of sequence numbers (trap T20), and injects
//! faults.
//!
//! Each group of the rack has a program. A packet goes to the program that takes its kind; where a
//! switch runs several, to the program of its group. In user space packets come in here too; what
//! an ASIC does around its programs is in [`crate::fabric`].

use concord_core::machine::{Deadline, Relevance};
use concord_core::{
    Duration, Epoch, Guards, Incarnation, Instant, MS, Machine, Nothing, Now, SwitchId,
};
use concord_pisa::{ASIC, Metadata, PORTS_MAX, Report};
use concord_wire::control::{Assembly, Config, Heard, Membership, Message as _, Program};
use concord_wire::{Addr, GroupId, Kind, Op, Packet, Sink, header, kind};

use alloc::vec::Vec;

use crate::fabric::{Arrival, Fabric, FabricCounters};
use crate::faults::{FaultCounters, FaultRates, Faults};
use crate::netcraq::{ChainMember, ChainSeat};
use crate::program::{
    Count, Gauge, Host, Injection, LoadError, RECIRCULATIONS_MAX, Settings, Takes, Wants,
};
use crate::recirculation::{Loop, Recirculation, Waiting};
use crate::registry::Hosted;
use crate::settings::Sections;

/// The maximum number of groups with a program on one switch.
pub const SEATS_MAX: usize = 8;
/// The maximum number of packets that a program injects at one time.
const INJECTIONS_MAX: usize = 1 << 20;

/// The configuration of an agent, given at its start.
#[derive(Clone, Copy, Debug)]
pub struct AgentConfig {
    /// The incarnation of this switch. A new one gets a new switch id (trap T20).
    pub incarnation: Incarnation,
    /// Whether the switch waits as a standby, and takes over only when the active switch is silent.
    pub standby: bool,
    /// The address at which the switch listens, as its peers reach it.
    pub addr: Addr,
    /// The address at which the controller listens.
    pub controller: Addr,
    /// The program that the switch runs until a configuration names another one.
    pub program: Program,
    /// The settings of the programs, a section for each system.
    pub sections: Sections,
    /// The chain of which the switch itself is to be a member, and whether it serves only that
    /// chain. If it does, it is not a switch of the rack, and ignores configurations that name
    /// another switch.
    pub chain: Option<(ChainSeat, bool)>,
    /// The guards that are on: all of them, except in tests that remove one.
    pub guards: Guards,
    /// The rates of injected faults; none by default.
    pub faults: FaultRates,
    /// The time between two keepalives, in ns.
    pub alive_interval_ns: Duration,
    /// The delay and capacity of the path that recirculated packets take.
    pub recirculation: Loop,
    /// The time from a pass until programs read their registers, in ns; 0: they read them with the
    /// pass, as only a switch in user space can. Under XDP and on an ASIC packets do not come in
    /// here.
    pub look_after_ns: Duration,
}

impl AgentConfig {
    /// A configuration with the default values.
    #[must_use]
    pub const fn new(incarnation: Incarnation, addr: Addr, controller: Addr) -> AgentConfig {
        AgentConfig {
            incarnation,
            standby: false,
            addr,
            controller,
            program: Program::DEFAULT,
            sections: Sections::DEFAULT,
            chain: None,
            guards: Guards::ALL,
            faults: FaultRates { seed: 0, drop_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0 },
            alive_interval_ns: 100 * MS,
            recirculation: Loop::DEFAULT,
            look_after_ns: 0,
        }
    }

    /// The settings that its programs are loaded with.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        Settings { addr: self.addr, guards: self.guards, sections: self.sections, member: None }
    }

    /// The settings that the program of its chain is loaded with.
    const fn chain_settings(&self, seat: ChainSeat) -> Settings {
        let (incarnation, controller) = (self.incarnation.0, self.controller);
        let member = ChainMember { seat, incarnation, controller };
        Settings { member: Some(member), ..self.settings() }
    }
}

concord_core::counters! {
    /// Counts of what the agent did.
    pub struct AgentCounters {
        /// Configurations installed.
        configured,
        /// Configurations ignored because they belong to an epoch that is over.
        configures_old,
        /// Configurations refused because the switch cannot execute them: they have no members,
        /// reuse a switch id, name another program under the same switch id, or name a program that
        /// this switch does not have or has no room for. A rise is a mistake in the rack file, or a
        /// switch that is too small for it.
        configures_refused,
        /// Configurations ignored because they were made for an earlier incarnation of this switch.
        configures_other_life,
        /// Configurations that name another switch as the active one: this switch stops forwarding.
        deposed,
        /// Control messages dropped because they are malformed.
        control_malformed,
        /// Datagrams dropped because their kind or operation is not for a switch.
        misdirected,
        /// New switch ids requested because the sequence numbers of this one run out (trap T20).
        switch_ids_asked,
    }
}

/// The state of a program, as `concord status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStatus {
    /// The group that the program serves.
    pub group: GroupId,
    /// The name of the program.
    pub program: Program,
    /// The switch's id; 0 if it has no configuration.
    pub switch_id: SwitchId,
    /// The epoch of the last configuration accepted; 0 if none.
    pub epoch: Epoch,
    /// Whether the program is in effect: configured, and past its own start-up.
    pub is_ready: bool,
    /// Its gauges: what its state is.
    pub gauges: Vec<Gauge>,
    /// Its counters.
    pub counts: Vec<Count>,
}

/// The state of a switch, as `concord status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its programs, in the order of their seats; at least one.
    pub programs: Vec<ProgramStatus>,
    /// Whether it is a standby, which waits until the active switch is silent.
    pub stands_by: bool,
    /// The agent's counters.
    pub agent: AgentCounters,
    /// The fate of packets after the programs' verdicts.
    pub fabric: FabricCounters,
    /// The injected faults.
    pub faults: FaultCounters,
}

/// A group's program, and the configuration that is installed in it.
#[derive(Clone, Debug)]
struct Seat<H> {
    group: GroupId,
    program: H,
    /// How often a packet may be recirculated.
    recirculations_max: u8,
    /// Whether a configuration is installed.
    is_installed: bool,
    /// Whether the switch itself is a member of this group: then the program registers with the
    /// controller, and takes the group's configurations.
    is_member: bool,
    /// The addresses that get ports.
    members: Vec<Addr>,
    /// The epoch of the newest configuration. Never falls: a configuration of a lower epoch is
    /// ignored.
    epoch: Epoch,
    /// The last switch id that was installed; it stays when another switch takes over. Never falls.
    switch_id: SwitchId,
    /// The highest epoch and switch id of any configuration, and the rack of the last one.
    heard: Heard,
    /// The highest switch id seen in a configuration, this switch's or another's.
    newest_id: u32,
    /// The incarnation to which the last switch id was granted; 0 if none was.
    granted: Incarnation,
    /// The switch id for which a successor was already requested.
    asked_for: SwitchId,
}

impl<H: Host> Seat<H> {
    fn new(group: GroupId, program: H) -> Seat<H> {
        Seat {
            group,
            recirculations_max: recirculations_max(&program),
            program,
            is_installed: false,
            is_member: false,
            members: Vec::new(),
            epoch: Epoch(0),
            switch_id: SwitchId(0),
            heard: Heard::default(),
            newest_id: 0,
            granted: Incarnation(0),
            asked_for: SwitchId(0),
        }
    }

    /// The arrival of a packet that is to make its first pass.
    #[inline]
    fn arrival(&self, seat: usize, sender: Addr) -> Arrival {
        let (rounds_left, metadata) = (self.recirculations_max, Metadata::default());
        Arrival { seat, sender, passes: 0, rounds_left, metadata }
    }

    fn switch_id_in_force(&self) -> SwitchId {
        if self.is_installed { self.switch_id } else { SwitchId(0) }
    }

    fn is_ready(&self) -> bool {
        self.is_installed && self.program.is_ready()
    }

    fn is_unused(&self) -> bool {
        self.epoch == Epoch(0) && !self.is_installed && !self.is_member
    }

    /// Whether a configuration can be installed. A switch id is granted once (trap T20): a known
    /// one is valid only while the registers that belong to it are there. Under one id a program
    /// cannot replace another: writes that the other one passed on without a number may still be in
    /// flight.
    fn accepts(&self, config: &Config) -> bool {
        let is_same = self.is_installed
            && config.switch_id == self.switch_id.0
            && config.program == self.program.program();
        SwitchId(config.switch_id) > self.switch_id || is_same
    }
}

fn recirculations_max(program: &impl Host) -> u8 {
    let said = program.describe().recirculations_max;
    u8::try_from(said).unwrap_or(u8::MAX).min(RECIRCULATIONS_MAX)
}

/// A switch as a state machine, with the programs of `H`: pass it every datagram, and wake it at
/// its deadline.
#[derive(Clone, Debug)]
pub struct SwitchAgent<H> {
    config: AgentConfig,
    /// At least one, at most [`SEATS_MAX`], each for a different group.
    seats: Vec<Seat<H>>,
    fabric: Fabric,
    /// Configurations that take several packets, of which some have arrived.
    assembly: Assembly,
    /// The incarnation by which the controller knows this switch. It is raised to ask for a new
    /// switch id.
    incarnation: Incarnation,
    standby: bool,
    /// When the next keepalive is due.
    alive_at: Instant,
    /// When programs read their registers, if they do so some time after a pass.
    look_at: Instant,
    counters: AgentCounters,
    /// A buffer in which control messages are encoded.
    buffer: Vec<u8>,
}

/// A switch agent with the programs of this crate.
pub type Agent = SwitchAgent<Hosted>;

impl<H: Host> SwitchAgent<H> {
    /// A switch that knows no node but its controller.
    ///
    /// # Errors
    /// [`LoadError`] if its program cannot be loaded.
    pub fn new(config: AgentConfig) -> Result<SwitchAgent<H>, LoadError> {
        let mut seats = Vec::new();
        if !matches!(config.chain, Some((_, true))) {
            let program = H::host(config.program, &config.settings())?;
            seats.push(Seat::new(GroupId(0), program));
        }
        if let Some((chain, _)) = config.chain {
            let program = H::host(Program::NetCraq, &config.chain_settings(chain))?;
            let seat = Seat::new(chain.group, program);
            seats.push(Seat { is_member: true, is_installed: true, ..seat });
        }
        Ok(SwitchAgent {
            seats,
            fabric: Fabric::new(
                Recirculation::new(config.recirculation),
                Faults::new(config.faults),
                config.look_after_ns == 0,
            ),
            assembly: Assembly::new(SEATS_MAX),
            incarnation: config.incarnation,
            standby: config.standby,
            alive_at: Instant(0),
            look_at: Instant::NEVER,
            counters: AgentCounters::default(),
            buffer: Vec::new(),
            config,
        })
    }

    /// The state of the switch.
    #[must_use]
    pub fn status(&self) -> Status {
        let status = |seat: &Seat<H>| ProgramStatus {
            group: seat.group,
            program: seat.program.program(),
            switch_id: seat.switch_id_in_force(),
            epoch: seat.epoch,
            is_ready: seat.is_ready(),
            gauges: seat.program.gauges(),
            counts: seat.program.counts(),
        };
        let mut programs = self.seats.iter().map(status).collect::<Vec<_>>();
        programs.sort_by_key(|program| program.group);
        Status {
            programs,
            stands_by: self.standby,
            agent: self.counters,
            fabric: self.fabric.counters,
            faults: *self.fabric.faults.counters(),
        }
    }

    /// The program of the first group, for its registers and counters.
    #[must_use]
    pub fn program(&self) -> &H {
        &self.seats[0].program
    }

    /// The programs of all groups.
    pub fn programs(&self) -> impl Iterator<Item = &H> {
        self.seats.iter().map(|seat| &seat.program)
    }

    /// The epoch of the first group's last configuration; 0 if it has none.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.seats[0].epoch
    }

    /// The switch id of the first group's configuration; 0 if it has none.
    #[must_use]
    pub fn switch_id(&self) -> SwitchId {
        self.seats[0].switch_id_in_force()
    }

    /// Whether the first group's program is configured and in effect.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.seats[0].is_ready()
    }

    /// The agent's counters.
    #[must_use]
    pub fn counters(&self) -> &AgentCounters {
        &self.counters
    }

    /// The fate of packets after the programs' verdicts.
    #[must_use]
    pub fn fabric(&self) -> &FabricCounters {
        &self.fabric.counters
    }

    /// The resources of an ASIC that all programs need together.
    #[must_use]
    pub fn describe(&self) -> Report {
        let rest = self.seats[1..].iter().map(|seat| seat.program.describe());
        rest.fold(self.seats[0].program.describe(), Report::beside)
    }
}

impl<H: Host> Machine for SwitchAgent<H> {
    type Persist = Nothing;

    #[inline]
    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        let kind = match kind(packet) {
            Ok(Kind::Membership) if !self.is_of_chain(packet) => {
                return self.on_membership(now, packet, sink);
            }
            Ok(kind) => kind,
            Err(error) => return self.seats[0].program.malformed(error),
        };
        let Some(at) = self.seat_for(packet) else {
            self.counters.misdirected += 1;
            return;
        };
        let seat = &mut self.seats[at];
        match seat.program.takes(kind) {
            Takes::Data => {
                if !self.fabric.recirculation.is_empty() {
                    self.come_round(now, sink);
                }
                if !self.fabric.faults.loses_input() {
                    let seat = &mut self.seats[at];
                    let arrival = seat.arrival(at, from);
                    let wants = seat.program.pass(&mut self.fabric, now, arrival, packet, sink);
                    self.see_to(at, wants, now.instant);
                }
            }
            Takes::Control => match seat.program.control(now, packet) {
                Ok(injection) => {
                    self.inject(at, now, injection, sink);
                    self.seats[at].program.speak(sink);
                }
                Err(_) => self.counters.control_malformed += 1,
            },
            Takes::Nothing => self.counters.misdirected += 1,
        }
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if now.instant >= self.look_at {
            self.look(now.instant);
        }
        if now.instant >= self.alive_at {
            self.alive_at = now.instant.after(self.config.alive_interval_ns);
            self.send_alive(now.instant, sink);
        }
        for seat in 0..self.seats.len() {
            for _ in 0..INJECTIONS_MAX {
                let injection = self.seats[seat].program.upkeep(now.instant);
                if injection.is_none() {
                    break;
                }
                self.inject(seat, now, injection, sink);
            }
            self.seats[seat].program.speak(sink);
        }
        self.come_round(now, sink);
        self.fabric.faults.flush(now.instant, sink);
    }

    fn deadline(&self) -> Deadline {
        let alive = Deadline { at: self.alive_at, reason: "sign of life" };
        let alive = alive.min(Deadline { at: self.look_at, reason: "look at the registers" });
        let programs = self.seats.iter().map(|seat| seat.program.deadline());
        let others = [self.fabric.recirculation.deadline(), self.fabric.faults.deadline()];
        programs.chain(others).fold(alive, Deadline::min)
    }

    /// A configuration of an earlier epoch is stale. A reply or a completion that changes nothing
    /// now never will: all numbers up to its own were given out before, and the dirty set has no
    /// entry that it could still remove. Its client already has the reply.
    fn relevance(&self, packet: &[u8]) -> Relevance {
        match kind(packet) {
            Ok(Kind::Membership) => match Membership::parse(packet) {
                Ok(Membership::Configure(part)) if part.common().epoch < self.epoch().0 => {
                    Relevance::Stale
                }
                Ok(_) | Err(_) => Relevance::Relevant,
            },
            Ok(Kind::Store) => match Packet::parse(packet).map(|p| p.op()) {
                Ok(Op::WriteReply | Op::WriteCompletion) => Relevance::AsPassedOn,
                Ok(_) | Err(_) => Relevance::Relevant,
            },
            Ok(_) | Err(_) => Relevance::Relevant,
        }
    }
}

/// The path of a packet through the switch.
impl<H: Host> SwitchAgent<H> {
    /// Whether a packet belongs to a group of which the switch itself is a member.
    #[inline]
    fn is_of_chain(&self, packet: &[u8]) -> bool {
        let group = header::group(packet);
        self.seats.iter().any(|seat| seat.is_member && seat.group == group)
    }

    /// The seat whose program gets a packet: that of the packet's group.
    #[inline]
    fn seat_for(&self, packet: &[u8]) -> Option<usize> {
        let group = header::group(packet);
        self.seats.iter().position(|seat| seat.group == group)
    }

    /// Processes the packets whose recirculation ends by `now`. Each is recirculated a bounded
    /// number of times; where recirculation takes no time, this goes on until the packet leaves.
    fn come_round(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(waiting) = self.fabric.recirculation.pop(now.instant) {
            let Waiting { arrival, mut bytes, .. } = waiting;
            let seat = &mut self.seats[arrival.seat];
            let wants = seat.program.pass(&mut self.fabric, now, arrival, &mut bytes, sink);
            self.see_to(arrival.seat, wants, now.instant);
            self.fabric.recirculation.reuse(bytes);
        }
    }
}

/// The tasks of the switch's own processor.
impl<H: Host> SwitchAgent<H> {
    /// Sends a program's own packet through its pipeline.
    fn inject(
        &mut self,
        seat: usize,
        now: Now,
        injection: Option<Injection>,
        sink: &mut impl Sink,
    ) {
        let Some(mut injection) = injection else { return };
        let own = &mut self.seats[seat];
        let arrival = own.arrival(seat, self.config.addr);
        let packet = injection.packet();
        header::set_group(packet, own.group);
        let wants = own.program.pass(&mut self.fabric, now, arrival, packet, sink);
        self.see_to(seat, wants, now.instant);
    }

    /// Handles a program's request to the controller after a pass: at once if the program read its
    /// registers with the pass, else when it next reads them.
    #[inline]
    fn see_to(&mut self, seat: usize, wants: Wants, now: Instant) {
        if !self.fabric.looks_with_pass() {
            self.look_at = self.look_at.min(now.after(self.config.look_after_ns));
        }
        self.ask(seat, wants, now);
    }

    /// All programs read their registers.
    fn look(&mut self, now: Instant) {
        self.look_at = Instant::NEVER;
        for seat in 0..self.seats.len() {
            let wants = self.seats[seat].program.look(now);
            self.ask(seat, wants, now);
        }
    }

    #[inline]
    fn ask(&mut self, seat: usize, wants: Wants, now: Instant) {
        let seat = &mut self.seats[seat];
        // The controller grants a new switch id only to a new incarnation.
        if wants == Wants::SwitchId && seat.asked_for != seat.switch_id {
            seat.asked_for = seat.switch_id;
            self.incarnation = Incarnation(self.incarnation.0.wrapping_add(1));
            self.alive_at = now;
            self.counters.switch_ids_asked += 1;
        }
    }

    fn on_membership(&mut self, now: Now, packet: &[u8], sink: &mut impl Sink) {
        match Membership::parse(packet) {
            Ok(Membership::Configure(part)) => {
                if let Some(config) = self.assembly.take(part) {
                    self.on_configure(now, &config, sink);
                }
            }
            Ok(Membership::SwitchRetired { incarnation, switch }) => {
                if Incarnation(incarnation) == self.incarnation {
                    self.stand_down(switch);
                    self.alive_at = now.instant;
                }
            }
            Ok(
                Membership::ReplicaAlive(_)
                | Membership::VoterAlive { .. }
                | Membership::ChangeVoter { .. }
                | Membership::VotersTold(_)
                | Membership::Compared { .. }
                | Membership::WasDurable { .. }
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

    fn on_configure(&mut self, now: Now, config: &Config, sink: &mut impl Sink) {
        let Some(at) = self.seat_of(config) else {
            self.counters.configures_refused += 1;
            return;
        };
        let seat = &mut self.seats[at];
        // Under VR epochs are views, and those of a group that was founded anew begin at 1. Switch
        // ids are granted in order, whatever the group.
        let is_later_id = config.kind.is_quorum() && config.switch_id > seat.newest_id;
        let epoch = Epoch(config.epoch);
        if epoch < seat.epoch && !is_later_id {
            self.counters.configures_old += 1;
            return;
        }
        // The epochs of a quorum are its views, which the controller does not count.
        let counted = if config.kind.is_quorum() { 0 } else { config.epoch };
        seat.heard = Heard {
            rack: config.rack,
            epoch: seat.heard.epoch.max(counted),
            switch_id: seat.heard.switch_id.max(config.switch_id),
        };
        // Another switch is active: replicas refuse this one's fast reads and numbers from now on
        // (Harmonia §6.3), so it falls silent.
        if config.switch != self.config.addr {
            seat.epoch = epoch;
            seat.newest_id = seat.newest_id.max(config.switch_id);
            return self.stand_down(config.switch);
        }
        // This switch has restarted since: the configuration was for its previous incarnation.
        let incarnation = Incarnation(config.switch_incarnation);
        if incarnation != self.incarnation && incarnation != seat.granted {
            self.counters.configures_other_life += 1;
            return;
        }
        let Some(first) = self.install(at, now, config) else {
            self.counters.configures_refused += 1;
            // Remove the seat if it was added for this configuration.
            if at > 0 && self.seats[at].is_unused() {
                self.seats.truncate(at);
            }
            return;
        };
        let seat = &mut self.seats[at];
        seat.newest_id = seat.newest_id.max(config.switch_id);
        if epoch > seat.epoch || is_later_id {
            // Tell the controller at once that the epoch is installed.
            self.alive_at = now.instant;
        }
        seat.epoch = epoch;
        seat.granted = incarnation;
        seat.switch_id = SwitchId(config.switch_id);
        self.standby = false;
        self.counters.configured += 1;
        // Read the empty registers of a new switch id, to which the program compares later ones.
        let wants = seat.program.look(now.instant);
        self.see_to(at, wants, now.instant);
        self.inject(at, now, first, sink);
    }

    /// The seat of a configuration's group. A group without a seat gets one, with the
    /// configuration's program.
    fn seat_of(&mut self, config: &Config) -> Option<usize> {
        let known = self.seats.iter().position(|seat| seat.group == config.group);
        if known.is_some() {
            return known;
        }
        if let [seat] = &mut self.seats[..]
            && seat.is_unused()
        {
            // What this seat heard for another group does not concern the new one.
            (seat.group, seat.heard) = (config.group, Heard::default());
            return Some(0);
        }
        let is_ours = config.switch == self.config.addr
            && Incarnation(config.switch_incarnation) == self.incarnation;
        if !is_ours || self.seats.len() >= SEATS_MAX {
            return None;
        }
        let program = self.load(config.program, self.seats.len())?;
        self.seats.push(Seat::new(config.group, program));
        Some(self.seats.len() - 1)
    }

    /// Loads a program, if the ASIC has room for it beside those of the other seats.
    fn load(&self, program: Program, seat: usize) -> Option<H> {
        let program = H::host(program, &self.config.settings()).ok()?;
        let others = self.seats.iter().enumerate().filter(|(at, _)| *at != seat);
        let others = others.map(|(_, other)| other.program.describe());
        others.fold(program.describe(), Report::beside).fits(&ASIC).then_some(program)
    }

    /// Fills the tables of a seat's program, which is loaded first if the configuration names
    /// another one, and returns the packet that the program injects. `None` if the configuration
    /// cannot be installed; then nothing has changed.
    fn install(&mut self, at: usize, now: Now, config: &Config) -> Option<Option<Injection>> {
        if !self.seats[at].accepts(config) {
            return None;
        }
        let is_same = config.program == self.seats[at].program.program();
        let mut loaded = if is_same { None } else { Some(self.load(config.program, at)?) };
        let uses_ports = loaded.as_ref().unwrap_or(&self.seats[at].program).uses_ports();
        let members: Vec<Addr> =
            config.members.iter().filter(|_| uses_ports).map(|member| member.addr).collect();
        let others = self.seats.iter().enumerate().filter(|(other, _)| *other != at);
        if others.map(|(_, other)| other.members.len()).sum::<usize>() + members.len() >= PORTS_MAX
        {
            return None;
        }
        let seat = &mut self.seats[at];
        let first = loaded.as_mut().unwrap_or(&mut seat.program).install(now, config).ok()?;
        if let Some(program) = loaded {
            seat.recirculations_max = recirculations_max(&program);
            seat.program = program;
            self.fabric.recirculation.forget(at);
        }
        (seat.is_installed, seat.members) = (true, members);
        self.fill_ports();
        Some(first)
    }

    /// Gives a port to each member that a bitmap can name.
    fn fill_ports(&mut self) {
        let members = self.seats.iter().flat_map(|seat| &seat.members);
        let wanted: Vec<Addr> = members.copied().collect();
        // There are enough ports: `install` has counted them.
        let _ = self.fabric.ports.fill(&wanted);
    }

    /// Another switch, or another incarnation of this one, became the active switch. This one
    /// registers again under a new incarnation, since the old one is granted nothing any more. It
    /// is a standby, unless the active switch has its address.
    fn stand_down(&mut self, active: Addr) {
        self.counters.deposed += 1;
        self.standby = active != self.config.addr;
        for seat in self.seats.iter_mut().filter(|seat| !seat.is_member) {
            seat.program.uninstall();
            seat.is_installed = false;
            seat.members.clear();
        }
        self.fill_ports();
        self.incarnation = Incarnation(self.incarnation.0.wrapping_add(1));
    }

    /// Sends a keepalive for each group, which the header names.
    fn send_alive(&mut self, now: Instant, sink: &mut impl Sink) {
        for seat in self.seats.iter().filter(|seat| !seat.is_member) {
            let alive = Membership::SwitchAlive {
                incarnation: self.incarnation.0,
                addr: self.config.addr,
                sent_at: now.0,
                epoch: seat.epoch.0,
                heard: seat.heard,
                standby: self.standby,
            };
            alive.emit(&mut self.buffer);
            header::set_group(&mut self.buffer, seat.group);
            sink.send(self.config.controller, &self.buffer);
        }
    }
}
