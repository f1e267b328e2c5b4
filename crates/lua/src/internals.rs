//! Sizes that Lua 5.1 does not report although they cost time: the number of slots of a table,
//! empty ones included, the number of strings that share a slot of the table of interned strings,
//! and what an instruction acts on.
//!
//! The structures are those of the built-in Lua (5.1.5, 64 bits): `lobject.h`, `lstate.h`. They are
//! only read.

use std::ffi::{c_int, c_void};
use std::ptr;

use mlua::{Lua, lua_State};

const NIL: c_int = 0;
const BOOLEAN: c_int = 1;
const NUMBER: c_int = 3;
/// The type of the key of a deleted entry, if the key was an object.
const DEAD: c_int = 11;

#[repr(C)]
struct TValue {
    value: u64,
    tt: c_int,
}

#[repr(C)]
struct Node {
    value: TValue,
    key: TValue,
    next: *const Node,
}

#[repr(C)]
struct Header {
    next: *const Header,
    tt: u8,
    marked: u8,
    /// For a table its flags, for a string whether it is a reserved word, for a thread its status.
    own: u8,
    lsizenode: u8,
}

#[repr(C)]
struct TableHead {
    header: Header,
    metatable: *const TableHead,
    array: *const TValue,
    node: *const Node,
    lastfree: *const Node,
    gclist: *const Header,
    sizearray: c_int,
}

#[repr(C)]
struct StringHead {
    next: *const StringHead,
    kinds: [u8; 4],
    hash: u32,
    len: usize,
}

#[repr(C)]
struct StringTable {
    hash: *const *const StringHead,
    nuse: u32,
    size: c_int,
}

#[repr(C)]
struct State {
    header: Header,
    top: *const TValue,
    base: *const TValue,
    global: *const StringTable,
    call: *const Call,
    saved_pc: *const u32,
}

/// A function that is executed.
#[repr(C)]
struct Call {
    base: *const TValue,
    function: *const TValue,
}

impl TableHead {
    fn slots(&self) -> usize {
        self.sizearray.max(0) as usize + (1 << self.header.lsizenode)
    }

    /// Whether this slot is empty.
    ///
    /// # Safety
    /// There is such a place.
    unsafe fn is_empty(&self, at: usize) -> bool {
        let array = self.sizearray.max(0) as usize;
        // SAFETY: as the caller says; the places of the array come first.
        let value = unsafe {
            match at.checked_sub(array) {
                None => &*self.array.add(at),
                Some(at) => &(*self.node.add(at)).value,
            }
        };
        value.tt == NIL
    }

    /// Whether this key's slot is this one.
    ///
    /// # Safety
    /// There is such a place.
    unsafe fn is_at(&self, at: usize, key: &TValue) -> bool {
        let array = self.sizearray.max(0) as usize;
        let Some(at) = at.checked_sub(array) else { return self.index(key) == Some(at) };
        // SAFETY: as the caller says.
        let own = unsafe { &(*self.node.add(at)).key };
        let is_alike = own.tt == key.tt || own.tt == DEAD;
        is_alike
            && match key.tt {
                BOOLEAN => own.value as u32 == key.value as u32,
                _ => own.value == key.value,
            }
    }

    /// The index in the array part of a key that has one there.
    fn index(&self, key: &TValue) -> Option<usize> {
        let number = f64::from_bits(key.value);
        let is_index = key.tt == NUMBER && number >= 1.0 && number <= f64::from(self.sizearray);
        (is_index && number.fract() == 0.0).then(|| number as usize - 1)
    }
}

/// The number of slots of a table, empty ones included.
pub(crate) fn slots(table: &mlua::Table) -> u64 {
    let head = table.to_pointer().cast::<TableHead>();
    // SAFETY: it is a table of the Lua that is built in, which `table` keeps alive.
    unsafe { (*head).slots() as u64 }
}

/// The number of visited slots that cost one unit.
const SLOTS_OF_ONE: u64 = 2;
/// The slots of smaller tables are not counted.
const SLOTS_MIN: usize = 256;

/// The position of the last walk through a table, so that its next step need not look up its key.
#[repr(C)]
pub(crate) struct Walk {
    table: *const TableHead,
    slots: usize,
    at: usize,
}

impl Walk {
    pub(crate) const NONE: Walk = Walk { table: ptr::null(), slots: 0, at: 0 };
}

/// The cost in units of finding the next key: Lua visits each empty slot in between.
///
/// # Safety
/// It is called within a function of the interpreter's whose arguments are a table and a key or
/// nil.
pub(crate) unsafe fn cost_of_next(state: *mut lua_State, walk: &mut Walk) -> u64 {
    // SAFETY: `base` are the arguments, of which the first is a table, and the second is there. All
    // places that are looked at are in front of `slots`.
    unsafe {
        let base = (*state.cast::<State>()).base;
        let (head, key) = ((*base).value as *const TableHead, &*base.add(1));
        let table = &*head;
        let slots = table.slots();
        if slots <= SLOTS_MIN {
            return 0;
        }
        let mut looked = 0;
        let start = if key.tt == NIL {
            0
        } else if let Some(at) = table.index(key) {
            at + 1
        } else if walk.table == head && walk.slots == slots && table.is_at(walk.at, key) {
            walk.at + 1
        } else {
            let found = (0..slots).position(|at| table.is_at(at, key)).unwrap_or(slots);
            looked += found as u64;
            found + 1
        };
        let rest = start.min(slots)..slots;
        let at = rest.clone().find(|at| !table.is_empty(*at)).unwrap_or(slots);
        *walk = Walk { table: head, slots, at: at.min(slots - 1) };
        (looked + (at - rest.start) as u64) / SLOTS_OF_ONE
    }
}

/// An instruction that is about to be executed.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    Cheap,
    /// It passes so many values on.
    Values(u64),
    /// It looks for a key among so many at the same place.
    Searched(u64),
    /// It puts so many bytes of strings together, and so many numbers.
    Joined {
        numbers: u64,
        bytes: u64,
    },
}

const STRING: c_int = 4;
const TABLE: c_int = 5;

/// Lua's instructions (`lopcodes.h`) that may take longer than the others.
const CONCAT: u32 = 21;
const CALL: u32 = 28;
const TAIL_CALL: u32 = 29;
const RETURN: u32 = 30;
const SET_LIST: u32 = 34;
const VARARG: u32 = 37;

/// Instructions that look for a key in a table.
const GET_TABLE: u32 = 6;
const SET_TABLE: u32 = 9;
const SELF: u32 = 11;
/// In the place of a register: it is a constant.
const IS_CONSTANT: u32 = 256;

#[repr(C)]
struct Closure {
    header: Header,
    gclist: *const Header,
    env: *const TableHead,
    prototype: *const Prototype,
}

#[repr(C)]
struct Prototype {
    header: Header,
    constants: *const TValue,
}

/// So many keys may be at one place for nothing, and smaller tables are not looked at.
const CHAIN_FREE: u64 = 16;
const CHAIN_TABLE_MIN: u8 = 6;
/// How many keys a table has at the place of this one, if they are many: keys are found by a hash
/// that anybody can compute, so that a script may have all its keys at one place.
///
/// # Safety
/// The key is a value of Lua's that is there.
unsafe fn keys_at(table: &TableHead, key: &TValue) -> u64 {
    let size = table.header.lsizenode;
    if size < CHAIN_TABLE_MIN || table.index(key).is_some() {
        return 0;
    }
    let places = 1_u32 << size;
    // SAFETY: as the caller says; Lua's own keys are there as long as its table.
    unsafe {
        let at = match key.tt {
            STRING => (*(key.value as *const StringHead)).hash & (places - 1),
            NUMBER if f64::from_bits(key.value) == 0.0 => 0,
            NUMBER => (key.value as u32).wrapping_add((key.value >> 32) as u32) % (places - 1),
            _ => return 0,
        };
        let (mut node, mut count) = (table.node.add(at as usize), 0);
        while !node.is_null() {
            count += 1;
            node = (*node).next;
        }
        if count > CHAIN_FREE { count } else { 0 }
    }
}

/// The same of a function whose first arguments are a table and a key.
///
/// # Safety
/// It is called within a function of the interpreter's, whose arguments are those.
pub(crate) unsafe fn keys_at_argument(state: *mut lua_State) -> u64 {
    // SAFETY: as the caller says.
    unsafe {
        let base = (*state.cast::<State>()).base;
        keys_at(&*((*base).value as *const TableHead), &*base.add(1))
    }
}

/// What comes next.
///
/// # Safety
/// A function of Lua's is executed, and Lua has called a hook before an instruction of it.
#[inline]
pub(crate) unsafe fn next_instruction(state: *mut lua_State) -> Next {
    // SAFETY: as the caller says; Lua's compiler has made the instruction, so that the values which
    // it names are there. The values up to `top` are those that the instruction before has left.
    unsafe {
        let state = &*state.cast::<State>();
        let code = *state.saved_pc.sub(1);
        let (a, b, c) = (code >> 6 & 0xff, code >> 23, code >> 14 & 0x1ff);
        let value = |at: u32| match at & IS_CONSTANT {
            0 => &*state.base.add(at as usize),
            _ => {
                let closure = &*((*(*state.call).function).value as *const Closure);
                &*(*closure.prototype).constants.add((at & !IS_CONSTANT) as usize)
            }
        };
        let searched = |table: u32, key: u32| match &*state.base.add(table as usize) {
            table if table.tt == TABLE => {
                match keys_at(&*(table.value as *const TableHead), value(key)) {
                    0 => Next::Cheap,
                    keys => Next::Searched(keys),
                }
            }
            _ => Next::Cheap,
        };
        match code & 0x3f {
            GET_TABLE | SELF => searched(b, c),
            SET_TABLE => searched(a, b),
            CONCAT => {
                let (mut numbers, mut bytes) = (0, 0);
                for at in b..=c {
                    let value = &*state.base.add(at as usize);
                    match value.tt {
                        NUMBER => numbers += 1,
                        STRING => bytes += (*(value.value as *const StringHead)).len as u64,
                        _ => {}
                    }
                }
                Next::Joined { numbers, bytes }
            }
            CALL | TAIL_CALL | RETURN | SET_LIST if b == 0 => {
                let values = state.top.offset_from(state.base.add(a as usize));
                Next::Values(values.max(0) as u64)
            }
            VARARG if b == 0 => {
                let call = &*state.call;
                Next::Values(call.base.offset_from(call.function).max(0) as u64)
            }
            _ => Next::Cheap,
        }
    }
}

/// The size of an entry of a table in bytes.
pub(crate) const ENTRY_BYTES: usize = size_of::<Node>();
/// The first of Lua's types whose values are found by address.
const FIRST_OBJECT: c_int = 5;
const LIGHT: c_int = 2;

/// Whether a key among the entries of a table is an object, or was one.
///
/// # Safety
/// There are so many entries.
pub(crate) unsafe fn has_objects(entries: *const c_void, count: usize) -> bool {
    let nodes = entries.cast::<Node>();
    (0..count).any(|at| {
        // SAFETY: as the caller says.
        let tt = unsafe { (*nodes.add(at)).key.tt };
        tt >= FIRST_OBJECT || tt == LIGHT
    })
}

/// The interned strings of an interpreter. A string is found by a hash of at most 32 of its bytes,
/// so that many long ones may share a slot: each new one is compared with those.
#[derive(Debug)]
pub(crate) struct Strings {
    table: *const StringTable,
    /// At the last inspection: the number of strings, the cost of making all of them, and the cost
    /// of finding the one that is found last.
    count: u32,
    made: u64,
    longest: u64,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { table: ptr::null(), count: 0, made: 0, longest: 0 }
    }
}

/// They are inspected again when there are this many more, and a sixteenth more.
const MORE_STRINGS_MIN: u32 = 1_024;
/// The cost of passing a string in tenths of a unit, and the number of bytes that are compared for
/// a tenth.
const PASSED_TENTHS: u64 = 5;
const COMPARED_OF_TENTH: u64 = 12;
/// They are inspected before they may have cost this much more.
const UNSEEN_COST_MAX: u64 = 250_000;
/// A lower cost of finding a string counts as nothing.
const LONGEST_MIN: u64 = 100;

impl Strings {
    pub(crate) fn of(lua: &Lua) -> mlua::Result<Strings> {
        let mut table = ptr::null();
        // SAFETY: the state is that of the Lua that is built in; nothing is left on its stack.
        unsafe {
            lua.exec_raw::<()>((), |state| table = (*state.cast::<State>()).global)?;
        }
        Ok(Strings { table, ..Strings::default() })
    }

    /// Marks everything so far as paid for.
    pub(crate) fn begin(&mut self) {
        self.look();
    }

    /// The cost of finding strings since the last call. A step of the script is assumed to find the
    /// worst one once.
    pub(crate) fn cost(&mut self) -> u64 {
        // SAFETY: it is the interpreter's, which is there while it is asked.
        let Some(table) = (unsafe { self.table.as_ref() }) else { return 0 };
        let more = table.nuse.saturating_sub(self.count);
        let before = self.made;
        let is_much = more >= MORE_STRINGS_MIN.max(table.nuse / 16)
            || u64::from(more) * self.longest > UNSEEN_COST_MAX;
        if is_much {
            self.look();
        }
        let again = if self.longest < LONGEST_MIN { 0 } else { self.longest };
        self.made.saturating_sub(before) + again
    }

    fn look(&mut self) {
        // SAFETY: as above; each place is the first of a list, or null.
        unsafe {
            let Some(table) = self.table.as_ref() else { return };
            let (mut made, mut longest) = (0, 0);
            for at in 0..table.size.max(0) as usize {
                let (mut count, mut bytes) = (0_u64, 0_u64);
                let mut next = (*table.hash.add(at)).as_ref();
                while let Some(string) = next {
                    count += 1;
                    bytes += string.len as u64;
                    next = string.next.as_ref();
                }
                if count > 1 {
                    made += (count - 1) * (count * PASSED_TENTHS + bytes / COMPARED_OF_TENTH) / 2;
                    longest = longest.max(count * PASSED_TENTHS + bytes / COMPARED_OF_TENTH);
                }
            }
            (self.count, self.made, self.longest) = (table.nuse, made / 10, longest / 10);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_those_of_the_lua_that_is_built_in() {
        let lua = Lua::new();
        let table: mlua::Table =
            lua.load("local t = {} for i = 1, 1000 do t[i] = i end return t").eval().unwrap();
        assert_eq!(slots(&table), 1_024 + 1);
        let fields = "local t = {} for i = 1, 1000 do t['k' .. i] = i end return t";
        let table: mlua::Table = lua.load(fields).eval().unwrap();
        assert_eq!(slots(&table), 1_024);
        let strings = Strings::of(&lua).unwrap();
        // SAFETY: the interpreter is there.
        let count = || unsafe { (*strings.table).nuse };
        let before = count();
        let kept: Vec<_> =
            (0..100).map(|n| lua.create_string(format!("another {n}")).unwrap()).collect();
        assert_eq!(count(), before + kept.len() as u32);
    }

    #[test]
    fn strings_that_share_a_place_cost_what_it_takes_to_pass_them() {
        let lua = Lua::new();
        lua.gc_stop();
        let mut strings = Strings::of(&lua).unwrap();
        strings.begin();
        lua.load("t = {} for i = 1, 5000 do t[i] = ('x'):rep(20) .. i end").exec().unwrap();
        assert!(strings.cost() < 2_000, "{strings:?}");
        // Only each 32nd byte is part of the hash.
        lua.load("t = {} for i = 1, 5000 do t[i] = ('x'):rep(1000) .. i .. 'abcdefghij' end")
            .exec()
            .unwrap();
        assert!(strings.cost() > 1_000_000, "{strings:?}");
    }
}
