//! The memory of an interpreter: it is bounded, and the cost of moving much of it is counted.
//!
//! Lua moves all entries of a table when it has no free slot for a new one. That happens within one
//! instruction, and a script that removes an entry for each that it adds causes it each time. So
//! this allocator counts what it sees: when the entries of a table are freed, they have been moved.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use mlua::Lua;
use mlua::ffi::{lua_Alloc, lua_getallocf, lua_setallocf};

use crate::internals::{ENTRY_BYTES, has_objects};
use crate::meter::{Counts, Meter};

/// The number of bytes of a growing array that are moved for one unit.
const MOVED_BYTES_OF_ONE: u64 = 32;
/// The cost of moving an entry of a table.
const MOVED_ENTRY_COST: u64 = 16;
/// Moving fewer entries is free.
const ENTRIES_MIN: usize = 32;
/// Smaller allocations are never refused: mlua cannot handle the failure of some of them.
const SMALL_BYTES: usize = 1_024;

/// The allocator (see the module). It is in force until this is dropped, which is before the
/// interpreter is.
#[derive(Debug)]
pub(crate) struct Memory {
    lua: Lua,
    own: Rc<Own>,
}

/// The state of the allocator.
#[derive(Debug)]
pub(crate) struct Own {
    limit: Cell<usize>,
    /// Whether freed blocks are garbage: values without references.
    collects: Cell<bool>,
    meter: Meter,
    /// mlua's allocator.
    allocate: lua_Alloc,
    state: *mut c_void,
}

impl Memory {
    /// Installs an allocator that counts for `meter`, without a limit.
    pub(crate) fn of(lua: &Lua, meter: &Meter) -> mlua::Result<Memory> {
        meter.counts().used().set(lua.used_memory());
        meter.counts().small().set(lua.used_memory());
        let mut own = None;
        // SAFETY: nothing is left on the stack. The new allocator passes all to the old one, and
        // its state is there until the old one is put back (`drop`).
        unsafe {
            lua.exec_raw::<()>((), |state| {
                let mut old_state = ptr::null_mut();
                let allocate = lua_getallocf(state, &mut old_state);
                let new = Rc::new(Own {
                    limit: Cell::new(usize::MAX),
                    collects: Cell::new(false),
                    meter: meter.clone(),
                    allocate,
                    state: old_state,
                });
                lua_setallocf(state, allocate_counted, Rc::as_ptr(&new).cast_mut().cast());
                own = Some(new);
            })?;
        }
        let own = own.ok_or_else(|| mlua::Error::runtime("no allocator"))?;
        Ok(Memory { lua: lua.clone(), own })
    }

    pub(crate) fn own(&self) -> &Rc<Own> {
        &self.own
    }
}

impl Own {
    /// Limits the memory to this many bytes.
    pub(crate) fn limit(&self, bytes: usize) {
        self.limit.set(bytes);
    }

    /// Sets whether freed blocks are garbage.
    pub(crate) fn collects(&self, yes: bool) {
        self.collects.set(yes);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let (allocate, state) = (self.own.allocate, self.own.state);
        // SAFETY: it is the allocator that has allocated all there is.
        let restored =
            unsafe { self.lua.exec_raw::<()>((), |lua| lua_setallocf(lua, allocate, state)) };
        debug_assert!(restored.is_ok(), "it allocates nothing");
    }
}

unsafe extern "C" fn allocate_counted(
    own: *mut c_void,
    block: *mut c_void,
    old_bytes: usize,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: it is what was given with this function; Lua calls it as its manual says, and so is
    // mlua's called.
    unsafe {
        let own = &*own.cast::<Own>();
        let old_bytes = if block.is_null() { 0 } else { old_bytes };
        let counts = own.meter.counts();
        let used = counts.used().get() - old_bytes + bytes;
        if bytes == 0 && !own.collects.get() {
            count_freed(counts, block, old_bytes);
        }
        if bytes > old_bytes && bytes >= SMALL_BYTES && used > own.limit.get() {
            return ptr::null_mut();
        }
        let given = (own.allocate)(own.state, block, old_bytes, bytes);
        if !given.is_null() || bytes == 0 {
            counts.used().set(used);
            let small = |bytes: usize| if bytes < SMALL_BYTES { bytes } else { 0 };
            let before = counts.small().get().saturating_sub(small(old_bytes));
            counts.small().set(before + small(bytes));
        }
        if bytes >= SMALL_BYTES {
            counts.work(bytes as u64 / MOVED_BYTES_OF_ONE);
        }
        given
    }
}

/// # Safety
/// The block is still there.
unsafe fn count_freed(counts: &Counts, block: *const c_void, bytes: usize) {
    let entries = bytes / ENTRY_BYTES;
    let is_table = bytes == entries * ENTRY_BYTES && entries.is_power_of_two();
    if !is_table || entries < ENTRIES_MIN {
        return;
    }
    let cost = entries as u64 * MOVED_ENTRY_COST;
    // SAFETY: nothing else of this size is freed but garbage: strings, and what Lua has of its own,
    // have other ones.
    if unsafe { has_objects(block, entries) } {
        // The time at which these are moved depends on addresses, which differ between replicas.
        counts.add_unsure(cost);
    } else {
        counts.add(cost);
    }
}
