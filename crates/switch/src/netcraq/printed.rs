//! Algorithm 1 as the paper prints it, for the tests that show where it breaks, and for figures.
//!
//! | stage | array | a packet does |
//! |---|---|---|
//! | 0 | `write_index`, a cell for each key (the paper's has `n`, the number of versions: hole N10) | reads, counts up, resets |
//! | 1 | `read_index`, the same | reads, sets, resets |
//! | 2 | `objects_store`, `n` cells for each key (two arrays, since a value has 128 bits) | reads or writes one of them |
//!
//! The paper leaves one thing open: here, a write that finds index 0 leaves it at 1 ("the index for
//! the next available cell"), since otherwise no second version would ever be appended.

use alloc::vec::Vec;

use concord_pisa::{Pass, RegisterArray};
use concord_wire::netcraq::{Printed, PrintedOp};

/// The role of a switch in its chain (§II.A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Takes writes.
    Head,
    /// A member between head and tail.
    Replica,
    /// Answers dirty reads, and acknowledges writes.
    Tail,
}

/// The form of the algorithm, with two optional readings that each repair one hole, so that the
/// others show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrintedForm {
    /// The number of keys; a power of two.
    pub keys: u32,
    /// NUMBER_OF_VERSIONS; a power of two.
    pub versions: u32,
    /// Whether a first write is appended too, instead of going to the clean cell (line 19; hole
    /// N2).
    pub appends_first: bool,
    /// Whether "forward to tail" is a hop to the next member (lines 20 and 26; hole N3).
    pub by_member: bool,
}

impl PrintedForm {
    /// The algorithm as printed, for one key.
    #[must_use]
    pub const fn as_printed(versions: u32) -> PrintedForm {
        PrintedForm { keys: 1, versions, appends_first: false, by_member: false }
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is dropped.
    Dropped,
    /// It was an acknowledgement.
    Consumed,
    /// The reply goes to the client.
    Reply(Printed),
    /// The read goes to the tail.
    Tail(Printed),
    /// The write goes to the tail, or to the next member.
    Onward(Printed),
    /// It goes to all other members.
    Multicast(Printed),
}

/// A switch that runs Algorithm 1.
#[derive(Clone, Debug)]
pub struct PrintedSwitch {
    form: PrintedForm,
    role: Role,
    write_index: RegisterArray<u32>,
    read_index: RegisterArray<u32>,
    objects_store: [RegisterArray<u64>; 2],
}

impl PrintedSwitch {
    /// A switch with empty registers.
    #[must_use]
    pub fn new(form: PrintedForm, role: Role) -> PrintedSwitch {
        let (keys, all) = (form.keys as usize, (form.keys * form.versions) as usize);
        PrintedSwitch {
            form,
            role,
            write_index: RegisterArray::new("write_index", 0, keys),
            read_index: RegisterArray::new("read_index", 1, keys),
            objects_store: [
                RegisterArray::new("objects_store_0", 2, all),
                RegisterArray::new("objects_store_1", 2, all),
            ],
        }
    }

    /// Assigns another role, as the control plane does (§III.B).
    pub fn set_role(&mut self, role: Role) {
        self.role = role;
    }

    /// Its role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Its registers, as the control plane reads them: for each key, both indices and the versions.
    pub fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        let indices = self.write_index.cells().chain(self.read_index.cells()).map(u64::from);
        indices.chain(self.objects_store.iter().flat_map(RegisterArray::cells))
    }

    /// Whether the key is clean: "the latest committed value exists in the first cell" (§III.A.1).
    #[must_use]
    pub fn is_clean(&self, key_id: u32) -> bool {
        self.read_index.peek(key_id) == 0
    }

    /// The value that a read at the tail gets.
    #[must_use]
    pub fn value(&self, key_id: u32) -> [u8; 16] {
        let place = key_id * self.form.versions + self.read_index.peek(key_id);
        join([0, 1].map(|half| self.objects_store[half].peek(place)))
    }

    /// Processes a packet by Algorithm 1.
    pub fn process(&mut self, packet: Printed) -> Sent {
        match packet.op {
            PrintedOp::Read => self.on_read(packet),
            PrintedOp::Write => self.on_write(packet),
            PrintedOp::Acknowledgement => {
                // Line 32: the value in the message is taken as the latest clean one, whatever is
                // here.
                self.clean_write(packet);
                Sent::Consumed
            }
            PrintedOp::ReadReply => Sent::Dropped,
        }
    }

    /// Lines 4 to 14.
    fn on_read(&mut self, packet: Printed) -> Sent {
        let mut pass = Pass::begin();
        let index = self.read_index.port().access(&mut pass, packet.key_id, |cell| *cell);
        if index != 0 && self.role != Role::Tail {
            return Sent::Tail(packet);
        }
        let place = packet.key_id * self.form.versions + index;
        let mut words = [0; 2];
        for (word, array) in words.iter_mut().zip(&mut self.objects_store) {
            *word = array.port().access(&mut pass, place, |cell| *cell);
        }
        Sent::Reply(Printed { op: PrintedOp::ReadReply, value: join(words), ..packet })
    }

    /// Lines 15 to 30.
    fn on_write(&mut self, packet: Printed) -> Sent {
        if self.role == Role::Tail {
            // Lines 16 to 26 would access objects_store a first time in this pass, without effect.
            self.clean_write(packet);
            return Sent::Multicast(Printed { op: PrintedOp::Acknowledgement, ..packet });
        }
        let (mut pass, versions) = (Pass::begin(), self.form.versions);
        let first = u32::from(self.form.appends_first);
        let index = self.write_index.port().access(&mut pass, packet.key_id, |cell| {
            let index = (*cell).max(first);
            if index < versions {
                *cell = index + 1;
            }
            index
        });
        if index >= versions {
            return Sent::Dropped;
        }
        self.read_index.port().access(&mut pass, packet.key_id, |cell| *cell = index);
        self.store(&mut pass, packet.key_id * versions + index, packet.value);
        Sent::Onward(packet)
    }

    fn clean_write(&mut self, packet: Printed) {
        let mut pass = Pass::begin();
        self.write_index.port().access(&mut pass, packet.key_id, |cell| *cell = 0);
        self.read_index.port().access(&mut pass, packet.key_id, |cell| *cell = 0);
        self.store(&mut pass, packet.key_id * self.form.versions, packet.value);
    }

    fn store(&mut self, pass: &mut Pass, place: u32, value: [u8; 16]) {
        for (word, array) in split(value).into_iter().zip(&mut self.objects_store) {
            array.port().access(pass, place, |cell| *cell = word);
        }
    }

    /// Copies the registers `what` of another switch one by one, as the control plane does
    /// (§III.C).
    pub fn copy(&mut self, from: &PrintedSwitch, what: Copied) {
        let place = |key: u32, index: u32| key * self.form.versions + index;
        match what {
            Copied::Indices => {
                self.write_index = from.write_index.clone();
                self.read_index = from.read_index.clone();
            }
            Copied::Objects => {
                let all: Vec<u32> = (0..self.form.keys)
                    .flat_map(|key| (0..self.form.versions).map(move |index| place(key, index)))
                    .collect();
                for at in all {
                    for half in 0..2 {
                        let value = from.objects_store[half].peek(at);
                        let port = self.objects_store[half].port();
                        port.access(&mut Pass::begin(), at, |cell| *cell = value);
                    }
                }
            }
        }
    }
}

/// Which registers are copied to a new member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// Both index arrays.
    Indices,
    /// The values.
    Objects,
}

fn split(value: [u8; 16]) -> [u64; 2] {
    let all = u128::from_be_bytes(value);
    [(all >> 64) as u64, all as u64]
}

fn join([high, low]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}
