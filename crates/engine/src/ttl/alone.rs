//! The parts of a copy ([`mod@crate::copy`]): each runs alone, between operations.

use alloc::vec::Vec;

use super::{Pending, Shimmed, Stalled, Work};
use crate::backend::{Backend, Submitted, TtlChange};
use crate::copy::{self, Copied, Object, PLACE_EARLY};
use crate::early::{Early, chunk_of};
use crate::functions::FUNCTIONS_KEY;
use crate::users::{USERS_KEY, Users};
use crate::{Context, Progress};

/// What runs alone: nothing is pending when it starts, and nothing is submitted until it has
/// finished, so that the deadlines are those of its keys at that point.
#[derive(Debug)]
pub(super) enum Alone {
    /// Copies from this cursor on, about so many bytes.
    Copy(u64, usize),
    /// Copies those of these keys that were not copied early.
    CopyKeys(Vec<Vec<u8>>),
    /// Installs a chunk.
    Install(Vec<u8>),
    /// Forgets everything.
    Clear,
}

impl Alone {
    /// Whether a copy begins with it.
    pub(super) fn begins_copy(&self) -> bool {
        matches!(self, Alone::Copy(0, _))
    }
}

impl<B: Backend> Shimmed<B> {
    /// Runs a part of a copy now, or behind all that was submitted.
    pub(super) fn submit_alone(&mut self, alone: Alone, reply: &mut Vec<u8>) -> Progress {
        if !self.pending.is_empty() || !self.stalled.is_empty() {
            self.early_resets += u32::from(alone.begins_copy());
            self.stalled.push_back(Stalled::Alone(alone));
            return Progress::Pending;
        }
        match self.start_alone(alone) {
            Some(done) => {
                reply.extend_from_slice(&done);
                Progress::Done
            }
            None => Progress::Pending,
        }
    }

    /// The reply, if it is there at once.
    pub(super) fn start_alone(&mut self, mut alone: Alone) -> Option<Vec<u8>> {
        if let Alone::Copy(0, bytes_max) = alone {
            self.early = Some(Early::begin(bytes_max));
            self.backend.begin_early();
        }
        if let (Alone::CopyKeys(keys), Some(early)) = (&mut alone, &mut self.early) {
            *keys = early.take_new(core::mem::take(keys));
        }
        let backend = &mut self.backend;
        let copied = match &alone {
            Alone::Copy(from, bytes_max) => backend.copy(*from, *bytes_max).map(Some),
            Alone::CopyKeys(keys) => {
                let bytes_max = self.early.as_ref().map_or(1, Early::piece_bytes);
                backend.copy_keys(keys, (bytes_max, bytes_max), PLACE_EARLY).map(Some)
            }
            Alone::Install(chunk) => {
                let installed = copy::objects(chunk).and_then(|mut objects| {
                    objects.retain(|object| {
                        let is_own = object.key == FUNCTIONS_KEY || object.key == USERS_KEY;
                        !is_own && object.is_there()
                    });
                    backend.install(&objects)
                });
                // A chunk whose values are none cannot be taken back: the engine is lost.
                self.broken |= installed.is_err();
                matches!(installed, Ok(Submitted::Done(_)) | Err(_)).then_some(None)
            }
            Alone::Clear => matches!(backend.clear(), Submitted::Done(_)).then_some(None),
        };
        if let Some(copied) = copied {
            return Some(self.settle_alone(&alone, copied));
        }
        self.alone_pending = true;
        self.pending.push_back(Pending::of(Work::Alone(alone), Context::default()));
        None
    }

    /// Joins keys with their deadlines, or parts them; the reply.
    pub(super) fn settle_alone(&mut self, alone: &Alone, copied: Option<Copied>) -> Vec<u8> {
        let mut reply = Vec::new();
        match alone {
            Alone::Copy(from, _) => {
                let copied = copied.unwrap_or_default();
                let begins = copy::place_of_cursor(*from) == 0 && !copied.continues;
                reply = copied.chunk(|key| self.deadlines.of(key));
                let piece = copy::Piece::default();
                // In front of every key: whoever has a part of the keys has all libraries.
                if let Some(value) = self.saved_functions().filter(|_| begins) {
                    let (key, value) = (FUNCTIONS_KEY, &value[..]);
                    copy::push(&mut reply, &Object { key, value, deadline_ms: 0, piece });
                }
                if begins && !self.users.is_empty() {
                    let (key, value) = (USERS_KEY, &self.users.save()[..]);
                    copy::push(&mut reply, &Object { key, value, deadline_ms: 0, piece });
                }
            }
            Alone::CopyKeys(keys) => {
                let copied = copied.unwrap_or_default();
                reply = chunk_of(keys, &copied, |key| self.deadlines.of(key));
            }
            Alone::Install(chunk) => {
                let objects = copy::objects(chunk).unwrap_or_default();
                for object in objects.into_iter().filter(Object::is_there) {
                    if object.key == FUNCTIONS_KEY {
                        self.install_functions(object.value);
                        continue;
                    }
                    if object.key == USERS_KEY {
                        match Users::restore(object.value) {
                            Some(users) => {
                                self.users = users;
                                self.note_wanted(0);
                            }
                            None => self.broken = true,
                        }
                        continue;
                    }
                    if object.piece.continues {
                        continue;
                    }
                    let change = match object.deadline_ms {
                        0 => TtlChange::Clear,
                        at => TtlChange::Set(at),
                    };
                    self.deadlines.change(object.key, change);
                }
            }
            Alone::Clear => {
                self.deadlines.clear();
                self.functions.clear();
                self.users.clear();
                self.event_buffer.clear();
            }
        }
        reply
    }
}
