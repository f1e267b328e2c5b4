//! The list of a backup's files, each with its length and SHA-256, in the file `MANIFEST`, which
//! `sha256sum -c MANIFEST` reads too.
//!
//! ```text
//! # Concord backup, format 1
//! # origin 00c0ffee00c0ffee records 1234 engine memory
//! # bytes 8192
//! 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  00c0ffee00c0ffee-00000001.log
//! # end 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752
//! ```
//!
//! The last line is the SHA-256 of everything before it, so that a truncated manifest is rejected.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;

use concord_log::{EngineKind, Origin};
use sha2::{Digest as _, Sha256};

use crate::directory::{is_segment, sync};
use crate::error::{Context, Error};
use crate::origin::State;

/// The name of the file.
pub const MANIFEST: &str = "MANIFEST";
const HEADLINE: &str = "# Concord backup, format 1\n";
const ORIGIN: &str = "# origin ";
const BYTES: &str = "# bytes ";
const END: &str = "# end ";
/// The longest manifest in bytes: that of a backup of some petabytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// The bytes of a file that are in memory at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The contents of a backup that was completely verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The number of its files, without the manifest.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Its number, and the end of its log.
    pub origin: Origin,
    /// The engine of its state.
    pub engine: Option<EngineKind>,
}

/// A file of a backup: its actual or listed properties.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    bytes: u64,
    digest: String,
}

/// Writes the manifest of the complete backup in `path`, and makes it durable.
///
/// # Errors
/// The system's.
pub(crate) fn write(path: &Path, origin: &Origin, engine: Option<EngineKind>) -> Result<(), Error> {
    let mut names = segments(path)?;
    names.sort_unstable();
    let listed = names.into_iter().map(|name| look(path, name));
    let listed = listed.collect::<Result<Vec<Listed>, Error>>()?;
    let target = path.join(MANIFEST);
    let made = || -> std::io::Result<()> {
        let mut file = File::create_new(&target)?;
        file.write_all(text(&listed, origin, engine).as_bytes())?;
        file.sync_all()?;
        sync(path)
    };
    made().cannot(format!("write {}", target.display()))
}

fn text(listed: &[Listed], origin: &Origin, engine: Option<EngineKind>) -> String {
    let mut text = HEADLINE.to_string();
    let engine = engine.map_or("unknown", EngineKind::name);
    let (id, records) = (origin.id, origin.end.position);
    let _ = writeln!(text, "{ORIGIN}{id:016x} records {records} engine {engine}");
    for file in listed {
        let _ = writeln!(text, "{BYTES}{}\n{}  {}", file.bytes, file.digest, file.name);
    }
    let digest = hex(&Sha256::digest(text.as_bytes()));
    let _ = writeln!(text, "{END}{digest}");
    text
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The names of the segments of a directory.
fn segments(path: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).cannot(format!("read {}", path.display()))? {
        let name = entry.cannot(format!("read {}", path.display()))?.file_name();
        names.extend(name.into_string().ok().filter(|name| is_segment(name)));
    }
    Ok(names)
}

/// The actual properties of a file.
fn look(path: &Path, name: String) -> Result<Listed, Error> {
    let file = path.join(&name);
    let read = || -> std::io::Result<(u64, String)> {
        let (mut file, mut sha) = (File::open(&file)?, Sha256::new());
        let (mut piece, mut total) = (vec![0; PIECE_BYTES], 0);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok((total, hex(&sha.finalize()))),
                bytes => {
                    sha.update(&piece[..bytes]);
                    total += bytes as u64;
                }
            }
        }
    };
    let (bytes, digest) = read().cannot(format!("read {}", file.display()))?;
    Ok(Listed { name, bytes, digest })
}

/// Whether a directory has a manifest.
#[must_use]
pub fn is_there(path: &Path) -> bool {
    path.join(MANIFEST).exists()
}

/// The files that a manifest lists, and its statement about the whole.
fn parse(text: &str) -> Option<(Vec<Listed>, &str)> {
    let (body, end) = text.rsplit_once(END)?;
    let is_sum = end.strip_suffix('\n')? == hex(&Sha256::digest(body.as_bytes()));
    let mut lines = body.strip_prefix(HEADLINE).filter(|_| is_sum)?.lines();
    let origin = lines.next()?.strip_prefix(ORIGIN)?;
    let mut listed = Vec::new();
    while let Some(line) = lines.next() {
        let bytes = line.strip_prefix(BYTES)?.parse().ok()?;
        let (digest, name) = lines.next()?.split_once("  ")?;
        listed.push(Listed { name: name.to_string(), bytes, digest: digest.to_string() });
    }
    Some((listed, origin))
}

/// Reads all of a backup, and compares it with its manifest and with its log.
///
/// # Errors
/// One line that names the file that is missing, damaged, or of another length.
pub fn verify(path: &Path) -> Result<Verified, Error> {
    let manifest = path.join(MANIFEST);
    let said = File::open(&manifest).and_then(|file| {
        let mut text = String::new();
        file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text).map(|_| text)
    });
    let said = match said {
        Ok(said) => said,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let path = path.display();
            return Err(Error::new(format!(
                "{path} has no {MANIFEST}: it is not a backup, or an earlier version made it, or the file was lost; \
                 make another backup"
            )));
        }
        Err(e) => return Err(e).cannot(format!("read {}", manifest.display())),
    };
    let (listed, origin_said) = parse(&said).ok_or_else(|| {
        let manifest = manifest.display();
        Error::new(format!("{manifest} is damaged, or of another version: make another backup"))
    })?;
    for file in &listed {
        compare(path, file)?;
    }
    let is_listed = |name: &String| listed.iter().any(|file| file.name == *name);
    if let Some(more) = segments(path)?.into_iter().find(|name| !is_listed(name)) {
        let more = path.join(more);
        return Err(Error::new(format!(
            "{}: the {MANIFEST} does not list it: take it out of the backup",
            more.display()
        )));
    }
    let state = State::read(path)?;
    let (origin, engine) = (state.origin()?, state.engine());
    if !text(&[], &origin, engine).contains(&format!("{ORIGIN}{origin_said}\n")) {
        let manifest = manifest.display();
        return Err(Error::new(format!(
            "{manifest} is of another backup than the files beside it"
        )));
    }
    let bytes = listed.iter().map(|file| file.bytes).sum();
    Ok(Verified { files: listed.len(), bytes, origin, engine })
}

fn compare(path: &Path, listed: &Listed) -> Result<(), Error> {
    let file = path.join(&listed.name);
    let name = file.display();
    if !file.is_file() {
        return Err(Error::new(format!("{name} is missing, and the {MANIFEST} lists it")));
    }
    let own = look(path, listed.name.clone())?;
    if own.bytes != listed.bytes {
        let (is, said) = (own.bytes, listed.bytes);
        return Err(Error::new(format!("{name} has {is} bytes, and the {MANIFEST} says {said}")));
    }
    if own.digest != listed.digest {
        return Err(Error::new(format!(
            "{name} is damaged: its SHA-256 is not what the {MANIFEST} says"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest that is cut, or of which a byte is another one, is not believed, wherever.
    #[test]
    fn bug_24_6_a_damaged_manifest_is_not_believed() {
        let listed = |n: u64| Listed {
            name: format!("00c0ffee00c0ffee-0000000{n}.log"),
            bytes: n * 8_192,
            digest: hex(&Sha256::digest([n as u8])),
        };
        let (listed, origin) = ([listed(1), listed(2)], Origin { id: 7, ..Origin::default() });
        let text = text(&listed, &origin, Some(EngineKind::Redis));
        let (read, said) = parse(&text).unwrap();
        assert_eq!((&read[..], said), (&listed[..], "0000000000000007 records 0 engine redis"));
        for at in 0..text.len() {
            assert!(parse(&text[..at]).is_none(), "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(parse(&changed).is_none(), "changed at {at}");
        }
    }
}
