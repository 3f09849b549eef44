//! Launches the kernels of dictionary.cu.
