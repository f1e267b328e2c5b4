//! Falcon's processes: owners of tasks with their HTTP API and journal, workers with what they run,
//! and tasks of a program's own ([`tasks`]).

mod job_journal;
mod jobs;
pub mod owner;
pub mod tasks;
pub mod worker;
