//! Fastpass' arbiter: it decides when each link carries which message. It sends and receives
//! nothing itself.

use std::collections::VecDeque;

/// The schedule of a link: lanes, each of which carries one message at a time at the bandwidth of a
/// host.
#[derive(Clone, Debug)]
struct Calendar {
    /// For each lane the starts and ends of its messages, ascending and disjoint, in ps.
    lanes: Vec<VecDeque<(u64, u64)>>,
}

impl Calendar {
    /// The earliest time from `from` on at which a lane is free for `length` (both in ps), and that
    /// lane.
    fn next_free(&self, from: u64, length: u64) -> (u64, usize) {
        let of_lane = |lane: &VecDeque<(u64, u64)>| {
            let mut at = from;
            for &(begin, end) in lane {
                if begin >= at.saturating_add(length) {
                    break;
                }
                at = at.max(end);
            }
            at
        };
        let lanes = self.lanes.iter().enumerate().map(|(place, lane)| (of_lane(lane), place));
        lanes.min().unwrap_or((u64::MAX, 0))
    }

    fn reserve(&mut self, lane: usize, begin: u64, end: u64, now: u64) {
        let lane = &mut self.lanes[lane];
        while lane.front().is_some_and(|&(_, over)| over <= now) {
            lane.pop_front();
        }
        let place = lane.partition_point(|&(other, _)| other < begin);
        lane.insert(place, (begin, end));
    }
}

/// A link on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// The port that sends on it.
    pub(super) port: u32,
    /// The number of messages that it carries at once.
    pub(super) lanes: u32,
    /// The time from a packet's start at the sender until it can be sent on this link.
    pub(super) offset_ps: u64,
}

/// The schedules of all links.
#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    calendars: Vec<Calendar>,
}

impl Arbiter {
    fn calendar(&mut self, passed: &Passed) -> &mut Calendar {
        let place = passed.port as usize;
        if self.calendars.len() <= place {
            self.calendars.resize(place + 1, Calendar { lanes: Vec::new() });
        }
        let calendar = &mut self.calendars[place];
        if calendar.lanes.is_empty() {
            calendar.lanes = vec![VecDeque::new(); passed.lanes.max(1) as usize];
        }
        calendar
    }

    /// The earliest start on a path, from `earliest` to `latest`, in ps.
    fn start(&mut self, way: &[Passed], length: u64, earliest: u64, latest: u64) -> Option<u64> {
        let mut start = earliest;
        loop {
            let before = start;
            for passed in way {
                let from = start.saturating_add(passed.offset_ps);
                let (at, _) = self.calendar(passed).next_free(from, length);
                start = start.max(at.saturating_sub(passed.offset_ps));
            }
            match start {
                start if start > latest => return None,
                start if start == before => return Some(start),
                _ => {}
            }
        }
    }

    /// Reserves for `length` the path on which a message can begin first; returns the index of the
    /// path, and the start. `None` if it would begin after `latest` on every path.
    pub(super) fn reserve(
        &mut self,
        ways: &[Vec<Passed>],
        length: u64,
        (earliest, latest): (u64, u64),
        now: u64,
    ) -> Option<(usize, u64)> {
        let mut best: Option<(u64, usize)> = None;
        for (place, way) in ways.iter().enumerate() {
            let latest = best.map_or(latest, |(start, _)| start.saturating_sub(1));
            if let Some(start) = self.start(way, length, earliest, latest) {
                best = Some((start, place));
            }
            if best.is_some_and(|(start, _)| start == earliest) {
                break;
            }
        }
        let (start, place) = best?;
        for passed in &ways[place] {
            let begin = start + passed.offset_ps;
            let calendar = self.calendar(passed);
            let (_, lane) = calendar.next_free(begin, length);
            calendar.reserve(lane, begin, begin + length, now);
        }
        Some((place, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(ports: &[u32]) -> Vec<Passed> {
        let passed =
            |(place, &port): (usize, &u32)| Passed { port, lanes: 1, offset_ps: place as u64 * 10 };
        ports.iter().enumerate().map(passed).collect()
    }

    /// The messages of a link follow each other without a gap, gaps are filled, and the deadline
    /// holds.
    #[test]
    fn links_carry_one_message_at_a_time() {
        let mut arbiter = Arbiter::default();
        let mut reserve = |ports: &[u32], length, earliest, latest| {
            arbiter.reserve(&[way(ports)], length, (earliest, latest), 0).map(|found| found.1)
        };
        assert_eq!(reserve(&[0, 1], 100, 0, 1_000), Some(0));
        assert_eq!(reserve(&[0, 2], 100, 0, 1_000), Some(100));
        assert_eq!(reserve(&[3, 1], 100, 0, 1_000), Some(100));
        // Port 1 is busy until 210, port 4 is free.
        assert_eq!(reserve(&[3, 4], 100, 0, 1_000), Some(0));
        assert_eq!(reserve(&[3, 4], 100, 0, 199), None);
        assert_eq!(reserve(&[3, 4], 100, 0, 200), Some(200));
    }

    /// Of several paths the one on which the message begins first is reserved, and lanes are used
    /// in parallel.
    #[test]
    fn ways_and_lanes_are_used() {
        let mut arbiter = Arbiter::default();
        let ways = [way(&[0, 1]), way(&[0, 2])];
        assert_eq!(arbiter.reserve(&ways, 50, (0, 100), 0), Some((0, 0)));
        let others = [way(&[5, 1]), way(&[5, 2])];
        assert_eq!(arbiter.reserve(&others, 50, (0, 100), 0), Some((1, 0)));
        let lanes = |port| vec![vec![Passed { port, lanes: 2, offset_ps: 0 }]];
        let mut starts = Vec::new();
        for _ in 0..4 {
            starts.extend(arbiter.reserve(&lanes(9), 50, (0, 100), 0).map(|found| found.1));
        }
        assert_eq!(starts, [0, 0, 50, 50]);
    }
}
