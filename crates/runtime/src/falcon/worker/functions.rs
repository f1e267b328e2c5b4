//! Functions of a program that is itself a worker ([`crate::falcon::tasks`]): quick ones are called
//! in the loop, the others in threads.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use concord_wire::tasks::{Attempt, Ended};
use rustix::event::{EventfdFlags, eventfd};

use super::processes::Finished;
use crate::error::{Context, Error};
use crate::falcon::tasks::{Call, Called, Function, Functions};

/// The largest number of threads for each executor, including those of cancelled runs that have not
/// returned.
const THREADS_PER_SLOT: usize = 2;

/// A run, and the result of its call.
type Told = (u32, Called);

/// The functions, and the calls in progress.
#[derive(Debug)]
pub(super) struct Calls {
    functions: Functions,
    /// Runs in threads, each with its flag of cancellation.
    going_on: BTreeMap<u32, Arc<AtomicBool>>,
    /// The number of threads that have not ended.
    threads: usize,
    threads_max: usize,
    ended: (Sender<Told>, Receiver<Told>),
    /// Readable when a thread has ended.
    wake: Arc<OwnedFd>,
}

impl AsFd for Calls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Calls a function. A panic is a failure if panics unwind; in Concord's own release builds it ends
/// the process.
fn call(function: &Function, call: &Call<'_>) -> Called {
    catch_unwind(AssertUnwindSafe(|| function(call)))
        .unwrap_or_else(|_| Err("the function panicked\n".to_string()))
}

fn finished(run: u32, called: Called) -> Finished {
    match called {
        Ok(output) => {
            let output_bytes = output.len() as u64;
            Finished { run, ended: Ended::Done, output, output_bytes, is_returned: false }
        }
        Err(why) => Finished::failed(run, Ended::Failed, &why),
    }
}

impl Calls {
    pub(super) fn new(functions: Functions, slots: usize) -> Result<Calls, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).cannot("make an eventfd")?);
        let threads_max = slots.max(1) * THREADS_PER_SLOT;
        let going_on = BTreeMap::new();
        Ok(Calls { functions, going_on, threads: 0, threads_max, ended: channel(), wake })
    }

    /// Whether a thread may be started for this function. None may while too many cancelled calls
    /// have not returned.
    pub(super) fn has_room(&self, number: u16) -> bool {
        let is_threaded = self.functions.all.get(&number).is_some_and(|(is_quick, _)| !is_quick);
        !is_threaded || self.threads < self.threads_max
    }

    /// Calls a function, here or in a thread. `Err` if the run is over with that.
    pub(super) fn start(
        &mut self,
        run: u32,
        number: u16,
        of: Attempt,
        parameters: &[u8],
    ) -> Result<(), Finished> {
        let failed = |why: &str| Finished::failed(run, Ended::Failed, why);
        let Some((is_quick, function)) = self.functions.all.get(&number) else {
            return Err(failed("this worker does not know the task's function\n"));
        };
        let is_cancelled = Arc::new(AtomicBool::new(false));
        if *is_quick {
            return Err(finished(
                run,
                call(&**function, &Call::new(of, parameters, &is_cancelled)),
            ));
        }
        let (function, seen) = (Arc::clone(function), Arc::clone(&is_cancelled));
        let (parameters, ended) = (parameters.to_vec(), self.ended.0.clone());
        let wake = Arc::clone(&self.wake);
        let work = move || {
            let called = call(&*function, &Call::new(of, &parameters, &seen));
            // Both fail only where the worker is gone.
            let _ = ended.send((run, called));
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        let named = std::thread::Builder::new().name("function".to_string());
        named.spawn(work).map_err(|e| failed(&format!("cannot start a thread: {e}\n")))?;
        self.threads += 1;
        self.going_on.insert(run, is_cancelled);
        Ok(())
    }

    /// Cancels a run whose result is not wanted any more.
    pub(super) fn kill(&mut self, run: u32) {
        if let Some(is_cancelled) = self.going_on.remove(&run) {
            is_cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// A run that ended. Call it until there is none, when the descriptor is readable.
    pub(super) fn ended(&mut self) -> Option<Finished> {
        loop {
            let (run, called) = self.ended.1.try_recv().ok()?;
            self.threads -= 1;
            if self.going_on.remove(&run).is_some() {
                return Some(finished(run, called));
            }
        }
    }

    /// Resets the descriptor after it was readable.
    pub(super) fn heard(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn next(calls: &mut Calls) -> Finished {
        let began = Instant::now();
        loop {
            calls.heard();
            if let Some(finished) = calls.ended() {
                return finished;
            }
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }

    #[test]
    fn functions_are_called_and_those_that_fail_or_panic_say_so() {
        let (quick, threaded, waits) = (256, 257, 258);
        let functions = Functions::default()
            .quick(quick, |call| Ok(call.parameters.repeat(2)))
            .threaded(threaded, |call| match call.parameters {
                b"panic" => panic!("as asked"),
                b"fail" => Err("no\n".to_string()),
                _ => Ok(call.of.attempt.to_be_bytes().to_vec()),
            })
            .threaded(waits, |call| {
                while !call.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(Vec::new())
            });
        let mut calls = Calls::new(functions, 1).unwrap();
        let of = Attempt { attempt: 7, ..Attempt::default() };
        let done = calls.start(1, quick, of, b"ab").unwrap_err();
        assert_eq!((done.ended, &done.output[..]), (Ended::Done, &b"abab"[..]));
        assert_eq!(calls.start(2, 999, of, b"").unwrap_err().ended, Ended::Failed);
        calls.start(3, threaded, of, b"").unwrap();
        assert_eq!(next(&mut calls).output, [0, 7]);
        calls.start(4, threaded, of, b"panic").unwrap();
        assert_eq!(next(&mut calls).output, b"the function panicked\n");
        calls.start(5, threaded, of, b"fail").unwrap();
        assert_eq!((next(&mut calls).ended, calls.threads), (Ended::Failed, 0));
        // One that is cancelled is told, and its end is nobody's.
        calls.start(6, waits, of, b"").unwrap();
        calls.kill(6);
        calls.start(7, threaded, of, b"").unwrap();
        assert_eq!(next(&mut calls).run, 7);
        calls.start(8, waits, of, b"").unwrap();
        while calls.has_room(waits) {
            calls.start(9, waits, of, b"").unwrap();
        }
        assert_eq!((calls.threads, calls.has_room(quick)), (2, true));
        calls.kill(8);
        calls.kill(9);
    }
}
