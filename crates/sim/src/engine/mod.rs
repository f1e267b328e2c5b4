//! The discrete-event engine: integer time, and one queue of events.
//!
//! A driver schedules events of its own type, and takes them back in order of time. Events of the
//! same time come in the order in which they were scheduled, so that a run is a function of its
//! inputs.
//!
//! ```
//! use concord_sim::engine::{EventQueue, NS, Time};
//! let mut queue = EventQueue::new();
//! queue.schedule(Time(5 * NS), "second");
//! queue.schedule(Time(5 * NS), "third");
//! queue.schedule(Time(2 * NS), "first");
//! let order: Vec<_> = std::iter::from_fn(|| queue.next()).map(|(_, event)| event).collect();
//! assert_eq!(order, ["first", "second", "third"]);
//! assert_eq!(queue.now(), Time(5 * NS));
//! ```

mod queue;
mod time;

pub use queue::EventQueue;
pub use time::{MS, NS, PS, SEC, Time, US};
