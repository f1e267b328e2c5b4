//! The resources that a program takes on hardware: its stage table against the budget of an ASIC.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The resources of a switch ASIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asic {
    /// Match-action stages of one pipe.
    pub stages: usize,
    /// Register memory of one stage in bytes.
    pub stage_sram_bytes: usize,
    /// Register arrays of one stage: each needs an arithmetic unit of its own.
    pub stage_arrays: usize,
    /// Multicast groups.
    pub multicast_groups: usize,
}

impl Asic {
    /// Memory of all stages in bytes.
    #[must_use]
    pub const fn sram_bytes(&self) -> usize {
        self.stages * self.stage_sram_bytes
    }
}

/// The budget that reports are held against: 12 stages of 80 blocks of 16 KiB, 15 MiB in all, the
/// lower end of what Harmonia §7.2 counts on ("10-20 stages and a few tens of MB"), and four
/// arithmetic units for registers in each, as Tofino has.
pub const ASIC: Asic = Asic {
    stages: 12,
    stage_sram_bytes: 80 * 16 * 1024,
    stage_arrays: 4,
    multicast_groups: 65_536,
};

/// One register array's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayReport {
    /// The array's name in the program.
    pub name: &'static str,
    /// Its stage, from 0.
    pub stage: u8,
    /// The number of cells.
    pub cells: usize,
    /// Width of a cell in bits.
    pub cell_bits: u32,
}

impl ArrayReport {
    /// Memory in bytes.
    #[must_use]
    pub const fn sram_bytes(&self) -> usize {
        self.cells * self.cell_bits as usize / 8
    }
}

/// One match-action table that the control plane fills, and that is too large not to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableReport {
    /// The table's name in the program.
    pub name: &'static str,
    /// The number of rows.
    pub rows: usize,
    /// Width of what a row gives in bits.
    pub bits: u32,
}

impl TableReport {
    /// Memory in bytes: rows are found by their index, so that no key is kept.
    #[must_use]
    pub const fn sram_bytes(&self) -> usize {
        self.rows * self.bits as usize / 8
    }
}

/// A program's stage table. Its `Display` is what `concord switch --describe` prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The program's name; of several together, their names with commas.
    pub program: String,
    /// Its arrays in stage order.
    pub arrays: Vec<ArrayReport>,
    /// Its larger tables. They are memory of any stages that have room, and no registers.
    pub tables: Vec<TableReport>,
    /// The largest number of recirculations of a packet.
    pub recirculations_max: u32,
    /// Multicast groups.
    pub multicast_groups: usize,
}

impl Report {
    /// A program with these arrays, whose packets end in one pass and go to one place.
    #[must_use]
    pub fn new(program: &str, arrays: Vec<ArrayReport>) -> Report {
        let (tables, program) = (Vec::new(), program.into());
        Report { program, arrays, tables, recirculations_max: 0, multicast_groups: 0 }
    }

    /// Both programs on one switch. A packet goes through one of them, so that their arrays can
    /// share stages: memory of a stage and multicast groups add up, stages and recirculations do
    /// not.
    #[must_use]
    pub fn beside(mut self, other: Report) -> Report {
        self.program = format!("{}, {}", self.program, other.program);
        self.arrays.extend(other.arrays);
        self.arrays.sort_by_key(|array| array.stage);
        self.tables.extend(other.tables);
        self.recirculations_max = self.recirculations_max.max(other.recirculations_max);
        self.multicast_groups += other.multicast_groups;
        self
    }

    /// Memory of the arrays of one stage in bytes.
    #[must_use]
    pub fn sram_bytes_in(&self, stage: usize) -> usize {
        let here = self.arrays.iter().filter(|a| usize::from(a.stage) == stage);
        here.map(ArrayReport::sram_bytes).sum()
    }

    /// Arrays of one stage.
    #[must_use]
    pub fn arrays_in(&self, stage: usize) -> usize {
        self.arrays.iter().filter(|a| usize::from(a.stage) == stage).count()
    }

    /// The first thing for which `asic` has no room, in words.
    #[must_use]
    pub fn excess(&self, asic: &Asic) -> Option<String> {
        let program = &self.program;
        if self.stages() > asic.stages {
            let (stages, there_are) = (self.stages(), asic.stages);
            return Some(format!("{program}: {stages} stages, of which an ASIC has {there_are}"));
        }
        let too_full = |stage: &usize| self.sram_bytes_in(*stage) > asic.stage_sram_bytes;
        if let Some(stage) = (0..self.stages()).find(too_full) {
            let (used, all) = (bytes(self.sram_bytes_in(stage)), bytes(asic.stage_sram_bytes));
            let excess = "of register memory, of which an ASIC has";
            return Some(format!(
                "{program}: stage {stage} takes {used} {excess} {all} in a stage"
            ));
        }
        let too_many = |stage: &usize| self.arrays_in(*stage) > asic.stage_arrays;
        if let Some(stage) = (0..self.stages()).find(too_many) {
            let (arrays, there_are) = (self.arrays_in(stage), asic.stage_arrays);
            return Some(format!(
                "{program}: stage {stage} has {arrays} register arrays, for which an ASIC has {there_are} units"
            ));
        }
        let (groups, there_are) = (self.multicast_groups, asic.multicast_groups);
        (groups > there_are).then(|| {
            format!("{program}: {groups} multicast groups, of which an ASIC has {there_are}")
        })
    }

    /// Stages used: up to the last one with an array.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.arrays.iter().map(|a| usize::from(a.stage) + 1).max().unwrap_or(0)
    }

    /// Memory of all arrays and tables in bytes.
    #[must_use]
    pub fn sram_bytes(&self) -> usize {
        let arrays: usize = self.arrays.iter().map(ArrayReport::sram_bytes).sum();
        arrays + self.tables.iter().map(TableReport::sram_bytes).sum::<usize>()
    }

    /// Memory of the fullest stage in bytes.
    #[must_use]
    pub fn stage_sram_bytes_max(&self) -> usize {
        (0..self.stages()).map(|stage| self.sram_bytes_in(stage)).max().unwrap_or(0)
    }

    /// Whether `asic` can hold the program.
    #[must_use]
    pub fn fits(&self, asic: &Asic) -> bool {
        self.excess(asic).is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.program)?;
        writeln!(
            f,
            "{:>5}  {:<16} {:>10} {:>5} {:>12}",
            "stage", "array", "cells", "bits", "SRAM"
        )?;
        for a in &self.arrays {
            let size = bytes(a.sram_bytes());
            let (stage, name) = (a.stage, a.name);
            writeln!(f, "{stage:>5}  {name:<16} {:>10} {:>5} {size:>12}", a.cells, a.cell_bits)?;
        }
        for t in &self.tables {
            let size = bytes(t.sram_bytes());
            writeln!(f, "{:>5}  {:<16} {:>10} {:>5} {size:>12}", "table", t.name, t.rows, t.bits)?;
        }
        writeln!(f, "stages          {} of {}", self.stages(), ASIC.stages)?;
        let (used, all) = (bytes(self.sram_bytes()), bytes(ASIC.sram_bytes()));
        writeln!(f, "SRAM            {used} of {all}")?;
        let (used, all) = (bytes(self.stage_sram_bytes_max()), bytes(ASIC.stage_sram_bytes));
        writeln!(f, "fullest stage   {used} of {all}")?;
        writeln!(f, "recirculations  {} a packet at most", self.recirculations_max)?;
        let (used, all) = (self.multicast_groups, ASIC.multicast_groups);
        writeln!(f, "multicast       {used} of {all} groups")?;
        let verdict = if self.fits(&ASIC) { "yes" } else { "no" };
        write!(f, "fits an ASIC    {verdict}")
    }
}

/// A size as a person reads it, exact below 1 KiB and to a tenth above.
fn bytes(n: usize) -> String {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    let tenths = |unit: usize| (n / unit, n % unit * 10 / unit);
    match n {
        0..KIB => format!("{n} B"),
        KIB..MIB => format!("{}.{} KiB", tenths(KIB).0, tenths(KIB).1),
        _ => format!("{}.{} MiB", tenths(MIB).0, tenths(MIB).1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    fn report(stage: u8, cells: usize) -> Report {
        let array = |name, stage, cells| ArrayReport { name, stage, cells, cell_bits: 64 };
        let arrays = vec![array("a", 0, 1), array("b", stage, cells), array("c", stage, 2)];
        Report::new("p", arrays)
    }

    #[test]
    fn memory_is_counted_by_stage_and_in_all() {
        let r = report(4, 65_536);
        assert_eq!(r.stages(), 5);
        assert_eq!(r.sram_bytes(), 8 + 8 * 65_536 + 16);
        assert_eq!(r.stage_sram_bytes_max(), 8 * 65_536 + 16);
        let text = r.to_string();
        assert!(text.contains("stages          5 of 12"), "{text}");
        assert!(text.contains("512.0 KiB") && text.contains("of 15.0 MiB"), "{text}");
        assert!(text.ends_with("yes"), "{text}");
    }

    /// Tables are shown behind the arrays and take memory of no stage.
    #[test]
    fn tables_take_no_stage_memory() {
        let table = TableReport { name: "rows", rows: 2_048, bits: 8 };
        let r = Report { tables: vec![table], ..report(1, 1) };
        assert_eq!((r.sram_bytes(), r.stages()), (report(1, 1).sram_bytes() + 2_048, 2));
        assert_eq!(r.stage_sram_bytes_max(), report(1, 1).stage_sram_bytes_max());
        let text = r.clone().beside(report(2, 1)).to_string();
        assert!(text.contains("table  rows                   2048     8      2.0 KiB"), "{text}");
    }

    /// A program with too many stages or too full a stage does not fit.
    #[test]
    fn oversized_program_does_not_fit() {
        assert!(report(11, 1).fits(&ASIC));
        assert!(!report(12, 1).fits(&ASIC));
        assert!(!report(3, 1 << 20).fits(&ASIC));
    }

    /// Programs beside each other share stages and fill them together.
    #[test]
    fn programs_share_stages() {
        let half = 100_000;
        let recirculating = Report { recirculations_max: 3, ..report(5, half) };
        let both = report(4, half).beside(recirculating);
        assert_eq!((both.stages(), both.recirculations_max), (6, 3));
        assert_eq!(both.sram_bytes_in(0), 16, "one cell of each");
        assert_eq!(both.excess(&ASIC), None);
        let full = report(4, half).beside(report(4, half));
        let text = full.excess(&ASIC).unwrap();
        assert_eq!(
            text,
            "p, p: stage 4 takes 1.5 MiB of register memory, of which an ASIC has 1.2 MiB in a stage"
        );
        let text = report(1, 1).beside(report(12, 1)).excess(&ASIC).unwrap();
        assert_eq!(text, "p, p: 13 stages, of which an ASIC has 12");
        let text = report(1, 1).beside(report(1, 1)).beside(report(1, 1)).excess(&ASIC).unwrap();
        assert_eq!(text, "p, p, p: stage 1 has 6 register arrays, for which an ASIC has 4 units");
        let cast = |multicast_groups| Report { multicast_groups, ..report(1, 1) };
        let text = cast(65_000).beside(cast(600)).excess(&ASIC).unwrap();
        assert_eq!(text, "p, p: 65600 multicast groups, of which an ASIC has 65536");
    }
}
