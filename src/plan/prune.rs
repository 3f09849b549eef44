//! Which row groups can hold matching rows, by their statistics.
