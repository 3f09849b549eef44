//! Launches the kernels of utf8.cu.
