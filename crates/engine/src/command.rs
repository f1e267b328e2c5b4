//! A command as it travels: opaque arguments, and which of them is the key.
//!
//! Encoding: `argc: u16, key_index: u8, database: u8`, then `argc` times `length: u32, bytes`; all
//! integers big-endian. `key_index` 0 means that there is no key (argument 0 is the name).
//! `database` says whose keys are meant where no argument does ([`mod@crate::databases`]); it is 0
//! in all other commands. If there are more than 65,535 arguments, `argc` is 0, and `argc: u32`
//! stands behind `database`.

use alloc::vec::Vec;
use core::fmt;

/// Most arguments of one command, as in Redis.
pub const ARGS_MAX: usize = 1_048_576;
/// What is said of a command with more than [`ARGS_MAX`] arguments.
pub const TOO_MANY_ARGS: &str = "ERR too many arguments (Concord's limit is 1048576)";

const HEADER_BYTES: usize = 4;
/// So many arguments stand in the first two bytes.
const FEW_MAX: usize = u16::MAX as usize;
/// A buffer that was longer is given back when the next command is encoded.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// How many arguments there are by a command's beginning, and what follows.
fn count(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&[a, b, _, _], rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    match u16::from_be_bytes([a, b]) {
        0 => {
            let (argc, rest) = rest.split_first_chunk::<4>()?;
            let argc = u32::from_be_bytes(*argc) as usize;
            // One that fits the first two bytes has one form only.
            (argc > FEW_MAX).then_some((argc, rest))
        }
        argc => Some((argc.into(), rest)),
    }
}

/// Why bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The bytes end before the last argument does, or go on behind it.
    Length,
    /// There is no argument 0, or the key index is past the last argument.
    Arguments,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommandError::Length => "command: lengths do not fit the bytes",
            CommandError::Arguments => "command: no name, or no such key argument",
        })
    }
}

/// A view on an encoded command, checked once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    bytes: &'a [u8],
}

impl<'a> Command<'a> {
    /// Checks `bytes`: every argument there, nothing behind.
    ///
    /// # Errors
    /// [`CommandError`] if the bytes are not exactly one command.
    pub fn parse(bytes: &'a [u8]) -> Result<Command<'a>, CommandError> {
        let &[a, b, key_index, _] =
            bytes.first_chunk::<HEADER_BYTES>().ok_or(CommandError::Length)?;
        if bytes.len() == HEADER_BYTES && (a, b) == (0, 0) {
            return Err(CommandError::Arguments);
        }
        let (argc, mut rest) = count(bytes).ok_or(CommandError::Length)?;
        for _ in 0..argc {
            let (length, tail) = rest.split_first_chunk::<4>().ok_or(CommandError::Length)?;
            rest = tail.get(u32::from_be_bytes(*length) as usize..).ok_or(CommandError::Length)?;
        }
        if !rest.is_empty() {
            return Err(CommandError::Length);
        }
        if usize::from(key_index) >= argc || argc > ARGS_MAX {
            return Err(CommandError::Arguments);
        }
        Ok(Command { bytes })
    }

    /// The encoded bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of arguments, the name included; at least 1.
    #[must_use]
    pub fn argc(&self) -> usize {
        count(self.bytes).map_or(0, |(argc, _)| argc)
    }

    /// The arguments in order, the name first.
    #[must_use]
    pub fn args(&self) -> Args<'a> {
        Args { rest: count(self.bytes).map_or(&[], |(_, rest)| rest) }
    }

    /// Argument 0, as the client wrote it.
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.args().next().unwrap_or_default()
    }

    /// The key, if the command has one.
    #[must_use]
    pub fn key(&self) -> Option<&'a [u8]> {
        match self.bytes[2] {
            0 => None,
            index => self.args().nth(index as usize),
        }
    }

    /// The database of a script, or of a command on all keys of one.
    #[must_use]
    pub fn database(&self) -> u8 {
        self.bytes[3]
    }

    /// Which argument is the key; 0 if none.
    #[must_use]
    pub fn key_index(&self) -> u8 {
        self.bytes[2]
    }
}

/// Iterates over a command's arguments.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Args<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, tail) = self.rest.split_first_chunk::<4>()?;
        let (arg, rest) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        self.rest = rest;
        Some(arg)
    }
}

/// Room that an encoded command gets at once.
const SHORT_BYTES: usize = 64;

/// Builds encoded commands; reusable, so that the hot path allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct CommandBuf {
    bytes: Vec<u8>,
}

impl CommandBuf {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> CommandBuf {
        CommandBuf::default()
    }

    /// Encodes `args` (the name first) with the key at `key_index` (0: none), replacing what was
    /// there.
    ///
    /// # Panics
    /// If there are no arguments or more than [`ARGS_MAX`], or the key index is past the last.
    pub fn encode<'a>(&mut self, key_index: u8, args: impl IntoIterator<Item = &'a [u8]>) -> &[u8] {
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.bytes.reserve(SHORT_BYTES);
        self.bytes.extend_from_slice(&[0, 0, key_index, 0]);
        let mut argc = 0usize;
        for arg in args {
            argc += 1;
            self.bytes.extend_from_slice(&(arg.len() as u32).to_be_bytes());
            self.bytes.extend_from_slice(arg);
        }
        assert!(argc > 0 && argc <= ARGS_MAX, "a command has 1 to {ARGS_MAX} arguments");
        assert!((key_index as usize) < argc, "the key is one of the arguments");
        match u16::try_from(argc) {
            Ok(argc) => self.bytes[..2].copy_from_slice(&argc.to_be_bytes()),
            Err(_) => self.insert_count(argc as u32),
        }
        &self.bytes
    }

    #[cold]
    fn insert_count(&mut self, argc: u32) {
        self.bytes.splice(HEADER_BYTES..HEADER_BYTES, argc.to_be_bytes());
    }

    /// Has the last encoded command be of this database ([`Command::database`]).
    ///
    /// # Panics
    /// If there is none.
    pub fn set_database(&mut self, database: u8) -> &[u8] {
        self.bytes[3] = database;
        &self.bytes
    }

    /// The last encoded command.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_the_wire_and_a_torn_one_is_refused() {
        let mut buf = CommandBuf::new();
        let bytes = buf.encode(1, [&b"SET"[..], b"k", b""]).to_vec();
        let c = Command::parse(&bytes).unwrap();
        assert_eq!((c.argc(), c.name(), c.key()), (3, &b"SET"[..], Some(&b"k"[..])));
        for cut in 0..bytes.len() {
            assert!(Command::parse(&bytes[..cut]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Command::parse(&longer), Err(CommandError::Length));
        let mut no_key = bytes;
        no_key[2] = 3;
        assert_eq!(Command::parse(&no_key), Err(CommandError::Arguments));
        assert_eq!(Command::parse(&[0, 0, 0, 0]), Err(CommandError::Arguments));
    }

    /// A million arguments; what has no more than 65,535 is encoded as ever.
    #[test]
    fn bug_22_152_a_million_arguments_are_one_command() {
        let mut buf = CommandBuf::new();
        for argc in [FEW_MAX, FEW_MAX + 1, ARGS_MAX] {
            let args = [&b"RPUSH"[..], b"list"].into_iter().chain(core::iter::repeat(&b"x"[..]));
            let bytes = buf.encode(1, args.take(argc)).to_vec();
            let c = Command::parse(&bytes).unwrap();
            assert_eq!((c.argc(), c.args().count(), c.key()), (argc, argc, Some(&b"list"[..])));
            assert_eq!(bytes[..2] == [0, 0], argc > FEW_MAX);
            assert!(Command::parse(&bytes[..bytes.len() - 1]).is_err());
        }
        // Few in the long form, and more than there may be.
        for argc in [0, 1, FEW_MAX as u32] {
            let mut long = alloc::vec![0, 0, 0, 0];
            long.extend_from_slice(&argc.to_be_bytes());
            (0..argc).for_each(|_| long.extend_from_slice(&[0; 4]));
            assert_eq!(Command::parse(&long), Err(CommandError::Length), "{argc}");
        }
        let mut more = alloc::vec![0, 0, 0, 0];
        more.extend_from_slice(&(ARGS_MAX as u32 + 1).to_be_bytes());
        more.resize(more.len() + 4 * (ARGS_MAX + 1), 0);
        assert_eq!(Command::parse(&more), Err(CommandError::Arguments));
    }
}
