//! Enums that are a byte on the wire.

/// An enum whose values are bytes on the wire.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$about])* $variant = $value,)+ }

        impl $name {
            /// The value of a byte on the wire, if it is one.
            #[inline]
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<$name> {
                match byte { $($value => Some($name::$variant),)+ _ => None }
            }

            /// Every value, in wire order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];
        }
    };
}

pub(crate) use byte_enum;
