//! The settings of Harmony's figures, and the rows of its table.

use crate::reproduce::claims::Paper;
use crate::reproduce::runner::{Mean, Runner};
use crate::results::Results;

/// A statement of the paper, and our number.
pub(super) struct Row {
    pub(super) figure: &'static str,
    pub(super) says: String,
    pub(super) paper: Paper,
    pub(super) ours: Mean,
    pub(super) reason: String,
}

impl Row {
    /// A row whose number is computed.
    pub(super) fn exact(
        figure: &'static str,
        says: impl Into<String>,
        paper: f64,
        ours: f64,
    ) -> Row {
        let ours = Mean { mean: ours, half: 0.0 };
        Row { figure, says: says.into(), paper: Paper::Is(paper), ours, reason: String::new() }
    }

    pub(super) fn because(self, reason: impl Into<String>) -> Row {
        Row { reason: reason.into(), ..self }
    }
}

/// The settings of every figure.
pub(super) struct Given<'a> {
    pub(super) repeats: u64,
    pub(super) is_quick: bool,
    pub(super) runner: &'a Runner,
    pub(super) results: &'a Results,
}
