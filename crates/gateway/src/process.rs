//! The gateway's process and its use of resources.

use alloc::string::String;

/// The gateway's process and its use of resources, as the driver reports them.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// The system: name, release, machine.
    pub os: String,
    /// The path of the program.
    pub executable: String,
    /// Time that all threads used, in the system and outside of it, in us.
    pub all: CpuTime,
    /// The CPU time of the thread that serves.
    pub main: CpuTime,
    /// The CPU time of children that have ended.
    pub children: CpuTime,
    /// Resident memory.
    pub resident_bytes: u64,
}

/// Time on a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Within the system, in us.
    pub system_us: u64,
    /// Outside of it, in us.
    pub user_us: u64,
}
