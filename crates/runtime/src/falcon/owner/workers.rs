//! The workers of a group in an owner's HTTP interface: what each runs of this owner's tasks, and
//! the draining of one.

use std::collections::BTreeMap;

use concord_core::Now;
use concord_scheduler::Drained;
use concord_wire::Addr;
use serde_json::{Value, json};

use super::{OwnerRole, number};
use crate::http::api::{Answer, Ask};
use crate::udp::Outbox;

/// A client that has a worker drained, and awaits the answer.
#[derive(Debug)]
pub(super) struct Draining {
    ask: Ask,
    node: u16,
    worker: Addr,
}

impl OwnerRole {
    /// The workers of the rack file, and others that run tasks.
    pub(super) fn workers(&self) -> Answer {
        let nodes = self.executors.workers.iter().map(|(node, at)| (*at, *node));
        let nodes: BTreeMap<Addr, u16> = nodes.collect();
        let mut all: BTreeMap<Addr, usize> = nodes.keys().map(|at| (*at, 0)).collect();
        all.extend(self.owner.owner().held_by());
        let told = |(at, running): (&Addr, &usize)| match nodes.get(at) {
            Some(node) => json!({ "node": node, "worker": at.to_string(), "running": running }),
            None => json!({ "worker": at.to_string(), "running": running }),
        };
        Answer::ok(&Value::Array(all.iter().map(told).collect()))
    }

    /// Drains a worker: it takes no more tasks, and ends when its runs have ended, or were killed
    /// after `within_ms`. The request is answered when the worker knows.
    pub(super) fn drain(&mut self, now: Now, node: &str, ask: Ask, out: &mut Outbox) {
        let workers = &self.executors.workers;
        let found = node.parse().ok().and_then(|node| Some((node, *workers.get(&node)?)));
        let within = number(&ask.query, "within_ms");
        let ((node, worker), within_ms) = match (found, within) {
            (Some(found), Ok(within_ms)) => (found, within_ms),
            (_, Err(refused)) => return ask.answer(refused),
            (None, _) => {
                let nodes: Vec<String> = workers.keys().map(u16::to_string).collect();
                let why = format!("there is no worker {node}: there are {}", nodes.join(", "));
                return ask.answer(Answer::refused(404, &why));
            }
        };
        let (owner, mut sink) = self.owner.input(out);
        owner.drain(now, worker, within_ms, &mut sink);
        self.draining.push(Draining { ask, node, worker });
    }

    /// Answers the clients whose worker knows, or does not answer.
    pub(super) fn answer_drained(&mut self) {
        while let Some((worker, drained)) = self.owner.poll_drained() {
            let of = |own: &mut Draining| own.worker == worker;
            for Draining { ask, node, .. } in self.draining.extract_if(.., of) {
                ask.answer(match drained {
                    Drained::Takes(tasks) => {
                        tracing::info!(node, tasks, "worker takes no more tasks");
                        Answer::ok(&json!({ "worker": node, "tasks": tasks }))
                    }
                    Drained::Silent => {
                        let why =
                            format!("worker {node} at {worker} does not answer: it may have ended");
                        Answer::refused(504, &why)
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::falcon::owner::jobs::Executors;
    use crate::falcon::owner::tests::{role, sync};
    use concord_core::Machine as _;
    use concord_wire::control::Message as _;
    use concord_wire::tasks::TaskMessage;

    /// Whoever has a worker drained hears when that knows; of one that is not there, or does not
    /// answer, one line.
    #[test]
    fn a_worker_is_drained_over_http() {
        let (mut role, mut out) = role();
        let worker = Addr { ip: 0x7f00_0001, port: 7 };
        role.executors = Executors { workers: [(2, worker)].into(), ..Executors::default() };
        let now = crate::clock::now();
        let post = |role: &mut OwnerRole, out: &mut Outbox, path: &str, query: &str| {
            let (mut ask, answered) = Ask::of("POST", path, "");
            ask.query = query.to_string();
            role.serve(now, ask, out);
            answered
        };
        let mut wrong = post(&mut role, &mut out, "/workers/3/drain", "").try_recv().unwrap();
        assert_eq!(wrong.status, 404);
        wrong = post(&mut role, &mut out, "/workers/2/drain", "within_ms=x").try_recv().unwrap();
        assert_eq!(wrong.status, 400);
        let mut answered = post(&mut role, &mut out, "/workers/2/drain", "within_ms=5000");
        let mut silent = post(&mut role, &mut out, "/workers/2/drain", "");
        for is_draining in [false, true] {
            let told = TaskMessage::Draining { worker, session: 9, is_draining, tasks: 3 };
            let mut bytes = Vec::new();
            told.emit_in(concord_wire::GroupId::FIRST, &mut bytes);
            role.owner.handle(now, worker, &mut bytes, &mut out);
            sync(&mut role, &mut out);
        }
        let told = answered.try_recv().unwrap();
        assert_eq!((told.status, &told.body[..]), (200, "{\"tasks\":3,\"worker\":2}\n"));
        assert_eq!(silent.try_recv().unwrap().status, 200, "it is the same worker");
        silent = post(&mut role, &mut out, "/workers/2/drain", "");
        let later = Now { instant: now.instant.after(3 * concord_core::SEC), ..now };
        role.owner.tick(later, &mut out);
        sync(&mut role, &mut out);
        assert_eq!(silent.try_recv().unwrap().status, 504);
        let workers = "[{\"node\":2,\"running\":0,\"worker\":\"127.0.0.1:7\"}]\n";
        assert_eq!(role.workers().body, workers);
    }
}
