//! A cap on the CPU time of a process, by a quota of the system (cgroup v1 or v2).
//!
//! Quotas are accurate to 1%, but stall processes for tens of ms (docs/internals/harmonia.md): use
//! them for throughput, not for latency.

use std::path::{Path, PathBuf};

use concord_core::MS;
use concord_runtime::{Context, Error};

const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";
/// The length of a period, in us. Shorter ones stall less; the kernel accepts no quota below 1 ms.
const PERIOD_US: u64 = 20_000;
const QUOTA_US_MIN: u64 = 1_000;
/// The maximum time until a process is gone from a group, in ns.
const REMOVE_NS_MAX: u64 = 2_000 * MS;
const REMOVE_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// A group of processes, which is removed when dropped.
#[derive(Debug)]
pub struct Cap {
    dir: PathBuf,
}

impl Cap {
    /// A group called `name` that may use `share` of a core.
    ///
    /// # Errors
    /// If the machine does not allow it: the caller then uses the replica's own token bucket.
    pub fn new(name: &str, share: f64) -> Result<Cap, Error> {
        let (period_us, quota_us) = quota(share);
        let v1 = Path::new(V1).join("cpu.cfs_quota_us").exists();
        let dir = Path::new(if v1 { V1 } else { V2 }).join(name);
        if !v1 {
            // Without effect if it is on already; the write below shows whether it worked.
            let _ = std::fs::write(Path::new(V2).join("cgroup.subtree_control"), "+cpu");
        }
        std::fs::create_dir(&dir).cannot(format!("make the cgroup {}", dir.display()))?;
        let cap = Cap { dir };
        if v1 {
            cap.set("cpu.cfs_period_us", &period_us.to_string())?;
            cap.set("cpu.cfs_quota_us", &quota_us.to_string())?;
        } else {
            cap.set("cpu.max", &format!("{quota_us} {period_us}"))?;
        }
        Ok(cap)
    }

    /// Writes a file of the group and reads it back, since some kernels ignore values silently.
    fn set(&self, file: &str, value: &str) -> Result<(), Error> {
        let path = self.dir.join(file);
        std::fs::write(&path, value).cannot(format!("set {}", path.display()))?;
        let got = std::fs::read_to_string(&path).cannot(format!("read {}", path.display()))?;
        if got.trim() != value {
            let (path, got) = (path.display(), got.trim());
            return Err(Error::new(format!("{path} is {got} although {value} was written")));
        }
        Ok(())
    }

    /// Caps process `pid` from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn put(&self, pid: u32) -> Result<(), Error> {
        let path = self.dir.join("cgroup.procs");
        std::fs::write(&path, pid.to_string()).cannot(format!("write {pid} to {}", path.display()))
    }

    /// Whether the machine allows such a cap.
    pub fn is_possible(share: f64) -> bool {
        Cap::new(&format!("concord-bench-{}-probe", std::process::id()), share).is_ok()
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        // The group is busy until its last process is reaped.
        for _ in 0..REMOVE_NS_MAX / REMOVE_PAUSE.as_nanos() as u64 {
            match std::fs::remove_dir(&self.dir) {
                Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVE_PAUSE);
                }
                Ok(()) | Err(_) => return,
            }
        }
        eprintln!("concord: the cgroup {} could not be removed", self.dir.display());
    }
}

/// The period and the quota for `share`, in us; the period grows if the quota would be too small.
fn quota(share: f64) -> (u64, u64) {
    let quota_us = (PERIOD_US as f64 * share).round() as u64;
    if quota_us >= QUOTA_US_MIN {
        return (PERIOD_US, quota_us);
    }
    ((QUOTA_US_MIN as f64 / share).round() as u64, QUOTA_US_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_share_makes_the_period_longer() {
        assert_eq!(quota(0.2), (20_000, 4_000));
        assert_eq!(quota(0.05), (20_000, 1_000));
        assert_eq!(quota(0.04), (25_000, 1_000));
    }
}
