//! The file with the rack's secret: 32 hexadecimal digits, readable by its owner alone.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use concord_core::Key;

use crate::clock;
use crate::error::{Context, Error};

/// The permissions of all users but the owner.
const OTHERS: u32 = 0o077;

/// Reads the key.
///
/// # Errors
/// One line that says what is wrong with the file, and what to do.
pub fn read(path: &Path) -> Result<Key, Error> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| {
        Error::new(format!(
            "cannot read the key file {name}: {e}; copy it from where `concord up` made it, or make \
             one: (umask 077; openssl rand -hex 16 > {name})"
        ))
    })?;
    let mode = std::fs::metadata(path).cannot(format!("look at {name}"))?.permissions().mode();
    if mode & OTHERS != 0 {
        let mode = mode & 0o777;
        return Err(Error::new(format!(
            "the key file {name} has mode {mode:04o}, so others may read or change it: chmod 600 {name}"
        )));
    }
    parse(text.trim()).ok_or_else(|| {
        Error::new(format!("the key file {name} has not 32 hexadecimal digits, and nothing else"))
    })
}

/// Creates a key, unless the file exists.
///
/// # Errors
/// The system's.
pub fn make(path: &Path) -> Result<(), Error> {
    let name = path.display();
    let half = || clock::entropy().cannot("get randomness");
    let text = format!("{:016x}{:016x}\n", half()?, half()?);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match file {
        Ok(mut file) => file.write_all(text.as_bytes()).cannot(format!("write {name}")),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e).cannot(format!("make {name}")),
    }
}

/// The token that clients submitting jobs must present. It reveals nothing of the key.
#[must_use]
pub fn token(key: Key) -> String {
    let jobs = key.derived(*b"jobs    ");
    format!("{:016x}{:016x}", jobs.tag(b"1"), jobs.tag(b"2"))
}

fn parse(text: &str) -> Option<Key> {
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let key = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
    Some(Key::from_bytes(key.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key is made once read by its owner and refused where others may read it.
    #[test]
    fn key_is_made_once_and_private() {
        let dir = std::env::temp_dir().join(format!("concord-key-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("key");
        assert!(read(&path).unwrap_err().to_string().contains("cannot read the key file"));
        make(&path).unwrap();
        let key = read(&path).unwrap();
        make(&path).unwrap();
        assert_eq!(read(&path).unwrap(), key, "it stays");
        assert_eq!(token(key).len(), 32);
        let mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for open in [0o640, 0o604, 0o620] {
            mode(open);
            assert!(read(&path).unwrap_err().to_string().contains("chmod 600"));
        }
        mode(0o400);
        assert!(read(&path).is_ok());
        mode(0o600);
        for text in ["", "abc", "+123456789abcdef0123456789abcdef", &"g".repeat(32)] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("32 hexadecimal digits"));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
