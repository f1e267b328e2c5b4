//! Work caused by the passing of time: the end of a batch, and deadlines.

use concord_core::machine::Deadline;
use concord_core::{Guard, Instant, Now, Position};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::{Member, Membership, Message as _, ReplicaAlive, Standing};
use concord_wire::link::Ack;

use super::Replica;
use crate::setup::Phase;

impl<E: Engine> Replica<E> {
    /// Whether it needs the engine's answers: a replica that has left, or is not a member, waits
    /// for as long as it takes.
    fn is_watching(&self) -> bool {
        matches!(self.phase, Phase::Joining | Phase::Opening | Phase::Open)
    }

    /// Gives up an engine that is silent for too long: every member that waits for this replica
    /// would wait forever.
    fn watch_engine(&mut self, now: Instant) {
        let owes = self.is_watching() && !self.queue.is_empty();
        if self.serving.gives_up_engine(now, owes, &mut self.count) {
            self.on_log_mismatch();
        }
    }

    /// A replica whose disk does not answer any more keeps its group from committing anything: it
    /// leaves, if there are other members. The configuration without it is handled when the disk
    /// answers ([`crate::journal`]): then it copies what it missed, as any joining replica does.
    fn watch_disk(&mut self) {
        let is_member = matches!(self.phase, Phase::Open | Phase::Opening);
        if !is_member || self.role.is_alone() {
            return;
        }
        let me = self.role.node();
        let members = self.role.config.as_ref().map_or(&[][..], |config| &config.members);
        let rank = members.iter().take_while(|member| member.node != me.0).count() as u64;
        if self.journal.is_hung(self.setup.limits.disk_silence_ns, rank) {
            self.count.disks_silent += 1;
            self.fail_stop();
        }
    }

    /// Ends a batch of inputs: gathered records and acknowledgements are sent.
    pub fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        if self.serving.engine.lost() && self.phase != Phase::Left {
            self.report_lost_script(sink);
            self.fail_stop();
        }
        if self.phase == Phase::Open {
            if self.journal.delays_commits() {
                self.keep_durable(now, sink);
            }
            if self.role.is_head() && self.serving.has_more_expiries(self.settled()) {
                self.expire(now, sink);
            }
            self.pump(now, sink);
        }
        if self.streams.owes_ack() {
            self.send_ack(now, sink);
        }
        if self.asking.is_due() {
            self.ask_version(now, sink);
        }
    }

    /// Sends records to the successors, as far as they may be passed on.
    fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        let (log, upto) = (&self.ordered.log, self.passed());
        let scratch = &mut self.scratch;
        self.streams.pump(now.instant, (log, upto, self.committed), scratch, sink);
        let me = (self.role.node(), self.role.epoch());
        let known = (log, self.executed, self.committed);
        self.count.feeds_dropped += self.source.pump(now.instant, me, known, scratch, sink);
    }

    /// Sends full packets of records in the middle of a batch.
    pub(super) fn pump_full(&mut self, now: Now, sink: &mut impl Sink) {
        if self.phase != Phase::Open {
            return;
        }
        let known = (&self.ordered.log, self.passed(), self.committed);
        self.streams.pump_full(now.instant, known, &mut self.scratch, sink);
    }

    /// Head: deletes the keys whose time to live has passed.
    fn expire(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.ordered.log.is_half_full(&self.setup.limits) {
            let ordered = (self.settled(), self.ordered.last_now_ms);
            let in_force = self.in_force();
            self.serving.expire(now, ordered, in_force, &mut self.count, sink);
        }
    }

    /// Head: has the members compare their states.
    fn compare(&mut self, now: Instant, sink: &mut impl Sink) {
        let has_room = !self.ordered.log.is_half_full(&self.setup.limits);
        let in_force = self.in_force();
        self.serving.compare(now, has_room, in_force, &mut self.count, sink);
    }

    /// Head: the position up to which its own writes have reached the successor. Clients wait for
    /// their commits; without a limit, these would fill the log.
    fn settled(&self) -> Position {
        self.streams.applied().unwrap_or(self.executed).min(self.executed)
    }

    fn send_ack(&mut self, now: Now, sink: &mut impl Sink) {
        let me = (self.role.epoch(), self.role.node());
        let (mut passed, committed) = (self.passed(), self.committed);
        if self.setup.guards.on(Guard::DurableAck) {
            passed = passed.min(self.journal.durable());
        }
        let Some((peer, ack)) = self.streams.ack(now.instant, me, passed, committed) else {
            return;
        };
        let others = self.streams.at_work_since();
        let is_at_work = self.serving.works_for(now.instant, others).is_some();
        Ack { is_short: self.refuses_writes(), is_at_work, ..ack }.emit(&mut self.scratch);
        if let Some(addr) = self.role.member_addr(peer) {
            sink.send(addr, &self.scratch);
        }
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let t = now.instant;
        self.journal.pass(t);
        if t >= self.serving.work_at() {
            self.engine_ready(now, sink);
        }
        self.watch_engine(t);
        self.watch_disk();
        let standing = self.standing(now);
        if self.report.is_due(t, standing, self.alive_ns()) {
            self.say_alive(now, standing, sink);
        }
        if t >= self.next_retry {
            self.retry_opening(now, sink);
        }
        self.tick_retiring(t, sink);
        if self.streams.is_keepalive_due(t) {
            self.send_ack(now, sink);
        }
        if self.phase != Phase::Open {
            return;
        }
        if t >= self.leases.next_request() {
            self.request_leases(now, sink);
        }
        let (known, scratch) = ((&self.ordered.log, self.committed), &mut self.scratch);
        self.count.link_resent += self.streams.tick(t, known, scratch, sink);
        self.source.tick(t, known, scratch, sink);
        if self.role.is_head() {
            if self.serving.is_expiry_due(t) {
                self.expire(now, sink);
            }
            self.compare(t, sink);
        }
        if t >= self.asking.retry_at() {
            self.ask_version(now, sink);
        }
    }

    /// When to call [`Replica::tick`] next.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let mut d = Deadline { at: self.report.next_at(), reason: "heartbeat" };
        d = d.min(Deadline { at: self.next_retry, reason: "open the epoch, or join" });
        if let Some(retiring) = &self.retiring {
            d = d.min(Deadline { at: retiring.next_at, reason: "give leases back" });
        }
        if self.is_watching() {
            let at = self.serving.watch_at(!self.queue.is_empty());
            d = d.min(Deadline { at, reason: "is the engine silent?" });
        }
        d = d.min(Deadline { at: self.streams.keepalive_at(), reason: "acknowledge" });
        d = d.min(Deadline { at: self.serving.work_at(), reason: "a script goes on" });
        if self.phase != Phase::Open {
            return d;
        }
        d = d.min(Deadline { at: self.leases.next_request(), reason: "renew leases" });
        d = d.min(Deadline { at: self.journal.tell_at(), reason: "what is durable" });
        d = d.min(Deadline { at: self.streams.resend_at(), reason: "link time-out" });
        d = d.min(Deadline { at: self.asking.retry_at(), reason: "ask the tail again" });
        d = d.min(Deadline { at: self.source.deadline(), reason: "link time-out" });
        if self.role.is_head() {
            d = d.min(Deadline { at: self.serving.expire_at(), reason: "expire keys" });
            d = d.min(Deadline { at: self.serving.compare_at(), reason: "compare states" });
        }
        d
    }

    /// Reports to the controller that it lives, with everything by which the controller decides.
    fn say_alive(&mut self, now: Now, standing: Standing, sink: &mut impl Sink) {
        if self.phase == Phase::Joining && self.is_copied() {
            // Everything that was agreed when this epoch opened is here, and so is all of those
            // before; what this epoch commits waits for the disks of its members, to which this
            // replica does not belong yet.
            self.note_held(self.role.epoch().0.saturating_sub(1));
        }
        // Each member asks for leases three times in this time: two of those requests were lost.
        let silent_ns = self.setup.lease_ns / 3 * 2;
        let takes_part = matches!(self.phase, Phase::Joining | Phase::Opening | Phase::Open);
        let unheard = if takes_part {
            self.report.unheard(now.instant, silent_ns)
        } else {
            alloc::vec::Vec::new()
        };
        let alive = ReplicaAlive {
            member: self.setup.me,
            sent_at: now.instant.0,
            heard: self.role.heard(),
            standing,
            held: self.held(),
            data_dir: self.journal.data_dir(),
            unheard,
        };
        let alive = Membership::ReplicaAlive(alive);
        self.send_control(self.setup.controller, &alive, sink);
        let Member { node, incarnation, .. } = self.setup.me;
        let made = self.serving.digests();
        if !made.is_empty() {
            let compared = Membership::Compared { node, incarnation, made };
            self.send_control(self.setup.controller, &compared, sink);
        }
        if self.phase == Phase::Joining {
            let (epoch, from) = (self.role.epoch().0, self.role.node().0);
            Membership::Reach { epoch, from, ask: true }.emit(&mut self.scratch);
            for member in self.role.members() {
                sink.send(member.addr, &self.scratch);
            }
        }
    }
}
