//! Counters for every path and every drop reason: plain numbers in the machine that counts.

/// Declares a struct of `u64` counters with their help texts. Reading them gives
/// `(name, help, value)` in declaration order, for metrics and for test totals.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[doc = $help:literal])+ $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name { $($(#[doc = $help])+ pub $field: u64,)+ }
        impl $name {
            /// Nothing was counted.
            pub const ZERO: $name = $name { $($field: 0,)+ };
            /// `(name, help, value)` of every counter, in declaration order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($field), concat!($($help),+).trim_ascii(), self.$field),)+].into_iter()
            }
            /// Adds the counts of `other`, to total several machines.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    counters! {
        /// An example.
        struct Example {
            /// Things that came.
            came,
            /// Things that went.
            went,
        }
    }

    #[test]
    fn names_help_and_values_come_in_order() {
        assert_eq!(Example::ZERO, Example::default());
        let mut e = Example { came: 2, went: 1 };
        e.add(&Example { came: 1, went: 0 });
        let all: alloc::vec::Vec<_> = e.each().collect();
        assert_eq!(all, [("came", "Things that came.", 3), ("went", "Things that went.", 1)]);
    }
}
