//! Register arrays, and the single-use ports through which a packet touches them.

use alloc::boxed::Box;
use alloc::vec;

use crate::report::ArrayReport;

mod sealed {
    pub trait Sealed {}
}

/// The type of a register cell: an unsigned integer of up to 64 bits.
pub trait Cell: Copy + Default + sealed::Sealed {
    /// Width of the cell in bits.
    const BITS: u32;
}

macro_rules! cells {
    ($($t:ty)*) => { $(
        impl sealed::Sealed for $t {}
        impl Cell for $t { const BITS: u32 = <$t>::BITS; }
    )* };
}
cells!(u8 u16 u32 u64);

/// An array of cells in one stage. A packet touches all arrays of a stage at the same time, each by
/// an arithmetic unit of its own ([`crate::ASIC`] says how many there are): neither index nor
/// update of one may depend on what another of the same stage gave. The types do not see that; who
/// writes a program keeps what a stage gave in the packet's metadata, and reads it in the next.
///
/// The data plane touches it through [`RegisterArray::port`], the
/// control plane reads it with [`RegisterArray::peek`] and wipes it with [`RegisterArray::reset`].
#[derive(Clone, Debug)]
pub struct RegisterArray<T> {
    name: &'static str,
    stage: u8,
    /// A power of two of them, so that an index is cut to width as the hardware does.
    cells: Box<[T]>,
}

impl<T: Cell> RegisterArray<T> {
    /// An array of `cells` zeroes in stage `stage`.
    ///
    /// # Panics
    /// If `cells` is not a power of two: programs check their configuration before.
    #[must_use]
    pub fn new(name: &'static str, stage: u8, cells: usize) -> RegisterArray<T> {
        assert!(cells.is_power_of_two(), "an array's size is a power of two");
        RegisterArray { name, stage, cells: vec![T::default(); cells].into_boxed_slice() }
    }

    /// The one touch of this array that a packet has in one pass. Whoever sets up a pass calls
    /// this once per array, and hands the ports, not the arrays, to the code of the pass.
    #[inline]
    pub fn port(&mut self) -> Port<'_, T> {
        Port { array: self }
    }

    /// The control plane's view of one cell; the index is cut to width.
    #[must_use]
    #[inline]
    pub fn peek(&self, index: u32) -> T {
        let index = self.cut(index);
        self.cells.get(index).copied().unwrap_or_default()
    }

    /// The control plane's view of all cells.
    pub fn cells(&self) -> impl Iterator<Item = T> + '_ {
        self.cells.iter().copied()
    }

    /// The control plane zeroes every cell.
    pub fn reset(&mut self) {
        self.cells.fill(T::default());
    }

    /// The number of cells.
    #[must_use]
    pub fn size(&self) -> usize {
        self.cells.len()
    }

    /// The resources of the array, for the stage report.
    #[must_use]
    pub fn report(&self) -> ArrayReport {
        ArrayReport {
            name: self.name,
            stage: self.stage,
            cells: self.cells.len(),
            cell_bits: T::BITS,
        }
    }

    #[inline]
    fn cut(&self, index: u32) -> usize {
        index as usize & (self.cells.len() - 1)
    }
}

/// One packet on its way through the pipeline: knows the stage that it has reached.
#[derive(Debug)]
pub struct Pass {
    /// Never falls: a packet cannot go back a stage.
    stage: u8,
}

impl Pass {
    /// A packet that enters the pipeline.
    #[must_use]
    #[inline]
    pub fn begin() -> Pass {
        Pass { stage: 0 }
    }
}

/// The right to touch one array once. Not `Copy`, not `Clone`, consumed by [`Port::access`].
#[derive(Debug)]
pub struct Port<'a, T> {
    array: &'a mut RegisterArray<T>,
}

impl<T: Cell> Port<'_, T> {
    /// Reads, compares and updates the cell at `index` (cut to the array's width), and gives what
    /// `update` returns.
    ///
    /// # Panics
    /// In debug builds, if the packet has already passed the array's stage. A release build leaves
    /// the check out: a program's order of stages is fixed code, which every test walks through.
    #[inline]
    pub fn access<R>(self, pass: &mut Pass, index: u32, update: impl FnOnce(&mut T) -> R) -> R {
        debug_assert!(
            self.array.stage >= pass.stage,
            "a packet in stage {} cannot go back to {} in stage {}",
            pass.stage,
            self.array.name,
            self.array.stage
        );
        pass.stage = self.array.stage;
        let index = self.array.cut(index);
        update(&mut self.array.cells[index])
    }
}

/// The ports of several like arrays in consecutive stages, each given out once, in stage order.
#[derive(Debug)]
pub struct Ports<'a, T> {
    arrays: core::slice::IterMut<'a, RegisterArray<T>>,
}

impl<'a, T> Ports<'a, T> {
    /// The ports of `arrays`, which lie in rising stages.
    #[inline]
    pub fn of(arrays: &'a mut [RegisterArray<T>]) -> Ports<'a, T> {
        Ports { arrays: arrays.iter_mut() }
    }
}

impl<'a, T> Iterator for Ports<'a, T> {
    type Item = Port<'a, T>;

    #[inline]
    fn next(&mut self) -> Option<Port<'a, T>> {
        self.arrays.next().map(|array| Port { array })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_reads_compares_and_updates_one_cell() {
        let mut a: RegisterArray<u64> = RegisterArray::new("a", 0, 4);
        let old = a.port().access(&mut Pass::begin(), 2, |cell| core::mem::replace(cell, 7));
        assert_eq!((old, a.peek(2)), (0, 7));
        assert_eq!(a.cells().collect::<alloc::vec::Vec<_>>(), [0, 0, 7, 0]);
        a.reset();
        assert_eq!(a.peek(2), 0);
    }

    #[test]
    fn an_index_is_cut_to_the_width_of_the_array() {
        let mut a: RegisterArray<u32> = RegisterArray::new("a", 0, 4);
        a.port().access(&mut Pass::begin(), 5, |cell| *cell = 1);
        a.port().access(&mut Pass::begin(), u32::MAX, |cell| *cell = 3);
        assert_eq!(a.cells().collect::<alloc::vec::Vec<_>>(), [0, 1, 0, 3]);
        assert_eq!(a.peek(5), 1);
    }

    #[test]
    fn each_array_of_a_group_is_given_out_once_in_order() {
        let mut group: alloc::vec::Vec<RegisterArray<u8>> =
            (3..6).map(|stage| RegisterArray::new("t", stage, 1)).collect();
        let mut pass = Pass::begin();
        for port in Ports::of(&mut group) {
            port.access(&mut pass, 0, |cell| *cell += 1);
        }
        assert!(group.iter().all(|a| a.peek(0) == 1));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "cannot go back")]
    fn going_back_a_stage_fails() {
        let mut early: RegisterArray<u32> = RegisterArray::new("early", 1, 1);
        let mut late: RegisterArray<u32> = RegisterArray::new("late", 2, 1);
        let mut pass = Pass::begin();
        late.port().access(&mut pass, 0, |_| ());
        early.port().access(&mut pass, 0, |_| ());
    }
}
