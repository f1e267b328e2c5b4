//! Transactions, the dependencies between them, and the verdicts on a history of them.

use std::fmt;

/// What a transaction did to a key. The first number is the key, the second the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Appended a value to a list.
    Append(u64, u64),
    /// Read a list.
    List(u64, Vec<u64>),
    /// Wrote a register.
    Write(u64, u64),
    /// Read a register; `None` if it had no value.
    Read(u64, Option<u64>),
}

/// A transaction that was executed, or may have been. One that was certainly not executed is left
/// out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The time in ns at which it was sent.
    pub call_ns: u64,
    /// The time in ns of its reply. `None` if it is not known whether it was executed; it then read
    /// nothing.
    pub return_ns: Option<u64>,
    /// Its accesses, in order.
    pub accesses: Vec<Access>,
}

/// The reason that one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The other overwrote this key after it.
    WriteWrite(u64),
    /// The other saw its write of this key.
    WriteRead(u64),
    /// The other wrote a value of this key that it did not see.
    ReadWrite(u64),
    /// It had returned before the other was called.
    RealTime,
}

/// A proof that there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A read value was written by no transaction that was executed.
    Unwritten {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A transaction does not see its own write, or sees two states of a key.
    Internal {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// A read saw the first writes of another transaction without its last ones.
    Intermediate {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// Two reads of a list of which neither is a prefix of the other, or a list that has a value
    /// twice.
    Order {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// Each transaction comes before the next, and the last before the first.
    Cycle(Vec<(usize, Edge)>),
    /// Every order was tried.
    NoOrder {
        /// The candidates for the next place where the longest order ended.
        stuck: Vec<usize>,
    },
}

/// The decision on a history that shows no anomaly.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// This is an order of all transactions that were executed. It was replayed.
    Ordered(Vec<usize>),
    /// Neither an order nor a proof that there is none was found, because this ran out.
    Open(&'static str),
}

impl Decision {
    /// Whether there is an order.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        matches!(self, Decision::Ordered(_))
    }
}

impl Anomaly {
    /// The transactions that the anomaly involves.
    #[must_use]
    pub fn transactions(&self) -> Vec<usize> {
        match self {
            Anomaly::Unwritten { reader, .. }
            | Anomaly::Internal { reader, .. }
            | Anomaly::Intermediate { reader, .. }
            | Anomaly::Order { reader, .. } => vec![*reader],
            Anomaly::Cycle(cycle) => cycle.iter().map(|(at, _)| *at).collect(),
            Anomaly::NoOrder { stuck } => stuck.clone(),
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Anomaly::Unwritten { reader, key, value } => {
                write!(f, "transaction {reader} read {value} of key {key}, which nobody wrote")
            }
            Anomaly::Internal { reader, key } => {
                write!(f, "transaction {reader} does not see its own writes of key {key}")
            }
            Anomaly::Intermediate { reader, key } => {
                write!(f, "transaction {reader} saw key {key} amid another transaction")
            }
            Anomaly::Order { reader, key } => {
                write!(f, "transaction {reader} saw key {key} in another order than others did")
            }
            Anomaly::NoOrder { stuck } => {
                write!(
                    f,
                    "every order was tried; where the longest ends none of {stuck:?} can be next"
                )
            }
            Anomaly::Cycle(cycle) => {
                let Some((first, _)) = cycle.first() else { return write!(f, "a cycle") };
                for (at, edge) in cycle {
                    let why = match edge {
                        Edge::WriteWrite(key) => format!("it wrote key {key} before"),
                        Edge::WriteRead(key) => format!("what it wrote of key {key} was seen by"),
                        Edge::ReadWrite(key) => format!("of key {key} it did not see"),
                        Edge::RealTime => "it had returned before".to_string(),
                    };
                    write!(f, "{at} ({why}) -> ")?;
                }
                write!(f, "{first}")
            }
        }
    }
}

/// A read of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saw {
    pub(super) key: usize,
    /// The transaction whose write it saw, or `None` if it saw that there was none.
    pub(super) writer: Option<usize>,
}

/// The registers of a history, by number.
#[derive(Debug, Default)]
pub(super) struct Registers {
    pub(super) names: Vec<u64>,
    /// The values of others that each transaction read.
    pub(super) reads: Vec<Vec<Saw>>,
    /// The registers that each executed transaction wrote.
    pub(super) writes: Vec<Vec<usize>>,
}
