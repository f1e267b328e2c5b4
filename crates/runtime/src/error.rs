//! Errors that a person reads: one line that says what was wrong, where, and what to do.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// The reason that a role cannot start or go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// An error with this one line.
    pub fn new(line: impl Into<String>) -> Error {
        Error(line.into())
    }

    /// An error about an address that cannot be listened on. `remedy` says where to choose another
    /// one.
    #[must_use]
    pub fn listening(what: &str, e: &io::Error, remedy: &str) -> Error {
        let why = match e.kind() {
            io::ErrorKind::AddrInUse => "address in use".to_string(),
            io::ErrorKind::AddrNotAvailable => {
                let trie = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
                no_such_address(&own_addresses(&trie))
            }
            io::ErrorKind::PermissionDenied => "permission denied".to_string(),
            _ => e.to_string(),
        };
        Error(format!("cannot listen on {what}: {why}; choose another with {remedy}"))
    }
}

/// The host's own addresses, from the kernel's routing table.
fn own_addresses(fib_trie: &str) -> Vec<String> {
    let mut own = Vec::new();
    let mut last = "";
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address;
        } else if line == "/32 host LOCAL" && !own.iter().any(|known| known == last) {
            own.push(last.to_string());
        }
    }
    own
}

fn no_such_address(own: &[String]) -> String {
    let text = "no such address on this host";
    if own.is_empty() {
        return text.to_string();
    }
    let own = own.join(", ");
    format!("{text}, which has {own}: start it on the host that the address is of")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Whether an error says that the disk has no room.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::NOSPC | Errno::DQUOT))
}

/// Whether an error says that one place of the disk cannot be read, while the rest may be readable
/// (I/O errors of a sector, of a controller, of a file system's checksum).
#[must_use]
pub fn is_bad_place(error: &io::Error) -> bool {
    let errnos =
        [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN];
    errno(error).is_some_and(|errno| errnos.contains(&errno))
}

/// Whether an error says that the process or the system has no descriptor left.
#[must_use]
pub fn is_without_descriptors(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::MFILE | Errno::NFILE))
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// Adds to a system error what was attempted.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that the host does not have is said beside those that it has.
    #[test]
    fn foreign_address_is_named_with_own_ones() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                    +-- 10.0.0.0/8 2 0 2\n        |-- 10.0.0.3\n           /32 host LOCAL\n     \
                    |-- 10.255.255.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        \
                    /32 host LOCAL\nLocal:\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        let own = own_addresses(trie);
        assert_eq!(own, ["10.0.0.3", "127.0.0.1"]);
        let e = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let line = Error::listening("UDP 10.0.0.9:7000", &e, "the rack file").to_string();
        assert!(
            line.starts_with("cannot listen on UDP 10.0.0.9:7000: no such address on this host")
        );
        assert!(line.ends_with("; choose another with the rack file"), "{line}");
        assert!(no_such_address(&own).ends_with(
            "on this host, which has 10.0.0.3, 127.0.0.1: start it on the host that the address is of"
        ));
        assert_eq!(no_such_address(&[]), "no such address on this host");
    }
}
