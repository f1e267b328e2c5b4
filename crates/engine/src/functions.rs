//! Libraries of functions (FUNCTION), which every replica keeps beside its data, as it does times
//! to live: no command on keys finds them, and no FLUSHALL. They are in the first chunk of a copy
//! ([`mod@crate::copy`]), in front of every key, under a name that no key is stored by.
//!
//! A library is its code, and the functions that it registered when it was loaded. Nothing else is
//! kept: for each call the library is loaded anew into an interpreter, so that its local variables
//! are the same at every replica, whenever the replica started.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::hash::hash64;

use crate::backend::OUT_OF_MEMORY;
use crate::table::UpperName;
use crate::{Class, Context, glob_matches, resp};

mod command;
mod dump;
mod metadata;

pub(crate) use command::needs_memory;
pub use command::{Subcommand, subcommand};

/// The name under which a copy has the libraries; no key can have it ([`crate::databases`]).
pub const FUNCTIONS_KEY: &[u8] = b"\xff\xfedb~functions";
/// The largest total size of all libraries' code, in bytes.
const CODE_BYTES_MAX: usize = 16 << 20;
/// The only language of libraries.
const ENGINE: &[u8] = b"LUA";

/// Finds out which functions a library registers, from its code after the first line. The result
/// must depend on nothing but the code, and the function must terminate. It adds its cost to the
/// number: libraries that are loaded together share one bound.
pub type Loader = fn(&[u8], &mut u64) -> Result<Vec<Declared>, Vec<u8>>;

/// The flags of a function: what it may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionFlags(u8);

/// The names of the flags; the first one has bit 0.
const FLAG_NAMES: [&str; 5] =
    ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

impl FunctionFlags {
    /// These flags, and the one of this name if there is one.
    #[must_use]
    pub fn with(self, name: &[u8]) -> FunctionFlags {
        let bit = FLAG_NAMES.iter().position(|own| own.as_bytes() == name);
        FunctionFlags(self.0 | bit.map_or(0, |bit| 1 << bit))
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        let all = FLAG_NAMES.iter().enumerate();
        all.filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| *name)
    }

    pub(crate) fn no_writes(self) -> bool {
        self.0 & 1 != 0
    }

    pub(crate) fn allow_oom(self) -> bool {
        self.0 & 2 != 0
    }
}

/// A function as its library registered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its name.
    pub name: Vec<u8>,
    /// Its description, if the library gives one.
    pub description: Option<Vec<u8>>,
    /// What it may do.
    pub flags: FunctionFlags,
}

/// A library.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Library {
    pub(crate) name: Vec<u8>,
    /// The text as it was loaded, its first line included.
    pub(crate) text: Vec<u8>,
    /// The functions by their names in lower case.
    functions: BTreeMap<Vec<u8>, Declared>,
}

impl Library {
    /// The index at which the code begins: the end of the first line, so that lines of the code
    /// have the text's numbers.
    pub(crate) fn code_at(&self) -> usize {
        metadata::first_line_end(&self.text)
    }

    pub(crate) fn code(&self) -> &[u8] {
        &self.text[self.code_at()..]
    }
}

/// All libraries. A clone shares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    libraries: BTreeMap<Vec<u8>, Arc<Library>>,
    /// The library of each function, by the function's name in lower case.
    by_name: BTreeMap<Vec<u8>, Arc<Library>>,
    /// The total size of all libraries' texts, in bytes.
    code_bytes: usize,
}

/// What to do if a library of the same name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collision {
    Refused,
    Replaced,
}

impl Functions {
    pub(crate) fn is_empty(&self) -> bool {
        self.libraries.is_empty()
    }

    /// The function of this name, in upper or lower case, and its library.
    pub(crate) fn find(&self, name: &[u8]) -> Option<(Arc<Library>, Declared)> {
        let name = name.to_ascii_lowercase();
        let library = self.by_name.get(&name)?;
        Some((library.clone(), library.functions.get(&name)?.clone()))
    }

    pub(crate) fn clear(&mut self) {
        *self = Functions::default();
    }

    /// An estimate of the memory that the libraries take, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.code_bytes + 200 * self.by_name.len() + 400 * self.libraries.len()) as u64
    }

    /// A digest: equal for equal libraries, and different for others but for a chance of 2^-64.
    pub(crate) fn digest(&self) -> u64 {
        let of = |sum: u64, one: &Arc<Library>| sum.wrapping_add(hash64(7, &one.text));
        self.libraries.values().fold(0, of)
    }

    /// Loads a library and returns its name.
    fn load(
        &mut self,
        loader: Loader,
        cost: &mut u64,
        text: &[u8],
        collision: Collision,
    ) -> Result<Vec<u8>, Vec<u8>> {
        let name = metadata::name_of(text)?;
        let old = self.libraries.get(&name);
        if old.is_some() && collision == Collision::Refused {
            let shown = alloc::string::String::from_utf8_lossy(&name);
            return Err(format!("ERR Library '{shown}' already exists").into_bytes());
        }
        let bytes = self.code_bytes - old.map_or(0, |old| old.text.len()) + text.len();
        if bytes > CODE_BYTES_MAX {
            return Err(b"ERR all libraries take more than 16 MiB (Concord's limit)".to_vec());
        }
        let declared = loader(&text[metadata::first_line_end(text)..], cost)?;
        if declared.is_empty() {
            return Err(b"ERR No functions registered".to_vec());
        }
        let functions: BTreeMap<Vec<u8>, Declared> =
            declared.into_iter().map(|own| (own.name.to_ascii_lowercase(), own)).collect();
        let is_taken = |key: &Vec<u8>| self.by_name.get(key).is_some_and(|own| own.name != name);
        if let Some((_, function)) = functions.iter().find(|(key, _)| is_taken(key)) {
            let shown = alloc::string::String::from_utf8_lossy(&function.name);
            return Err(format!("ERR Function {shown} already exists").into_bytes());
        }
        self.delete(&name);
        self.insert(Library { name: name.clone(), text: text.to_vec(), functions });
        Ok(name)
    }

    fn insert(&mut self, library: Library) {
        let library = Arc::new(library);
        self.code_bytes += library.text.len();
        for name in library.functions.keys() {
            self.by_name.insert(name.clone(), library.clone());
        }
        self.libraries.insert(library.name.clone(), library);
    }

    /// Deletes a library. Returns whether it existed.
    fn delete(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.libraries.remove(name) else { return false };
        self.code_bytes -= library.text.len();
        for name in library.functions.keys() {
            self.by_name.remove(name);
        }
        true
    }

    /// Encodes all libraries for a copy, with the functions they registered, so that the receiver
    /// does not have to load them.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let put = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            out.extend_from_slice(bytes);
        };
        for library in self.libraries.values() {
            put(&mut out, &library.name);
            put(&mut out, &library.text);
            out.extend_from_slice(&(library.functions.len() as u32).to_be_bytes());
            for function in library.functions.values() {
                put(&mut out, &function.name);
                out.push(u8::from(function.description.is_some()));
                put(&mut out, function.description.as_deref().unwrap_or_default());
                out.push(function.flags.0);
            }
        }
        out
    }

    /// Decodes what [`Functions::save`] wrote; `None` if the bytes are something else.
    pub(crate) fn restore(saved: &[u8]) -> Option<Functions> {
        let mut all = Functions::default();
        let mut rest = saved;
        while !rest.is_empty() {
            let name = take(&mut rest)?.to_vec();
            let text = take(&mut rest)?.to_vec();
            let mut functions = BTreeMap::new();
            for _ in 0..take_number(&mut rest)? {
                let name = take(&mut rest)?.to_vec();
                let is_described = take_byte(&mut rest)? != 0;
                let description = take(&mut rest)?.to_vec();
                let description = is_described.then_some(description);
                let flags = FunctionFlags(take_byte(&mut rest)?);
                let key = name.to_ascii_lowercase();
                functions.insert(key, Declared { name, description, flags });
            }
            all.insert(Library { name, text, functions });
        }
        Some(all)
    }
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (byte, behind) = rest.split_first()?;
    *rest = behind;
    Some(*byte)
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let (number, behind) = rest.split_first_chunk::<4>()?;
    *rest = behind;
    Some(u32::from_be_bytes(*number))
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_number(rest)? as usize;
    let (bytes, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(bytes)
}

#[cfg(test)]
mod tests;
