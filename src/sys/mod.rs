//! Symbol tables of foreign libraries, loaded when first needed; no policy here.
