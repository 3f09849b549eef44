//! From page bodies as stored to plain page bodies.

pub mod snappy;
