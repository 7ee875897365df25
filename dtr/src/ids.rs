//! Ids of ops, tensors and storages: dense numbers from 0 in order of declaration, so that every table is a vector.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// An operator call of a [`crate::Program`].
    OpId
}
id! {
    /// A tensor: one output of one op. An alias is a tensor of its own on another tensor's storage.
    TensorId
}
id! {
    /// A storage: the bytes behind a tensor and its aliases, which are dropped together.
    StorageId
}

/// "No such thing" in the machine's dense tables.
pub(crate) const NONE: u32 = u32::MAX;
