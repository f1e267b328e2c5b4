//! The gateway's process and its use of resources.

use alloc::string::String;

/// What the gateway's process is and has used. The driver tells it.
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
    /// The same of the thread that serves.
    pub main: CpuTime,
    /// The same of children that ended.
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
