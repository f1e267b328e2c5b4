//! An owner's tasks in lines, one for each queue of the switch and priority. Each line has its own
//! window and pauses, so that none waits because another one's queue is full.

use alloc::collections::{BTreeSet, VecDeque};

use concord_core::{Duration, Instant, MS, Rng};
use concord_wire::falcon::{CLASSES_MAX, PRIORITIES_MAX, TASKS_MAX, queue_of_node};

use super::Name;
use super::suspects::Suspects;

/// The shortest pause after a full queue.
///
/// It is the same for all owners, whether or not their last submission was accepted: if it shrank
/// with success, an owner that got room would get it again, and the others would wait ever longer.
const PAUSE_NS_MIN: Duration = 2 * MS;
/// The first pause if the switch does not answer.
const SILENCE_NS_MIN: Duration = MS / 4;
/// Pauses grow after this many refusals in a row: there are more owners than the queue has room
/// for.
const REFUSALS_MAX: u32 = 8;

/// A queue of the switch, and a priority in it. The most urgent ones are the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub priority: u8,
    pub queue: u8,
}

/// The queues for the tasks of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// The queue of the executors that it needs.
    pub class: Place,
    /// The queue of the node near which they are to run, if there is one.
    pub near: Option<Place>,
}

impl Places {
    pub(super) fn new(priority: u8, needs: u8, near: Option<u16>) -> Places {
        let priority = priority.min(PRIORITIES_MAX - 1);
        let class = Place { priority, queue: needs.min(CLASSES_MAX - 1) };
        let near = near.map(|node| Place { priority, queue: queue_of_node(node) });
        Places { class, near }
    }
}

/// The state of a line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Tasks that may be ready to be submitted; some are not any more.
    pub ready: VecDeque<Name>,
    /// Tasks in the queue that are not known to be handed to a worker, by ticket.
    pub queued: BTreeSet<(i64, Name)>,
    /// Its tasks whose worker died.
    pub suspects: Suspects,
    /// The highest known retrieve_ptr of this switch, extended so that it does not wrap.
    pub retrieved: i64,
    /// The largest number of tasks of the next submission; it shrinks after a full queue.
    pub window: usize,
    pub pause_until: Instant,
    pause_ns: Duration,
    /// The number of refusals in a row.
    refusals: u32,
    /// The next pause if the switch does not answer.
    silence_ns: Duration,
}

impl Line {
    pub(super) fn new() -> Line {
        Line {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            suspects: Suspects::default(),
            retrieved: 0,
            window: TASKS_MAX,
            pause_until: Instant(0),
            pause_ns: PAUSE_NS_MIN,
            refusals: 0,
            silence_ns: SILENCE_NS_MIN,
        }
    }

    /// Extends a pointer of 32 bits to one that does not wrap: it is close to retrieve_ptr.
    pub(super) fn unwrapped(&self, pointer: u32) -> i64 {
        self.retrieved + i64::from(pointer.wrapping_sub(self.retrieved as u32) as i32)
    }

    /// The queue is full: pauses, and submits fewer tasks afterwards. `is_in_vain` if it accepted
    /// no task.
    pub(super) fn full(
        &mut self,
        now: Instant,
        most_ns: Duration,
        is_in_vain: bool,
        rng: &mut Rng,
    ) {
        // Submissions that were in flight at the same time find it full as well.
        if now < self.pause_until {
            return;
        }
        self.pause(now, self.pause_ns, rng);
        self.refusals = if is_in_vain { self.refusals + 1 } else { 0 };
        self.pause_ns = match self.refusals {
            0 => (self.pause_ns / 2).max(PAUSE_NS_MIN),
            1..=REFUSALS_MAX => self.pause_ns,
            _ => (self.pause_ns * 2).min(most_ns),
        };
    }

    /// The switch does not answer: pauses, longer each time, and submits fewer tasks afterwards.
    pub(super) fn unanswered(&mut self, now: Instant, most_ns: Duration, rng: &mut Rng) {
        self.pause(now, self.silence_ns, rng);
        self.silence_ns = (self.silence_ns * 2).min(most_ns);
    }

    fn pause(&mut self, now: Instant, most_ns: Duration, rng: &mut Rng) {
        self.window = (self.window / 2).max(1);
        self.pause_until = now.after(rng.between(most_ns / 2, most_ns));
    }

    /// The queue had room for all of a submission.
    pub(super) fn has_room(&mut self) {
        self.window = (self.window * 2).min(TASKS_MAX);
        (self.refusals, self.silence_ns) = (0, SILENCE_NS_MIN);
        self.pause_ns = (self.pause_ns / 2).max(PAUSE_NS_MIN);
    }

    /// Begins with another switch, whose queue is empty.
    pub(super) fn begin_anew(&mut self) {
        self.queued.clear();
        self.retrieved = 0;
        (self.pause_until, self.pause_ns, self.refusals) = (Instant(0), PAUSE_NS_MIN, 0);
        self.silence_ns = SILENCE_NS_MIN;
    }
}
