//! The requests of a bench's clients: the mixes of YCSB (Cooper et al., SoCC 2010, Table 2) and the
//! choice of keys.

use concord_core::Rng;
use concord_core::rng::splitmix64;
use concord_runtime::Error;
use rand_distr::Distribution;
use rand_distr::Zipf;

/// The exponent of YCSB's Zipf distribution.
pub const ZIPF_EXPONENT: f64 = 0.99;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// GET.
    Read,
    /// SET of an existing key.
    Update,
    /// SET of the next new key.
    Insert,
    /// GET, then SET of the same key.
    ReadModifyWrite,
}

/// The shares of operations, in percent; the rest are reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// The name in tables.
    pub name: &'static str,
    /// The share of updates, in percent.
    pub update: u64,
    /// The share of inserts, in percent.
    pub insert: u64,
    /// The share of read-modify-writes, in percent.
    pub modify: u64,
}

impl Mix {
    /// YCSB A, B, C, D and F. (E scans in key order, which a store of hashed keys does not have.)
    pub const YCSB: [Mix; 5] = [
        Mix { name: "A", update: 50, insert: 0, modify: 0 },
        Mix { name: "B", update: 5, insert: 0, modify: 0 },
        Mix { name: "C", update: 0, insert: 0, modify: 0 },
        Mix { name: "D", update: 0, insert: 5, modify: 0 },
        Mix { name: "F", update: 0, insert: 0, modify: 50 },
    ];
    /// The three workloads of the scale-out figure (Harmonia §9.2).
    pub const SCALE: [Mix; 3] = [
        Mix { name: "read-only", update: 0, insert: 0, modify: 0 },
        Mix { name: "5% writes", update: 5, insert: 0, modify: 0 },
        Mix { name: "write-only", update: 100, insert: 0, modify: 0 },
    ];

    fn draw(&self, rng: &mut Rng) -> Kind {
        let percent = rng.below(100);
        match percent {
            p if p < self.update => Kind::Update,
            p if p < self.update + self.insert => Kind::Insert,
            p if p < self.update + self.insert + self.modify => Kind::ReadModifyWrite,
            _ => Kind::Read,
        }
    }

    /// Whether reads prefer the keys that were inserted last, as in D.
    fn reads_latest(&self) -> bool {
        self.insert > 0
    }
}

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// All keys are equally likely.
    Uniform,
    /// Zipf with exponent 0.99; the popular keys are spread over the key space.
    Zipf,
}

impl Choice {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Choice::Uniform => "uniform",
            Choice::Zipf => "zipf 0.99",
        }
    }
}

/// Our generator behind the trait from which `rand_distr` draws.
struct Source<'a>(&'a mut Rng);

impl rand::RngCore for Source<'_> {
    fn next_u32(&mut self) -> u32 {
        (self.0.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.0.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Draws operations and keys.
#[derive(Clone, Debug)]
pub struct Workload {
    mix: Mix,
    /// The number of existing keys, to which inserts add.
    keys: u64,
    zipf: Option<Zipf<f64>>,
    rng: Rng,
}

impl Workload {
    /// A workload over the keys `0..keys`, which must exist.
    ///
    /// # Errors
    /// If there are no keys.
    pub fn new(mix: Mix, choice: Choice, keys: u64, seed: u64) -> Result<Workload, Error> {
        if keys == 0 {
            return Err(Error::new("--keys must be above 0"));
        }
        // D is Zipf by definition: its popular keys are the newest ones.
        let zipf = (choice == Choice::Zipf || mix.reads_latest())
            .then(|| Zipf::new(keys as f64, ZIPF_EXPONENT))
            .transpose()
            .map_err(|e| Error::new(format!("no such distribution: {e}")))?;
        Ok(Workload { mix, keys, zipf, rng: Rng::new(seed) })
    }

    /// Draws the next operation, and the number of its key.
    pub fn draw(&mut self) -> (Kind, u64) {
        let kind = self.mix.draw(&mut self.rng);
        if kind == Kind::Insert {
            self.keys += 1;
            return (kind, self.keys - 1);
        }
        let Some(zipf) = &self.zipf else { return (kind, self.rng.below(self.keys)) };
        let rank = zipf.sample(&mut Source(&mut self.rng)) as u64;
        let key = match self.mix.reads_latest() {
            true => self.keys.saturating_sub(rank),
            false => splitmix64(rank) % self.keys,
        };
        (kind, key)
    }

    /// Draws the time between two arrivals at `rate` per second, exponentially distributed, in ns.
    pub fn gap_ns(&mut self, rate: f64) -> u64 {
        (-(1.0 - self.rng.unit()).ln() / rate * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(mix: Mix) -> [f64; 4] {
        let mut workload = Workload::new(mix, Choice::Uniform, 1_000, 1).unwrap();
        let mut count = [0.0; 4];
        for _ in 0..100_000 {
            count[workload.draw().0 as usize] += 1.0 / 100_000.0;
        }
        count
    }

    #[test]
    fn mixes_are_ycsb_s() {
        let near = |mix, expected: [f64; 4]| {
            for (got, expected) in shares(mix).iter().zip(expected) {
                assert!((got - expected).abs() < 0.01, "{mix:?}: {got} {expected}");
            }
        };
        let [a, b, c, d, f] = Mix::YCSB;
        near(a, [0.5, 0.5, 0.0, 0.0]);
        near(b, [0.95, 0.05, 0.0, 0.0]);
        near(c, [1.0, 0.0, 0.0, 0.0]);
        near(d, [0.95, 0.0, 0.05, 0.0]);
        near(f, [0.5, 0.0, 0.0, 0.5]);
    }

    #[test]
    fn zipf_prefers_few_keys_and_stays_in_range() {
        let mut workload = Workload::new(Mix::YCSB[2], Choice::Zipf, 1_000, 1).unwrap();
        let mut count = vec![0u32; 1_000];
        for _ in 0..100_000 {
            count[workload.draw().1 as usize] += 1;
        }
        count.sort_unstable_by(|a, b| b.cmp(a));
        // 1 / H(1000, 0.99) is 0.129.
        assert!((11_500..15_000).contains(&count[0]), "{}", count[0]);
        assert!(count[..100].iter().sum::<u32>() > 60_000);
    }

    #[test]
    fn d_inserts_new_keys_and_reads_the_newest() {
        let mut workload = Workload::new(Mix::YCSB[3], Choice::Uniform, 1_000, 1).unwrap();
        let (mut inserted, mut newest) = (0, 0);
        for _ in 0..10_000 {
            match workload.draw() {
                (Kind::Insert, key) => {
                    assert_eq!(key, 1_000 + inserted);
                    inserted += 1;
                }
                (_, key) => {
                    assert!(key < 1_000 + inserted);
                    newest += u32::from(key + 10 >= 1_000 + inserted);
                }
            }
        }
        assert!(newest > 3_000, "{newest}");
    }
}
