//! Symbol tables of foreign libraries, loaded when first needed; no policy here.

pub mod cufile;
pub mod nvcomp;
pub mod nvrtc;
pub mod search;
