//! Launches the kernels of fixed.cu.
