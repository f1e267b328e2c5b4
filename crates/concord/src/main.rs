//! The `concord` command.
fn main() {}
