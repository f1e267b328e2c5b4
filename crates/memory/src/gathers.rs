//! The writes of GAM's coherence whose invalidations a home is gathering.

use alloc::collections::BTreeMap;

use concord_wire::concordia::{Copyset, Repr};

/// The maximum number of a node's writes that are answered and have not taken effect; further
/// writes are answered later.
pub const POSTED_MAX: usize = 256;

/// A write whose invalidations are not all acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The request, with the block's status, version and copyset when the home served it. The data
    /// provider sends the data if there is one, and the home otherwise.
    pub asked: Repr,
    /// The nodes whose acknowledgements are missing.
    pub missing: Copyset,
}

/// The writes that wait for invalidations, by the requester's place and lane, which bounds their
/// number. The entry of a lane remains until the lane's next write replaces it.
pub type Gathers = BTreeMap<(u8, u8), Gather>;
