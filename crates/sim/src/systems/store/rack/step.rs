//! The handling of an event: a host gives its machine a packet, a tick or a completion, and
//! transmits what the machine sends.

use concord_control::NotStored;
use concord_core::machine::{Deadline, Persist};
use concord_core::{Machine, Now, US};
use concord_wire::rpc::HEADER_BYTES;
use concord_wire::{Kind, Op, link, op};

use super::{Rack, Role};
use crate::systems::store::role;
use crate::world::{CONTROLLER, Event, REPLICAS, addr};

impl Rack<'_> {
    pub(super) fn step(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, bytes } => {
                let other = self.other_controller();
                if to == CONTROLLER && matches!(self.slots[other].role, Role::Controller(_)) {
                    // Both nodes listen at this address.
                    self.arrive(from, other, bytes.clone());
                }
                self.arrive(from, to, bytes);
            }
            Event::Serve { node } => self.serve(node),
            Event::Wake { node } => {
                if self.slots[node].wake_at_ns == self.world.now_ns {
                    self.slots[node].wake_at_ns = u64::MAX;
                    if self.is_free(node) && self.slots[node].inbox.is_empty() {
                        self.tick(node);
                    } else {
                        self.slots[node].tick_due = true;
                        self.schedule_serve(node);
                    }
                }
            }
            Event::Engine { node } => self.engine_completes(node),
            Event::Next { node, connection } => self.next_operation(node, connection),
            Event::Fault { index } => {
                self.faults_left -= 1;
                self.inject(self.plan.faults[index].fault);
            }
            Event::Disk { node, incarnation } => self.disk_synced(node, incarnation),
            Event::Start { node } => self.start_again(node),
            Event::Room { node } => self.look_for_room(node),
        }
    }

    fn free_at_ns(&self, node: usize) -> u64 {
        self.slots[node].paused_until_ns.max(self.slots[node].busy_until_ns)
    }

    fn is_free(&self, node: usize) -> bool {
        self.free_at_ns(node) <= self.world.now_ns
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        if matches!(self.slots[to].role, Role::Dead) {
            return self.outgoing.reuse(bytes);
        }
        let idle = self.slots[to].inbox.is_empty() && !self.slots[to].tick_due;
        if idle && self.is_free(to) {
            return self.deliver((from, to), bytes, 1, self.world.clock(to));
        }
        if self.slots[to].inbox.len() >= self.plan.queue_packets_max {
            self.totals.queue_full += 1;
            return self.outgoing.reuse(bytes);
        }
        self.slots[to].inbox.push_back((from, bytes));
        self.schedule_serve(to);
    }

    pub(super) fn schedule_serve(&mut self, node: usize) {
        if !self.slots[node].serve_scheduled {
            self.slots[node].serve_scheduled = true;
            let at_ns = self.free_at_ns(node).max(self.world.now_ns);
            self.world.push(at_ns, Event::Serve { node });
        }
    }

    /// Lets a node handle its next input: a tick, or a packet.
    fn serve(&mut self, node: usize) {
        self.slots[node].serve_scheduled = false;
        if !self.is_free(node) {
            return self.schedule_serve(node);
        }
        // A driver that slept may handle packets first, or its timer.
        let packets_first = !self.slots[node].inbox.is_empty()
            && (self.slots[node].batch.is_some() || self.incarnations.chance(1, 2));
        if self.slots[node].tick_due && !packets_first {
            self.slots[node].tick_due = false;
            self.tick(node);
        } else {
            self.serve_packet(node);
        }
        if self.slots[node].tick_due || !self.slots[node].inbox.is_empty() {
            self.schedule_serve(node);
        }
    }

    /// Lets a node handle the next packet of the batch, or the first of another batch, of all
    /// packets that have arrived by now.
    fn serve_packet(&mut self, node: usize) {
        let now = self.world.clock(node);
        let slot = &mut self.slots[node];
        let received = slot.inbox.len().min(self.plan.batch_packets);
        let (left, received_at) = slot.batch.take().unwrap_or((received, now));
        let Some((from, bytes)) = slot.inbox.pop_front() else { return };
        if left > 1 {
            slot.batch = Some((left - 1, received_at));
        }
        self.deliver((from, node), bytes, left, received_at);
    }

    /// Delivers a packet of a batch, in which `left` packets follow it.
    fn deliver(&mut self, way: (usize, usize), mut bytes: Vec<u8>, left: usize, now: Now) {
        let (from, node) = way;
        self.world.note(1, node, &bytes);
        let service_ns = self.service_ns(node, &bytes);
        let waiting = self.slots[node].inbox.len();
        let (role, out) = (&mut self.slots[node].role, &mut self.outgoing);
        role.handle(now, addr(from), &mut bytes, out);
        if left == 1 {
            if let Role::Replica(replica) = role {
                replica.note_queue(waiting);
            }
            role.flush(now, out);
        } else {
            self.totals.batched += 1;
        }
        self.outgoing.reuse(bytes);
        self.after(node, service_ns);
    }

    /// The time that the node is busy with a packet, in ns.
    fn service_ns(&self, node: usize, bytes: &[u8]) -> u64 {
        let service = &self.plan.service;
        let slot = &self.slots[node];
        let extra_ns = if self.world.now_ns < slot.slow.1 { slot.slow.0 } else { 0 };
        let own_ns = match (&slot.role, concord_wire::kind(bytes)) {
            // On links, the time passes in the pipeline, which accepts the next packet meanwhile.
            (Role::Switch(_), _) if self.plan.links.is_on() => 0,
            (Role::Switch(_), _) => service.switch_ns,
            (Role::Client(_), _) => service.client_ns,
            (Role::Controller(_) | Role::Dead, _) => 0,
            (Role::Replica(_), Ok(Kind::Store)) if bytes.len() >= HEADER_BYTES => {
                match Op::from_byte(op(bytes)) {
                    Some(Op::Read) => service.read_ns,
                    Some(Op::Write) => service.write_ns,
                    _ => service.other_ns,
                }
            }
            (Role::Replica(_), Ok(Kind::Link)) => match op(bytes) {
                link::OP_DATA => service.record_ns,
                _ => service.ack_ns,
            },
            (Role::Replica(_), Ok(Kind::Craq)) => service.query_ns,
            (Role::Replica(_), _) => service.other_ns,
        };
        own_ns + extra_ns
    }

    pub(super) fn tick(&mut self, node: usize) {
        let now = self.world.clock(node);
        self.world.note(2, node, &[]);
        role::wake(&mut self.slots[node].role, now, &mut self.outgoing);
        self.after(node, 0);
        self.count_overdue(node, now);
    }

    fn engine_completes(&mut self, node: usize) {
        let slot = &self.slots[node];
        let until_ns = slot.paused_until_ns.max(slot.engine_stalled_until_ns);
        if until_ns > self.world.now_ns {
            return self.world.push(until_ns, Event::Engine { node });
        }
        let slot = &mut self.slots[node];
        slot.completions_scheduled = slot.completions_scheduled.saturating_sub(1);
        let now = self.world.clock(node);
        let Role::Replica(replica) = &mut slot.role else { return };
        replica.engine_mut().backend_mut().release();
        let (machine, mut out) = replica.input(&mut self.outgoing);
        machine.engine_ready(now, &mut out);
        machine.flush(now, &mut out);
        self.world.note(3, node, &[]);
        self.after(node, 0);
    }

    /// The compare-and-swap of the controllers' state (trap T3).
    fn persist(&mut self, node: usize) {
        let Role::Controller(c) = &mut self.slots[node].role else { return };
        // Another controller has stored a state meanwhile.
        if c.is_behind()
            && let Some(stored) = self.file.stored.clone()
            && stored.version > c.state().version
        {
            return c.superseded(stored);
        }
        let Some(Persist { number, what: state }) = c.poll_persist() else { return };
        if self.file.is_full(self.world.now_ns) {
            let now = self.world.clock(node);
            let Role::Controller(c) = &mut self.slots[node].role else { return };
            return c.not_stored(now, NotStored::Full);
        }
        if state.follows(self.file.stored.as_ref(), self.plan.guards) {
            if self.plan.invariants && self.broken.is_none() {
                self.broken = self.removes_healthy(&state).map(|why| self.standing(&why));
            }
            let now = self.world.clock(node);
            let Role::Controller(c) = &mut self.slots[node].role else { return };
            self.file.store(state);
            c.persisted(now, number, &mut self.outgoing);
        } else if let Some(stored) = self.file.stored.clone() {
            c.superseded(stored);
        }
    }

    /// Handles a node's outputs, and schedules its next deadline. The node is busy for
    /// `service_ns`, after which its packets leave.
    pub(super) fn after(&mut self, node: usize, service_ns: u64) {
        self.persist(node);
        self.write_disk(node);
        if self.plan.invariants {
            self.look(node);
        }
        self.serve_clients(node);
        let leaves_ns = self.world.now_ns + service_ns;
        self.slots[node].busy_until_ns = self.slots[node].busy_until_ns.max(leaves_ns);
        self.world.transmit(node, leaves_ns, &mut self.outgoing);
        self.take_done(node);
        self.end_retired(node);
        self.schedule_completions(node);
        let deadline = self.slots[node].role.deadline();
        if deadline != Deadline::NONE {
            let at_ns = self.world.clocks[node].when(deadline.at);
            // At least 1 us later, so that a deadline that is always over cannot stop time.
            self.wake_at(node, at_ns.max(self.world.now_ns + US));
        }
    }

    /// Checks that a node that was woken is not woken again at once, without end.
    fn count_overdue(&mut self, node: usize, woken: Now) {
        let slot = &mut self.slots[node];
        let why = slot.overdue.woken(woken.instant, slot.role.deadline());
        if let Some(why) = why.filter(|_| self.plan.invariants && self.broken.is_none()) {
            let why = format!("{} {why}", self.name_of(node));
            self.broken = Some(self.standing(&why));
        }
    }

    pub(super) fn wake_at(&mut self, node: usize, at_ns: u64) {
        if at_ns < self.slots[node].wake_at_ns {
            self.slots[node].wake_at_ns = at_ns;
            self.world.push(at_ns, Event::Wake { node });
        }
    }

    fn schedule_completions(&mut self, node: usize) {
        let slot = &mut self.slots[node];
        let Role::Replica(replica) = &slot.role else { return };
        let waiting = replica.engine().backend().waiting();
        while slot.completions_scheduled < waiting {
            slot.completions_scheduled += 1;
            self.world.push(self.world.now_ns + self.plan.engine_ns, Event::Engine { node });
        }
    }

    pub(super) fn is_replica(&self, node: usize) -> bool {
        (REPLICAS..REPLICAS + self.replicas).contains(&node)
    }

    pub(super) fn is_switch(&self, node: usize) -> bool {
        self.world.switches.contains(&node)
    }
}
