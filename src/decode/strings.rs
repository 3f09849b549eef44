//! Launches the kernels of strings.cu.
