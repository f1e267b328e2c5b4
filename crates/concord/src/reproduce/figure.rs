//! A figure of a paper: what is run at each point, and what of it is drawn.

use concord_sim::load::{Load, Measured};

use crate::results::Scale;

const MILLION: f64 = 1e6;

/// A value of a run.
pub type Value = fn(&Measured) -> f64;

/// What a line of a figure is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drawn {
    /// A value of the runs at each of its points.
    Points,
    /// Operations over time, of its one run.
    Timeline {
        /// Length of a bucket, in s.
        bucket_s: f64,
    },
    /// The latencies of reads in its one run, and which share is below.
    Distribution,
}

/// A line of a figure.
#[derive(Clone, Debug)]
pub struct Series {
    /// As the legend says.
    pub name: &'static str,
    /// Where on the x axis, and what is run there.
    pub points: Vec<(f64, Load)>,
}

/// A figure of the paper.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The x axis.
    pub x: &'static str,
    /// Names of the places on the x axis; none if it has values.
    pub x_names: Vec<String>,
    /// How the x axis is laid out.
    pub scale: Scale,
    /// The y axis.
    pub y: &'static str,
    /// What is drawn over x.
    pub y_value: Value,
    /// A unit of y.
    pub y_unit: f64,
    /// Where x is measured too.
    pub x_value: Option<Value>,
    /// What a line is made of.
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

    /// How it is called beside others: ablations have no number.
    pub fn label(&self) -> String {
        let is_ours = !self.name.starts_with(|c: char| c.is_ascii_digit());
        format!("{} {}", if is_ours { "Ablation" } else { "Figure" }, self.name)
    }

    /// Runs of each point: a timeline or a distribution is one run.
    pub fn repeats(&self, repeats: u64) -> u64 {
        if self.drawn == Drawn::Points { repeats } else { 1 }
    }

    /// Runs in all.
    pub fn runs(&self, repeats: u64) -> u64 {
        let points: usize = self.series.iter().map(|s| s.points.len()).sum();
        points as u64 * self.repeats(repeats)
    }

    /// With names for the places on its x axis.
    pub fn named(mut self, names: &[&str]) -> Figure {
        self.x_names = names.iter().map(ToString::to_string).collect();
        self.scale = Scale::Places;
        self
    }

    /// A line through `points`, each what `load` makes of it.
    pub fn line<T: Copy>(
        mut self,
        name: &'static str,
        points: &[T],
        x: impl Fn(T) -> f64,
        load: impl Fn(T) -> Load,
    ) -> Figure {
        let points = points.iter().map(|point| (x(*point), load(*point))).collect();
        self.series.push(Series { name, points });
        self
    }
}
