//! The system's figures about this process, from proc(5).

use concord_gateway::CpuTime;

const US: f64 = 1e6;

/// The contents of `/proc/.../stat`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stat {
    /// The CPU time used, in clock ticks (10 ms).
    pub(crate) used: CpuTime,
    /// The CPU time of children that ended.
    pub(crate) children: CpuTime,
    /// The time from the start of the system to that of the process, in seconds.
    pub(crate) started_seconds: f64,
    pub(crate) virtual_bytes: f64,
    pub(crate) resident_bytes: f64,
}

impl Stat {
    /// The figures of the whole process; `None` if the file is missing, or not as proc(5) says.
    pub(crate) fn of_process() -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// The figures of another process.
    pub(crate) fn of(process_id: u32) -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string(format!("/proc/{process_id}/stat")).ok()?)
    }

    /// The figures of this thread.
    pub(crate) fn of_thread() -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string("/proc/thread-self/stat").ok()?)
    }

    fn parse(line: &str) -> Option<Stat> {
        // The name in parentheses may have spaces; what follows it is field 3 and the next ones.
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let us = |number: usize| Some((field(number)? / ticks * US) as u64);
        Some(Stat {
            used: CpuTime { user_us: us(14)?, system_us: us(15)? },
            children: CpuTime { user_us: us(16)?, system_us: us(17)? },
            started_seconds: field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
        })
    }
}

/// The sum of user and system time, in seconds.
pub(crate) fn seconds(time: CpuTime) -> f64 {
    (time.user_us + time.system_us) as f64 / US
}

/// Whether this process was started with SIGHUP ignored, as by `nohup`.
#[must_use]
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

/// Name, release and machine of the system.
pub(crate) fn system() -> String {
    let of = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_string()
    };
    [of("ostype"), of("osrelease"), std::env::consts::ARCH.to_string()].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_proc_says_whatever_the_name_is() {
        let rest = "S 1 1 1 0 -1 4194560 1 0 0 0 250 50 7 3 20 0 1 0 1000 4096000 500 18446744073";
        let stat = Stat::parse(&format!("42 (a ) b) {rest}")).unwrap();
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(stat.used.user_us, 250 * 1_000_000 / ticks);
        assert_eq!(stat.children.system_us, 3 * 1_000_000 / ticks);
        assert_eq!(stat.virtual_bytes, 4_096_000.0);
        assert!(Stat::parse("42 (a) S").is_none());
        assert!(Stat::of_process().is_some() && Stat::of_thread().is_some());
        assert!(system().starts_with("Linux "));
    }
}
