//! The writes whose invalidations a home gathers, in the coherence of GAM.

use alloc::collections::BTreeMap;

use concord_wire::concordia::{Copyset, Repr};

/// The maximum number of a node's writes that have an outcome and no effect yet: further ones wait.
pub const POSTED_MAX: usize = 256;

/// A write that waits for invalidations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The request, with the status, version and copyset that it found. Its data provider sends the
    /// data, if it has one, and the home otherwise.
    pub asked: Repr,
    /// The nodes that have not acknowledged.
    pub missing: Copyset,
}

/// The writes that wait for invalidations, by the requester's place and lane, which bounds their
/// number. The newest one of a lane remains until its next one.
pub type Gathers = BTreeMap<(u8, u8), Gather>;
