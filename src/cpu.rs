//! Decoding by arrow-rs: the CPU device, and the columns that no kernel decodes yet.
