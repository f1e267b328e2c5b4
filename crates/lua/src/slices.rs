//! A script that is executed slice by slice.
//!
//! Lua 5.1 cannot be suspended in the middle of a `pcall`, a sort or a native. So a long script has
//! a stack of its own: pausing it means to switch to the caller's stack. The interpreter belongs to
//! the script's stack alone. The [`Host`] is lent for a slice at a time.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use concord_engine::resp;
use concord_engine::script::{Host, Paused, Ran};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::clib;
use crate::meter::Meter;

/// The size of a script's stack in bytes. Only used pages take memory.
const STACK_BYTES: usize = 8 << 20;

/// A host that is lent for a slice.
#[derive(Clone, Copy)]
struct Lent(NonNull<dyn Host>);

/// The connection of a script to the outside: its host, and the place to which it returns when it
/// is paused.
#[derive(Default)]
pub(crate) struct Outside {
    host: Cell<Option<Lent>>,
    yielder: Cell<Option<NonNull<Yielder<Lent, ()>>>>,
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").field("is_lent", &self.host.get().is_some()).finish()
    }
}

/// Takes the host back, also after a panic.
struct Return<'a>(&'a Outside);

impl Drop for Return<'_> {
    fn drop(&mut self) {
        self.0.host.set(None);
    }
}

fn lent(host: &mut dyn Host) -> Lent {
    let host: NonNull<dyn Host + '_> = NonNull::from(host);
    // SAFETY: only the bound of its lifetime changes. It is used by `Outside::with` alone, while it
    // is lent: up to the end of `Outside::lend`, or of the slice, and for that long the one who
    // lends it borrows it.
    Lent(unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host>>(host) })
}

impl Outside {
    /// Lends the host to a script that `run` executes without a pause.
    pub(crate) fn lend<T>(&self, host: &mut dyn Host, run: impl FnOnce() -> T) -> T {
        self.host.set(Some(lent(host)));
        let _return = Return(self);
        run()
    }

    /// Calls `what` with the host. `None` if none is lent, or it is in use already.
    pub(crate) fn with<T>(&self, what: impl FnOnce(&mut dyn Host) -> T) -> Option<T> {
        let mut host = self.host.take()?;
        // SAFETY: it is lent, see `lent`, and nobody else has it meanwhile: it was taken out of its
        // cell.
        let done = what(unsafe { host.0.as_mut() });
        self.host.set(Some(host));
        Some(done)
    }

    /// Returns to the code that executes the slice, until the next one.
    pub(crate) fn pause(&self) {
        let Some(yielder) = self.yielder.get() else { return };
        self.host.set(None);
        // SAFETY: it is the yielder of the stack that this is executed on, which lives as long as
        // that.
        let host = unsafe { yielder.as_ref() }.suspend(());
        self.host.set(Some(host));
    }
}

/// The end of a script: its reply, or the error with which it was stopped.
pub(crate) enum Ended {
    Reply(Vec<u8>),
    Error(Vec<u8>),
    Stopped(Vec<u8>),
}

impl Ended {
    /// Whether it ended for lack of memory.
    pub(crate) fn lacks_memory(&self) -> bool {
        matches!(self, Ended::Error(text) if text.starts_with(b"ERR not enough memory"))
    }

    /// Appends the reply.
    pub(crate) fn tell(self, reply: &mut Vec<u8>) -> Ran {
        match self {
            Ended::Reply(bytes) => {
                reply.extend_from_slice(&bytes);
                Ran::Ended
            }
            Ended::Error(text) => {
                resp::error(reply, &text);
                Ran::Ended
            }
            Ended::Stopped(text) => {
                resp::error(reply, &text);
                Ran::Stopped
            }
        }
    }
}

/// A script on its stack.
struct OnStack {
    coroutine: Coroutine<Lent, (), Ended>,
    meter: Meter,
}

impl fmt::Debug for OnStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStack").field("cost", &self.meter.cost()).finish()
    }
}

/// Creates a script, which `run` executes when it is resumed. `Err` if there is no memory for a
/// stack.
pub(crate) fn begin(
    meter: &Meter,
    run: Box<dyn FnOnce() -> Ended>,
) -> Result<Box<dyn Paused>, Box<dyn FnOnce() -> Ended>> {
    let Ok(stack) = DefaultStack::new(STACK_BYTES) else { return Err(run) };
    let own = meter.clone();
    let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<Lent, ()>, host: Lent| {
        let outside = own.counts().outside();
        outside.yielder.set(Some(NonNull::from(yielder)));
        outside.host.set(Some(host));
        let ended = run();
        outside.yielder.set(None);
        outside.host.set(None);
        ended
    });
    meter.counts().slice();
    Ok(Box::new(OnStack { coroutine, meter: meter.clone() }))
}

impl OnStack {
    fn resume(&mut self, host: &mut dyn Host) -> Option<Ended> {
        let _counting = clib::count_by(&self.meter);
        let _return = Return(self.meter.counts().outside());
        match self.coroutine.resume(lent(host)) {
            CoroutineResult::Yield(()) => None,
            CoroutineResult::Return(ended) => Some(ended),
        }
    }
}

impl Paused for OnStack {
    fn go_on(mut self: Box<Self>, host: &mut dyn Host, reply: &mut Vec<u8>) -> Ran {
        match self.resume(host) {
            Some(ended) => ended.tell(reply),
            None => Ran::Paused(self),
        }
    }
}

/// A stack that is abandoned is not unwound: instead the script is ended, and executes nothing
/// more.
impl Drop for OnStack {
    fn drop(&mut self) {
        if !self.coroutine.done() {
            self.meter.counts().abandon();
            drop(self.resume(&mut Nobody));
        }
    }
}

/// A host that executes nothing.
pub(crate) struct Nobody;

impl Host for Nobody {
    fn call(&mut self, _resp3: bool, _args: &[&[u8]], reply: &mut Vec<u8>) -> u64 {
        resp::error(reply, b"ERR This Redis command is not allowed from script");
        0
    }

    fn may(&mut self, _args: &[&[u8]]) -> Option<bool> {
        Some(true)
    }
}
