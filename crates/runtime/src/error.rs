//! Errors that a person reads: one line that says what was wrong, where, and what to do.

use std::fmt;
use std::io;

/// Why a role cannot start or go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// An error with this one line.
    pub fn new(line: impl Into<String>) -> Error {
        Error(line.into())
    }

    /// An address that cannot be listened on; `remedy` says where another one is chosen.
    #[must_use]
    pub fn listening(what: &str, e: &io::Error, remedy: &str) -> Error {
        let why = match e.kind() {
            io::ErrorKind::AddrInUse => "address in use".to_string(),
            io::ErrorKind::AddrNotAvailable => "no such address on this host".to_string(),
            io::ErrorKind::PermissionDenied => "permission denied".to_string(),
            _ => e.to_string(),
        };
        Error(format!("cannot listen on {what}: {why}; choose another with {remedy}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Names what was tried, for an error of the system.
pub trait Context<T> {
    /// Turns the error into `cannot <what>: <why>`.
    ///
    /// # Errors
    /// The same, with its context.
    fn cannot(self, what: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn cannot(self, what: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|e| Error(format!("cannot {what}: {e}")))
    }
}
