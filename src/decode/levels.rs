//! Launches the kernels of levels.cu.
