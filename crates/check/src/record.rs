//! Records a history while it happens.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::{History, Operation, Reply};

/// Collects operations of many threads. They share one monotone clock, which is what makes
/// "returned before the other was called" meaningful.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

impl Recorder {
    /// An empty recorder; its clock starts now.
    #[must_use]
    pub fn new() -> Recorder {
        Recorder { start: Instant::now(), operations: Mutex::new(Vec::new()) }
    }

    /// The time since the recorder was made, in ns.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Begins an operation. Call it before the request is sent; the call time is taken here.
    pub fn begin(&self, client: u64, cmd: Vec<Vec<u8>>) -> Pending<'_> {
        let operation = Operation {
            client,
            ordinal: None,
            call_ns: self.now_ns(),
            return_ns: None,
            cmd,
            reply: None,
            path: None,
        };
        Pending { recorder: self, operation: Some(operation) }
    }

    /// Appends an operation that was timed elsewhere (in the simulator's virtual time).
    pub fn push(&self, operation: Operation) {
        self.lock().push(operation);
    }

    /// The number of operations that have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no operation has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Calls `at` with the operations that have ended so far, in no particular order.
    pub fn look<T>(&self, at: impl FnOnce(&[Operation]) -> T) -> T {
        at(&self.lock())
    }

    /// The history so far, ordered by call.
    #[must_use]
    pub fn into_history(self) -> History {
        let mut operations = self.operations.into_inner().unwrap_or_else(PoisonError::into_inner);
        operations.sort_by_key(|operation| operation.call_ns);
        History { operations }
    }

    // A thread that panicked while it appended left only complete operations behind.
    fn lock(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation whose reply is awaited. If it is dropped without a reply (the thread died, the
/// connection broke), its outcome counts as unknown.
#[derive(Debug)]
pub struct Pending<'a> {
    recorder: &'a Recorder,
    operation: Option<Operation>,
}

impl Pending<'_> {
    /// The reply has come; the return time is taken here.
    pub fn returned(self, reply: Reply) {
        self.returned_by(reply, None);
    }

    /// The reply has come, with the path that it says it took; the return time is taken here.
    pub fn returned_by(mut self, reply: Reply, path: Option<String>) {
        let return_ns = Some(self.recorder.now_ns());
        if let Some(operation) = self.operation.take() {
            self.recorder.push(Operation { return_ns, reply: Some(reply), path, ..operation });
        }
    }

    /// It is not known whether the operation took effect or ever will.
    pub fn unknown(self) {}
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.recorder.push(operation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_begun_operation_is_recorded_once_and_in_call_order() {
        let recorder = Recorder::new();
        let args = |name: &str| vec![name.as_bytes().to_vec(), b"k".to_vec()];
        let first = recorder.begin(1, args("INCR"));
        recorder.begin(2, args("GET")).returned(Reply::Nil);
        recorder.begin(3, args("DEL")).unknown();
        first.returned_by(Reply::Int(1), Some("slow".into()));
        assert_eq!(recorder.len(), 3);
        let history = recorder.into_history();
        let clients: Vec<_> = history.operations.iter().map(|o| o.client).collect();
        assert_eq!(clients, [1, 2, 3]);
        assert!(history.operations[0].return_ns >= history.operations[1].return_ns);
        assert_eq!(history.operations[2].return_ns, None);
    }
}
