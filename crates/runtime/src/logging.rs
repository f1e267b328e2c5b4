//! The log of a role's process: one line an event, on standard error, as text or as JSON.
//!
//! Machines log nothing: they have no clock and no I/O. After a batch of inputs each role compares
//! its machine's visible state ([`crate::roles`]) with the one before, and logs what changed. So
//! logging cannot change the behaviour of a machine, and a line has the time of its event.

use std::str::FromStr;

use tracing::level_filters::LevelFilter;

use crate::error::Error;

/// The format of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `2026-01-31T12:00:00.000001Z  INFO replica{node=2}: opened an epoch epoch=3`
    #[default]
    Text,
    /// One JSON object a line: `timestamp`, `level`, `message`, the event's fields, and `span` with
    /// the role's `name` and its `node`.
    Json,
}

/// Configures the log of the process, once, before its role runs. `level` is "error", "warn",
/// "info", "debug", "trace" or "off".
///
/// # Errors
/// One line that names the levels there are.
pub fn init(format: Format, level: &str) -> Result<(), Error> {
    let filter = LevelFilter::from_str(level).map_err(|_| {
        Error::new(format!("no log level {level:?}: error, warn, info, debug, trace or off"))
    })?;
    let lines = tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    match format {
        Format::Text => lines.init(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}

/// The span of all lines of a role, with its number in the rack.
pub(crate) fn span(role: &str, node: u16) -> tracing::Span {
    // The name of a span must be a literal.
    match role {
        "controller" => tracing::info_span!("controller", node),
        "switch" => tracing::info_span!("switch", node),
        "replica" => tracing::info_span!("replica", node),
        "gateway" => tracing::info_span!("gateway", node),
        "worker" => tracing::info_span!("worker", node),
        "owner" => tracing::info_span!("owner", node),
        _ => tracing::info_span!("role", role, node),
    }
}
