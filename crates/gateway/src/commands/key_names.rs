//! Names of keys in replies, and their translation for a client of another database.

use alloc::boxed::Box;
use alloc::vec::Vec;

use concord_engine::databases::{self, Names};
use concord_engine::{resp, resp_scan};

/// The places in a reply that name keys, and the database of these keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub names: Names,
    pub database: u8,
}

impl Named {
    fn show(self, reply: Vec<u8>) -> Vec<u8> {
        databases::show(self.names, self.database, reply)
    }
}

/// The translation of a reply on its way to the client.
#[derive(Debug, Default)]
pub(crate) enum Shown {
    /// None.
    #[default]
    AsIs,
    Of(Named),
    /// That of a transaction, for each of its commands.
    Each(Box<[Option<Named>]>),
}

impl Shown {
    /// The translation for a transaction.
    pub(crate) fn each(of: &[Option<Named>]) -> Shown {
        if of.iter().all(Option::is_none) { Shown::AsIs } else { Shown::Each(of.into()) }
    }

    /// The translation for a single command.
    pub(crate) fn named(&self) -> Option<Named> {
        match self {
            Shown::Of(named) => Some(*named),
            Shown::AsIs | Shown::Each(_) => None,
        }
    }

    /// The reply as the client receives it.
    pub(crate) fn show(self, reply: Vec<u8>) -> Vec<u8> {
        match self {
            Shown::AsIs => reply,
            Shown::Of(named) => named.show(reply),
            Shown::Each(of) if reply.starts_with(b"*") && !resp::is_null(&reply) => {
                let mut out = Vec::with_capacity(reply.len());
                out.extend_from_slice(&reply[..resp::line_length(&reply).unwrap_or_default()]);
                let of = of.iter().chain(core::iter::repeat(&None));
                for (named, one) in of.zip(resp_scan::elements(&reply)) {
                    match named {
                        None => out.extend_from_slice(one),
                        Some(named) => out.extend_from_slice(&named.show(one.to_vec())),
                    }
                }
                out
            }
            Shown::Each(_) => databases::show(Names::Errors, 0, reply),
        }
    }
}
