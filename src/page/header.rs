//! Parses the page headers of chunks on the device.
