//! Tasks that a worker executes itself: sleeping, by the loop's own deadlines, and spinning, in
//! threads.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant as Moment};

use concord_core::{Instant, US};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Context, Error};

/// The time for which a thread spins between two checks whether it is to end.
const LOOK: Duration = Duration::from_micros(20);

/// The runs that sleep and those that spin.
#[derive(Debug)]
pub(super) struct Busy {
    /// Runs that sleep, by the time at which they wake.
    sleeping: BTreeSet<(Instant, u32)>,
    /// Runs that spin, each with the flag that ends it.
    spinning: BTreeMap<u32, Arc<AtomicBool>>,
    ended: (Sender<u32>, Receiver<u32>),
    /// Readable when a thread has ended.
    wake: Arc<OwnedFd>,
}

impl AsFd for Busy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Busy {
    pub(super) fn new() -> Result<Busy, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).cannot("make an eventfd")?);
        let (sleeping, spinning) = (BTreeSet::new(), BTreeMap::new());
        Ok(Busy { sleeping, spinning, ended: channel(), wake })
    }

    pub(super) fn sleep(&mut self, now: Instant, run: u32, us: u64) {
        self.sleeping.insert((now.after(us.saturating_mul(US)), run));
    }

    pub(super) fn spin(&mut self, run: u32, us: u64) -> Result<(), Error> {
        let is_killed = Arc::new(AtomicBool::new(false));
        let (seen, ended, wake) =
            (Arc::clone(&is_killed), self.ended.0.clone(), Arc::clone(&self.wake));
        let spin = move || {
            let (began, all) = (Moment::now(), Duration::from_micros(us));
            let mut next = LOOK;
            while began.elapsed() < all {
                std::hint::spin_loop();
                if began.elapsed() >= next {
                    next += LOOK;
                    if seen.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
            // Both fail only where the worker is gone.
            let _ = ended.send(run);
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        let named = std::thread::Builder::new().name("spin".to_string());
        named.spawn(spin).cannot("start a thread")?;
        self.spinning.insert(run, is_killed);
        Ok(())
    }

    pub(super) fn kill(&mut self, run: u32) {
        self.sleeping.retain(|(_, own)| *own != run);
        if let Some(is_killed) = self.spinning.remove(&run) {
            is_killed.store(true, Ordering::Relaxed);
        }
    }

    /// The time at which the first sleeping run wakes.
    pub(super) fn wakes_at(&self) -> Instant {
        self.sleeping.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// A run that has slept long enough.
    pub(super) fn woken(&mut self, now: Instant) -> Option<u32> {
        let (at, run) = *self.sleeping.first()?;
        (at <= now).then(|| {
            self.sleeping.pop_first();
            run
        })
    }

    /// A run that has spun long enough. Call it until there is none, when the descriptor is
    /// readable.
    pub(super) fn spun(&mut self) -> Option<u32> {
        loop {
            let run = self.ended.1.try_recv().ok()?;
            // A killed run may have ended just before.
            if self.spinning.remove(&run).is_some() {
                return Some(run);
            }
        }
    }

    /// Resets the descriptor after it was readable.
    pub(super) fn heard(&mut self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.spinning.values().for_each(|is_killed| is_killed.store(true, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_in_their_time_and_those_that_are_killed_say_nothing() {
        let mut busy = Busy::new().unwrap();
        busy.sleep(Instant(0), 1, 20);
        busy.sleep(Instant(0), 2, 10);
        busy.sleep(Instant(0), 3, u64::MAX);
        assert_eq!(busy.wakes_at(), Instant(10 * US));
        assert_eq!((busy.woken(Instant(15 * US)), busy.woken(Instant(15 * US))), (Some(2), None));
        busy.kill(1);
        assert_eq!(busy.woken(Instant(90 * US)), None);
        busy.sleep(Instant(0), 7, 300);
        assert_eq!(busy.woken(Instant(300 * US)), Some(7));
        busy.spin(4, 1_000).unwrap();
        busy.spin(5, 60_000_000).unwrap();
        busy.spin(6, 1_000).unwrap();
        busy.kill(5);
        busy.kill(6);
        let began = Moment::now();
        let spun = loop {
            busy.heard();
            if let Some(run) = busy.spun() {
                break run;
            }
            assert!(began.elapsed() < Duration::from_secs(20));
        };
        assert_eq!((spun, busy.spinning.len()), (4, 0));
    }
}
