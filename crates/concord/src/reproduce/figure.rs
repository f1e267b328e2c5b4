//! A figure of a paper: the loads that are run at each point, and the values that are drawn.

use concord_sim::load::{Load, Measured};

use super::points::{self, Line};
use crate::results::Scale;

const MILLION: f64 = 1e6;

/// A value of a run.
pub type Value = fn(&Measured) -> f64;

/// The content of a figure's lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drawn {
    /// A value of the runs at each of its points.
    Points,
    /// Operations over time, in the line's single run.
    Timeline {
        /// The duration of a bucket, in s.
        bucket_s: f64,
    },
    /// The distribution of read latencies in the line's single run.
    Distribution,
}

/// A line of a figure on a store.
pub type Series = Line<Load>;

/// A figure of the paper.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number in the paper.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The label of the x axis.
    pub x: &'static str,
    /// The names of places on the x axis; empty if it has values.
    pub x_names: Vec<String>,
    /// The layout of the x axis.
    pub scale: Scale,
    /// The label of the y axis.
    pub y: &'static str,
    /// The value that is drawn over x.
    pub y_value: Value,
    /// The unit of y.
    pub y_unit: f64,
    /// The value on the x axis, if it is measured, too.
    pub x_value: Option<Value>,
    /// The content of its lines.
    pub drawn: Drawn,
    /// The lines.
    pub series: Vec<Series>,
}

impl Figure {
    /// A figure without lines.
    pub fn new(name: &'static str, title: &'static str, x: &'static str) -> Figure {
        Figure {
            name,
            title,
            x,
            x_names: Vec::new(),
            scale: Scale::Values,
            y: "million operations a second",
            y_value: Measured::total,
            y_unit: MILLION,
            x_value: None,
            drawn: Drawn::Points,
            series: Vec::new(),
        }
    }

    /// Its name in output; ablations have no number.
    pub fn label(&self) -> String {
        let is_ours = !self.name.starts_with(|c: char| c.is_ascii_digit());
        format!("{} {}", if is_ours { "Ablation" } else { "Figure" }, self.name)
    }

    /// The number of runs of each point; a timeline or a distribution has only one.
    pub fn repeats(&self, repeats: u64) -> u64 {
        if self.drawn == Drawn::Points { repeats } else { 1 }
    }

    /// The total number of runs.
    pub fn runs(&self, repeats: u64) -> u64 {
        points::runs(&self.series, self.repeats(repeats))
    }

    /// The same figure, with names for the places on its x axis.
    pub fn named(mut self, names: &[&str]) -> Figure {
        self.x_names = names.iter().map(ToString::to_string).collect();
        self.scale = Scale::Places;
        self
    }

    /// Adds a line through `points`, each with the load that `load` makes of it.
    pub fn line<T: Copy>(
        mut self,
        name: &'static str,
        points: &[T],
        x: impl Fn(T) -> f64,
        load: impl Fn(T) -> Load,
    ) -> Figure {
        let points = points.iter().map(|point| (x(*point), load(*point))).collect();
        self.series.push(Line { name: name.to_string(), points });
        self
    }
}
