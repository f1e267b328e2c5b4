//! Tests over real processes: racks, their clients and what goes wrong, a file each subject.
//!
//! They are one program, so that it is linked once and tests of different subjects run beside each
//! other. Those of one file: `cargo test -p concord --test racks failures::`.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod backup;
mod blocking;
mod clients;
mod compare;
mod coord;
mod coord_gateway;
mod coord_lock;
mod coord_spares;
mod crowd;
mod databases;
mod directories;
mod docs_errors;
mod docs_names;
mod docs_numbers;
mod docs_pages;
mod docs_runbook;
mod docs_semantics;
mod docs_status;
mod durable;
mod events;
mod exit_status;
mod failures;
mod falcon;
mod falcon_clients;
mod full;
mod functions;
mod groups;
mod hangs;
mod histories;
mod large;
mod large_commands;
mod limits;
mod loops;
mod members;
mod memory;
mod operations;
mod pubsub;
mod redis_cli;
mod rejoin;
mod replicas;
mod replies;
mod rolling;
mod run_directory;
mod scripts;
mod slow_and_long;
mod torture;
mod tracking;
mod transactions;
mod up;
mod users;
mod voters;
