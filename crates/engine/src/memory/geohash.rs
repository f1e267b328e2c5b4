//! Places on the earth as Redis keeps them: the number of a cell of a grid, which is the score of a
//! sorted set, so that cells near to each other are mostly near in its order; and how far places
//! are from each other.
//!
//! The numbers are computed as Redis computes them, down to the rounding; sine and cosine are
//! [`super::trig`]'s.

use alloc::vec::Vec;
use core::ops::Range;

use super::trig;

/// Degrees to each side of the meridian, and to each side of the equator: Web Mercator ends there.
pub(super) const LONGITUDE_MAX: f64 = 180.0;
pub(super) const LATITUDE_MAX: f64 = 85.051_128_78;
/// The number of times that a score halves the longitudes and the latitudes.
pub(super) const STEPS: u32 = 26;
/// In meters, the mean of those at the equator and at the poles.
const EARTH_RADIUS: f64 = 6_372_797.560_856;
/// Half of the equator of Web Mercator, in meters.
const MERCATOR_MAX: f64 = 20_037_726.37;
const RADIANS: f64 = core::f64::consts::PI / 180.0;
/// A distance that the quick functions find is right to much less than this, in meters.
const DOUBT: f64 = 1.0;

/// A place, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

/// A piece of the earth, in degrees.
#[derive(Clone, Copy, Debug)]
struct Area {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

/// Every second bit, from the lowest on.
fn spread(value: u32) -> u64 {
    (0..32).fold(0, |bits, at| bits | u64::from(value >> at & 1) << (2 * at))
}

/// The inverse of [`spread`].
fn gather(bits: u64) -> u32 {
    (0..32).fold(0, |value, at| value | ((bits >> (2 * at) & 1) as u32) << at)
}

/// The number of the cell that `place` lies in, where all is halved so often and latitudes go to
/// `latitude_max`.
pub(super) fn cell(place: Place, latitude_max: f64, steps: u32) -> u64 {
    let cells = (1u64 << steps) as f64;
    let part = |value: f64, max: f64| ((value + max) / (max + max) * cells) as u32;
    let column = part(place.longitude, LONGITUDE_MAX);
    spread(part(place.latitude, latitude_max)) | spread(column) << 1
}

/// The area of a cell.
fn area(cell: u64, steps: u32) -> Area {
    let cells = (1u64 << steps) as f64;
    let edge = |index: f64, max: f64| -max + index / cells * (max + max);
    let (column, row) = (f64::from(gather(cell >> 1)), f64::from(gather(cell)));
    Area {
        west: edge(column, LONGITUDE_MAX),
        east: edge(column + 1.0, LONGITUDE_MAX),
        south: edge(row, LATITUDE_MAX),
        north: edge(row + 1.0, LATITUDE_MAX),
    }
}

/// The score of a place.
pub(super) fn score(place: Place) -> u64 {
    cell(place, LATITUDE_MAX, STEPS)
}

/// The middle of the cell that a score stands for, whatever the score is.
pub(super) fn place(score: f64) -> Place {
    let area = area(bits_of(score), STEPS);
    let within = |value: f64, max: f64| value.min(max).max(-max);
    Place {
        longitude: within((area.west + area.east) / 2.0, LONGITUDE_MAX),
        latitude: within((area.south + area.north) / 2.0, LATITUDE_MAX),
    }
}

/// As C's compilers for x86-64 make an unsigned integer of any double.
pub(super) fn bits_of(score: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    let truncated = |value: f64| {
        if (-HALF..HALF).contains(&value) { value as i64 as u64 } else { 1 << 63 }
    };
    if score >= HALF { truncated(score - HALF) ^ 1 << 63 } else { truncated(score) }
}

fn meters([sin, cos, asin]: [fn(f64) -> f64; 3], from: Place, to: Place) -> f64 {
    let half_sine = |a: f64, b: f64| sin((b * RADIANS - a * RADIANS) / 2.0);
    let v = half_sine(from.longitude, to.longitude);
    if v == 0.0 {
        return meters_north(from.latitude, to.latitude);
    }
    let u = half_sine(from.latitude, to.latitude);
    let cosines = cos(from.latitude * RADIANS) * cos(to.latitude * RADIANS);
    2.0 * EARTH_RADIUS * asin(libm::sqrt(u * u + cosines * v * v))
}

/// The distance of two latitudes, in meters.
fn meters_north(from: f64, to: f64) -> f64 {
    EARTH_RADIUS * libm::fabs(to * RADIANS - from * RADIANS)
}

/// The distance of two places, in meters (the haversine formula on a sphere).
pub(super) fn distance(from: Place, to: Place) -> f64 {
    meters([trig::sin, trig::cos, trig::asin], from, to)
}

/// Whether two places are farther from each other than `limit`: [`distance`], and quicker where
/// that is clear.
fn is_beyond(from: Place, to: Place, limit: f64) -> bool {
    let about = meters([libm::sin, libm::cos, libm::asin], from, to);
    about > limit + DOUBT || about > limit - DOUBT && distance(from, to) > limit
}

/// The shape of a search, in units of the search.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Circle { radius: f64 },
    Box { width: f64, height: f64 },
}

/// A search around a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub(super) center: Place,
    pub(super) shape: Shape,
    /// In meters.
    pub(super) unit: f64,
}

impl Search {
    /// The distance of `to` from the center, in meters, if it is within the shape.
    pub(super) fn within(&self, to: Place) -> Option<f64> {
        let is_out = match self.shape {
            Shape::Circle { radius } => is_beyond(self.center, to, radius * self.unit),
            Shape::Box { width, height } => {
                let beside = Place { longitude: self.center.longitude, ..to };
                meters_north(to.latitude, self.center.latitude) > height * self.unit / 2.0
                    || is_beyond(to, beside, width * self.unit / 2.0)
            }
        };
        (!is_out).then(|| distance(self.center, to))
    }

    fn bounds(&self) -> Area {
        let (width, height) = match self.shape {
            Shape::Circle { radius } => (radius, radius),
            Shape::Box { width, height } => (width / 2.0, height / 2.0),
        };
        let (width, height) = (self.unit * width, self.unit * height);
        let Place { longitude, latitude } = self.center;
        let north = height / EARTH_RADIUS / RADIANS;
        // A degree of longitude is shortest at the edge that is nearer to a pole.
        let edge = if latitude < 0.0 { latitude - north } else { latitude + north };
        let east = width / EARTH_RADIUS / trig::cos(edge * RADIANS) / RADIANS;
        Area {
            west: longitude - east,
            east: longitude + east,
            south: latitude - north,
            north: latitude + north,
        }
    }

    /// The number of halvings at which nine cells roughly cover the shape.
    fn steps(&self) -> u32 {
        let half = |side: f64| side / 2.0 * (side / 2.0);
        let mut range = self.unit
            * match self.shape {
                Shape::Circle { radius } => radius,
                Shape::Box { width, height } => libm::sqrt(half(width) + half(height)),
            };
        if range == 0.0 {
            return STEPS;
        }
        let mut steps = 1i32;
        while range < MERCATOR_MAX {
            range *= 2.0;
            steps += 1;
        }
        // Cells are narrower near the poles.
        steps -= match libm::fabs(self.center.latitude) {
            near_pole if near_pole > 80.0 => 4,
            near_pole if near_pole > 66.0 => 3,
            _ => 2,
        };
        steps.clamp(1, STEPS as i32) as u32
    }

    /// The scores of the cells that have everything within the shape, in the order in which Redis
    /// looks at them.
    pub(super) fn scores(&self) -> Vec<Range<u64>> {
        // As columns to the east and rows to the north of the center's cell.
        const AROUND: [(i32, i32); 9] =
            [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let bounds = self.bounds();
        let mut steps = self.steps();
        let center = |steps: u32| cell(self.center, LATITUDE_MAX, steps);
        let beside = |steps: u32, by| area(neighbor(center(steps), steps, by), steps);
        let is_short = beside(steps, (0, 1)).north < bounds.north
            || beside(steps, (0, -1)).south > bounds.south
            || beside(steps, (1, 0)).east < bounds.east
            || beside(steps, (-1, 0)).west > bounds.west;
        if steps > 1 && is_short {
            steps -= 1;
        }
        let own = area(center(steps), steps);
        let is_needed = |(columns, rows): (i32, i32)| {
            steps < 2
                || !(rows < 0 && own.south < bounds.south
                    || rows > 0 && own.north > bounds.north
                    || columns < 0 && own.west < bounds.west
                    || columns > 0 && own.east > bounds.east)
        };
        let shift = 2 * (STEPS - steps);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for by in AROUND.into_iter().filter(|by| is_needed(*by)) {
            let cell = neighbor(center(steps), steps, by);
            let range = cell << shift..(cell + 1) << shift;
            // If a cell is a large part of the earth, its neighbors on both sides may be the same.
            // (As in Redis, only the last one is compared, and not the center.)
            if ranges.len() < 2 || ranges.last() != Some(&range) {
                ranges.push(range);
            }
        }
        ranges
    }
}

/// The cell this number of columns and rows away, around the earth.
fn neighbor(cell: u64, steps: u32, (columns, rows): (i32, i32)) -> u64 {
    let mask = (1u64 << steps) as u32 - 1;
    // A place on the outermost edge is numbered as if there were one more cell, until it is moved.
    let moved =
        |index: u32, by: i32| if by == 0 { index } else { index.wrapping_add_signed(by) & mask };
    spread(moved(gather(cell), rows)) | spread(moved(gather(cell >> 1), columns)) << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_stands_for_the_cell_of_its_place() {
        let palermo = Place { longitude: 13.361_389, latitude: 38.115_556 };
        assert_eq!(score(palermo), 3_479_099_956_230_698);
        let back = place(score(palermo) as f64);
        assert!(distance(palermo, back) < 1.0);
        for bits in [0, 1, 0xffff_ffff, 0x1234_5678] {
            assert_eq!(gather(spread(bits)), bits);
        }
    }

    #[test]
    fn any_double_is_a_score() {
        for odd in [-1.0, 1e30, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.5, 1e19] {
            let place = place(odd);
            assert!(place.longitude.abs() <= 180.0 && place.latitude.abs() < 86.0, "{odd}");
        }
        assert_eq!((bits_of(-1.0), bits_of(1e30)), (u64::MAX, 0));
    }

    #[test]
    fn a_search_finds_what_is_within_and_its_cells_cover_it() {
        let mut rng = concord_core::rng::Rng::new(7);
        for _ in 0..300 {
            let mut degrees = |max: u64| rng.below(2 * max * 1000) as f64 / 1000.0 - max as f64;
            let center = Place { longitude: degrees(180), latitude: degrees(85) };
            let near = Place { longitude: degrees(180), latitude: degrees(85) };
            let radius = distance(center, near) + 1.0;
            let search = Search { center, shape: Shape::Circle { radius }, unit: 1.0 };
            assert!(search.within(near).is_some());
            // A pole or the date line may be within, which the cells do not go beyond.
            let bounds = search.bounds();
            if bounds.west > -180.0
                && bounds.east < 180.0
                && bounds.north < 85.0
                && bounds.south > -85.0
            {
                let own = score(near);
                assert!(search.scores().iter().any(|range| range.contains(&own)), "{search:?}");
            }
        }
    }
}
