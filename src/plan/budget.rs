//! Device memory that the footer lets us expect, and where batches are cut.
